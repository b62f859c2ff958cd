"""Faults injected into connections."""

from __future__ import annotations

import asyncio

from simulation.faults.scene import FaultKind, Scene
from simulation.world.sim_transport import Delays


async def cut(scene: Scene) -> None:
    """Cuts any two hosts off, one way or both."""
    names = (*scene.servers, *scene.clients)
    source, target = scene.chance.choice(names), scene.chance.choice(names)
    routes = [(source, target), (target, source)][: scene.chance.choice((1, 2))]
    for route in routes:
        scene.told.append(f"from {route[0]} to {route[1]}")
        scene.world.network.cut(*route)
    await scene.for_a_while(0.1, 15.0)
    scene.world.network.mend(routes)


async def cut_a_connection(scene: Scene) -> None:
    """Like `cut`, between hosts that are connected right now, servers among themselves included."""
    links = scene.world.network.links()
    if links:
        link = scene.chance.choice(links)
        routes = scene.chance.choice(([link.route(0)], [link.route(1)], [link.route(0), link.route(1)]))
        for route in routes:
            scene.told.append(f"from {route[0]} to {route[1]}")
            scene.world.network.cut(*route)
        await scene.for_a_while(0.1, 15.0)
        scene.world.network.mend(routes)


async def isolate_a_server(scene: Scene) -> None:
    """▲ A server keeps etcd, so it keeps all it holds, but reaches nothing else; or it is heard and does not hear; or
    only its clients, or only the servers, cannot reach it."""
    name = scene.chance.choice(scene.servers)
    others = scene.chance.choice((scene.clients, scene.servers, (*scene.servers, *scene.clients)))
    ways = scene.chance.choice(("in", "out", "both"))
    scene.told.append(f"{name}, {ways}, from {len(others)} others")
    routes = [(other, name) for other in others if ways != "out"] + [(name, other) for other in others if ways != "in"]
    for route in routes:
        scene.world.network.cut(*route)
    await scene.for_a_while(0.3, 12.0)
    scene.world.network.mend(routes)


async def slow_host(scene: Scene) -> None:
    """What a host sends, receives, or both, takes long; each connection at its own pace."""
    names = (*scene.servers, *scene.clients)
    name, longest_s = scene.chance.choice(names), scene.chance.choice((0.05, 0.3, 2.0))
    sent, given = [(name, other) for other in names], [(other, name) for other in names]
    routes = scene.chance.choice((sent, given, [*sent, *given]))
    scene.told.append(f"{name}, up to {longest_s:g} s")
    for route in routes:
        scene.world.network.slow(route, Delays((longest_s / 20, longest_s), slow_share=0.0))
    await scene.for_a_while(0.5, 8.0)
    scene.world.network.mend(routes)


async def lagging_connections(scene: Scene) -> None:
    """▲ Some connections lag behind others between the same hosts: what was sent first arrives last."""
    lagging = [link for link in scene.world.network.links() if scene.chance.random() < 0.4]
    for link in lagging:
        longest_s = scene.chance.choice((0.02, 0.2, 1.5))
        link.lag = Delays((longest_s / 10, longest_s), slow_share=0.0)
    scene.told.append(f"{len(lagging)} connections")
    await scene.for_a_while(0.5, 10.0)
    for link in lagging:
        link.lag = None


async def reset(scene: Scene) -> None:
    """Resets one connection, or one after another for some seconds, between the same retries."""
    for _ in range(scene.chance.choice((1, 1, 20))):
        links = scene.world.network.links()
        if links:
            scene.chance.choice(links).reset("connection reset")
        await scene.for_a_while(0.0, 0.4)


async def lose_replies(scene: Scene) -> None:
    """▲ Requests are applied and their answers are lost."""
    for _ in range(scene.chance.choice((1, 3, 15))):
        links = scene.world.network.links()
        if links:
            scene.chance.choice(links).lose_replies(1, scene.chance.uniform(0.005, 0.5))
        await scene.for_a_while(0.0, 0.4)


async def mute_a_broker(scene: Scene) -> None:
    """▲ Clients get no answers from a broker for so long that segments are sealed meanwhile: only the seal tells them
    whether what they sent is stored. Or the broker dies before any answer: its successor must know for each producer
    what is stored and decided (L7)."""
    broker, after_s = scene.chance.choice(scene.brokers), scene.chance.choice((0.3, 1.0, 2.5))
    scene.told.append(f"{broker} for {after_s:g} s")
    for link in scene.world.network.links():
        if link.ends[1].host == broker and link.ends[0].host in scene.clients:
            link.lose_replies(1, after_s)
    if scene.chance.random() < 0.4:
        await asyncio.sleep(after_s)
        scene.world.processes[broker].kill()
        await scene.for_a_while(0.01, 6.0)
        scene.world.processes[broker].start()


KINDS = {
    "cut": FaultKind(cut),
    "cut a connection": FaultKind(cut_a_connection, weight=2),
    "isolate a server": FaultKind(isolate_a_server),
    "slow host": FaultKind(slow_host),
    "lagging connections": FaultKind(lagging_connections),
    "reset": FaultKind(reset, weight=2),
    "lose replies": FaultKind(lose_replies, weight=2),
    "mute a broker": FaultKind(mute_a_broker, weight=3),
}
