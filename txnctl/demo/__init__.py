"""The main job on real data: the flights of 2013 out of New York, transformed in transactions."""
