"""Processes whose secret nats-server does not take, from their start on or since it got another configuration."""

import json
import os
import re
import signal
from functools import partial
from typing import Final

import aiohttp

from smcp_agent import SmcpAgent
from smcp_testing.waiting import eventually
from tests.e2e.actors.bare import member
from tests.e2e.worlds.layout import ALPHA, BETA
from tests.e2e.worlds.process import Launched
from tests.e2e.worlds.world import LAB, Part, World

REFUSED: Final = "nats-server refuses the credential"
_SEEN_S: Final = 60.0
"""Until a part that was started has said it."""


async def a_process_with_a_wrong_secret_says_so_and_works_once_it_is_right(world: World) -> None:
    """A registry, a gateway and a Computer, one after the other; the others work meanwhile."""
    async with SmcpAgent(world.url(0), office=LAB, name="caller") as agent:
        for part in (world.registries[-1], world.gateway(1).part, world.computer(LAB, BETA.name).part):
            assert isinstance(part, Launched)
            assert await part.stop() == 0
            file = world.credentials / f"{part.name}.json"
            right = file.read_text(encoding="utf-8")
            file.write_text(json.dumps({**json.loads(right), "secret": "nobody's"}), encoding="utf-8")
            try:
                part.launch()
                await eventually(partial(says_refused, part), timeout=_SEEN_S, message=part.name)
                pid = part.pid
                answer = await agent.call_tool(ALPHA.name, "echo", {"text": "by the others"})
                assert answer.text == "by the others"
            finally:
                file.write_text(right, encoding="utf-8")
            await part.ready()
            assert part.pid == pid, "it was not restarted"
        assert (await agent.call_tool(BETA.name, "echo", {"text": "again"})).text == "again"


async def a_gateway_whose_secret_is_revoked_says_so_and_reconnects(world: World) -> None:
    gateway, other = world.gateway(1), world.gateway(0)
    conf = world.credentials.parent / "nats-server.conf"
    right, pid = conf.read_text(encoding="utf-8"), gateway.part.pid
    # The password that nats-server takes of each user, as its configuration has it.
    known = dict(re.findall(r'"user": "([^"]+)",\s+"password": ("[^"]+")', right))
    async with SmcpAgent(other.url, office=LAB, name="caller") as agent:
        _configure(world, right.replace(known[gateway.part.name], known[other.part.name]))
        try:
            await eventually(partial(says_refused, gateway.part), timeout=_SEEN_S)
            words = f"refuses the credential '{gateway.part.name}'"
            await eventually(lambda: words in gateway.part.log.read_text(encoding="utf-8"), timeout=_SEEN_S)
            answer = await agent.call_tool(ALPHA.name, "echo", {"text": "by the other gateway"})
            assert answer.text == "by the other gateway"
        finally:
            _configure(world, right)
        await gateway.part.ready()
        assert gateway.part.pid == pid, "it was not restarted"
        async with member(gateway.url, "computer", LAB, "newcomer"):
            await eventually(partial(_sees, agent, "newcomer"))


def _configure(world: World, conf: str) -> None:
    """Let nats-server read another configuration."""
    (world.credentials.parent / "nats-server.conf").write_text(conf, encoding="utf-8")
    os.kill(world.nats.pid, signal.SIGHUP)


async def _sees(agent: SmcpAgent, name: str) -> bool:
    return name in {session.name for session in await agent.list_room()}


async def says_refused(part: Part) -> bool:
    """Whether its `/readyz` is 503, and says that nats-server does not take its credential."""
    assert isinstance(part, Launched)
    try:
        async with aiohttp.ClientSession() as http, http.get(part.ready_url) as answer:
            said = (await answer.json())["checks"]
    except aiohttp.ClientConnectionError:
        return False  # it has only been started
    return answer.status == 503 and said.get("nats") == REFUSED
