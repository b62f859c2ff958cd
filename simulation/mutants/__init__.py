"""Rules broken on purpose, one at a time, in a copy of the tree: each must be caught (`make mutants`)."""
