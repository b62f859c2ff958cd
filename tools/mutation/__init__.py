"""Mutation testing with cosmic-ray: `make mutate`. Begin reading in `__main__.py`.

cosmic-ray says what a module's mutants are. It lives in an environment of its own; `worker.py`, which runs the tests,
in that of the project. `targets.toml` says which tests belong to which module, `equivalent.toml` which survivors were
looked at and change nothing that can be observed.

Why cosmic-ray and not mutmut: mutmut 3 mutates functions only, no properties and nothing beside functions, swaps the
mutants in at run time in one process that it forks, and learns from a run of the whole suite which tests reach what.
Ours has fixtures with threads of gRPC and etcd in it, which do not survive a fork, and takes half an hour.
"""
