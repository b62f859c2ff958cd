"""Judges: check histories, records at every revision, and processes at rest. Begin with `checker`."""
