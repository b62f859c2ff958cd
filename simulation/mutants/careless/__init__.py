"""Broken rules for callers who cancel, give up, close early or do not do what an error asks for."""
