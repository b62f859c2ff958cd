"""An etcd in this process's memory, to the letter, for unit tests and the simulation. No user meets it."""
