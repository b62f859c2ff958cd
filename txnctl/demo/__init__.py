"""The main job on real data: the flights of 2013 out of New York, transformed in transactions.

Decides what fails during the demo, and checks that each flight was counted once. Imports `launch` and the client. Begin
with `demo`, then `worker` and `verify`.
"""
