"""When a cluster counts as ready, and what is said of one that is not."""

from __future__ import annotations

import pytest

from tests.cluster import TCIDS, InProcessCluster
from tests.waiting import until
from txnctl.launch.probe import _missing, wait_cluster_ready
from txnstore.etcd.embedded_etcd import free_port
from txnwire.errors import Timeout
from txnwire.proto import txn_pb2 as pb


def cluster_of(*, controller: str = "h:1", coordinators: int = 3, brokers: int = 2) -> pb.Cluster:
    return pb.Cluster(
        controller_address=controller,
        coordinators=[pb.Cluster.Coordinator(tc_id=number) for number in range(coordinators)],
        brokers=[pb.Cluster.Broker(id=f"b{number}") for number in range(brokers)],
    )


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        (cluster_of(controller=""), "no controller is elected yet"),
        (cluster_of(coordinators=0), "0 of 3 coordinator ids are served"),
        (cluster_of(coordinators=2, brokers=0), "2 of 3 coordinator ids are served"),
        (cluster_of(brokers=1), "1 of 2 brokers are registered"),
        (cluster_of(), None),
        (cluster_of(coordinators=4, brokers=3), None),
    ],
)
def test_a_cluster_is_ready_with_a_controller_and_as_many_ids_and_brokers_as_are_expected(
    found: pb.Cluster, missing: str | None
) -> None:
    assert _missing(found, brokers=2, coordinators=3) == missing


async def test_where_no_server_answers_the_address_is_named_with_its_error() -> None:
    address = f"127.0.0.1:{free_port()}"
    with pytest.raises(Timeout, match=rf"^the cluster was not ready after 0\.5 s: {address}: .*{address}"):
        await wait_cluster_ready(address, brokers=1, coordinators=1, timeout_s=0.5)


async def test_a_cluster_that_is_not_ready_is_told_with_what_is_missing_and_left_without_a_connection(
    cluster: InProcessCluster,
) -> None:
    control = cluster.servers["control"].server

    def connections() -> int:
        return control._connections

    before = connections()
    with pytest.raises(Timeout, match="not ready after 1 s: 1 of 2 brokers are registered"):
        await wait_cluster_ready(cluster.listen, brokers=2, coordinators=TCIDS, timeout_s=1.0)
    await until(lambda: connections() <= before, lambda: f"{connections()} connections to be {before}")
