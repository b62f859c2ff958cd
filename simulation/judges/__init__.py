"""Judges: what must hold of histories, of records at every revision, and of processes at rest. Begin with `checker`."""
