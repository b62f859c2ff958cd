"""Rules broken on purpose, one at a time, in a copy of the tree: each must be caught (`make mutants`).

Decides which seeds or tests must catch each. Imports `running`. Begin with `mutant`, then `table` and `runner`.
"""
