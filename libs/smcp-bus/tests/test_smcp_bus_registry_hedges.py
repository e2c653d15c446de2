"""What a question may have done that was put to several registries, one of which said no."""

import asyncio

import orjson
import pytest

from smcp_bus import subjects
from smcp_bus.bus import Incoming, Reply
from smcp_bus.headers import ERROR
from smcp_bus.nats_bus import BusConfig, NatsBus, open_bus
from smcp_bus.registry_client import RegistryClient
from smcp_bus.registry_contract import Claim
from smcp_proto.errors import NotAllowed, SmcpError, Unavailable

CLAIM = Claim(session="s", credential="open", process="ab" * 16, incarnation="i", identity="lab/computer/pc")
ENTER = orjson.dumps({"role": "computer", "name": "pc", "office_id": "lab"})


class Registries:
    """Answer the first question never, and the second one with `second`."""

    def __init__(self, second: Reply) -> None:
        self.second = second
        self.asked = 0
        self.never = asyncio.Event()

    async def __call__(self, _: Incoming) -> Reply:
        self.asked += 1
        if self.asked == 1:
            await self.never.wait()
        return self.second


def error(code: int, **details: object) -> Reply:
    return Reply(orjson.dumps({"code": code, "message": "no", "details": details}), {ERROR: str(code)})


async def failed(bus: NatsBus, verb: str) -> SmcpError:
    client = RegistryClient(bus, credential="open", process="ab" * 16)
    with pytest.raises(SmcpError) as raised:
        if verb == "join":
            await client.join("lab", "computer", "pc", CLAIM, ENTER)
        else:
            await client.leave("lab", "computer", "pc", CLAIM)
    return raised.value


@pytest.mark.parametrize("verb", ["join", "leave"])
async def test_a_refusal_for_now_beside_an_open_question_may_have_run(nats_url: str, verb: str) -> None:
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(error(503, why="quorum"))
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        unavailable = await failed(bus, verb)
        assert registries.asked == 2
        assert isinstance(unavailable, Unavailable)
        assert (unavailable.message, unavailable.details) == ("no", {"why": "quorum", "may_have_run": True})


async def test_a_refusal_for_now_that_was_the_only_answer_says_what_it_said(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(error(503))
        registries.never.set()
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        unavailable = await failed(bus, "join")
        assert isinstance(unavailable, Unavailable)
        assert unavailable.details == {}


async def test_a_refusal_by_decision_stays_what_it_is(nats_url: str) -> None:
    async with open_bus(BusConfig(url=nats_url, drain_timeout=0)) as bus:
        registries = Registries(error(403))
        await bus.serve(subjects.SERVER_ALL, registries, queue=subjects.REGISTRY_QUEUE)
        refused = await failed(bus, "join")
        assert isinstance(refused, NotAllowed)
        assert refused.details == {}
