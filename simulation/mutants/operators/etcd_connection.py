"""Break the rules about the connection to etcd (E4): where it leads, when it is given up, and what is said of that."""

from __future__ import annotations

from simulation.mutants.mutant import Mutant

NO_REAL_ETCD = "it is about how a real etcd is talked to"

MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        name="old-address-for-30-s",
        rule="a name that stands for another address is looked up again before leases end (E4)",
        section="§11",
        file="txnwire/transport/grpc_transport.py",
        old='        ("grpc.dns_min_time_between_resolutions_ms", 1000),\n',
        new="",
        tests=(
            "tests/txnwire/transport/test_moved_names.py::"
            "test_a_name_that_stands_for_another_address_is_looked_up_again_before_leases_end",
        ),
        why_tests=NO_REAL_ETCD,
    ),
)
