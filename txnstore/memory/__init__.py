"""An exact etcd in this process's memory, for unit tests and the simulation. Never used in production."""
