"""Judges: check histories, records at every revision, and processes at rest.

Decides what is a violation. Imports `world`. Begin with `checker`.
"""
