"""What NetworkPolicies let pass between the pods of a release."""

from __future__ import annotations

from typing import Any, NamedTuple

from tests.charts.rendering import COMPONENT, Object, of_kind, pod_templates, selects


class Flow(NamedTuple):
    """A TCP connection from a pod of one component to a port of another one's."""

    source: str
    target: str
    port: int


def allowed_flows(objects: list[Object]) -> set[Flow]:
    """Between pods of the release: those that the source may open and the target may accept."""
    pods = {template["metadata"]["labels"][COMPONENT]: template for _, template in pod_templates(objects)}
    return {
        Flow(source, target, port)
        for source, from_pod in pods.items()
        for target, to_pod in pods.items()
        for port in ports_of(to_pod)
        if passes(objects, "Egress", from_pod, to_pod, port) and passes(objects, "Ingress", to_pod, from_pod, port)
    }


def ports_of(pod: Object) -> set[int]:
    return {port["containerPort"] for container in pod["spec"]["containers"] for port in container.get("ports", ())}


def passes(objects: list[Object], direction: str, pod: Object, other: Object, port: int) -> bool:
    """Whether `pod` may talk to `other` (of the same namespace): no policy selects it, or one allows it."""
    labels = pod["metadata"]["labels"]
    policies = [
        one["spec"]
        for one in of_kind(objects, "NetworkPolicy")
        if direction in one["spec"]["policyTypes"] and selects(one["spec"]["podSelector"], labels)
    ]
    rules = [rule for policy in policies for rule in policy.get(direction.lower(), ())]
    return not policies or any(_matches(rule, direction, other, port) for rule in rules)


def _matches(rule: dict[str, Any], direction: str, other: Object, port: int) -> bool:
    if "ports" in rule and not any(one["port"] == port and one["protocol"] == "TCP" for one in rule["ports"]):
        return False
    peers = rule.get("to" if direction == "Egress" else "from")
    return peers is None or any(_is_peer(peer, other) for peer in peers)


def _is_peer(peer: dict[str, Any], other: Object) -> bool:
    """Peers of other namespaces are no pods of the release."""
    return set(peer) == {"podSelector"} and selects(peer["podSelector"], other["metadata"]["labels"])
