"""Faults: which there are, when each is injected, and what it does. Begin with `faults`, then `nemesis`."""
