"""Mutation testing with cosmic-ray: `make mutate`. Begin reading in `__main__.py`.

`places.py` says what a module's mutants are: cosmic-ray's, and those of `operators.py`. `covering.py` knows which tests
run a line, from one run of all tests under coverage. Both live with cosmic-ray in an environment of its own;
`worker.py`, which runs the tests, in that of the project. `equivalent.toml` lists survivors that were looked at and
change nothing that can be observed.

Why cosmic-ray and not mutmut: mutmut 3 mutates functions only, no properties and nothing beside functions, and swaps
the mutants in at run time in one process that it forks. Ours has fixtures with threads of gRPC and etcd in it, which do
not survive a fork.
"""
