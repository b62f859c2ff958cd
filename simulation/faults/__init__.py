"""Faults: their kinds, when each is injected, and its effect.

Decides, from the seed, what fails when. Imports `world`. Begin with `faults`, then `nemesis`.
"""
