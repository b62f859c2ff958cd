"""Faults: their kinds, when each is injected, and what it does. Begin with `faults`, then `nemesis`."""
