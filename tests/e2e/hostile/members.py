"""Hostile members of `LAB`, with keys for the gateway or a credential for NATS."""

import asyncio
import json
import re
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

import aiohttp
from nats.aio.msg import Msg

from smcp_bus import registry_contract, subjects
from smcp_bus.headers import ERROR
from smcp_proto import catalog
from smcp_proto.tool_results import with_meta
from smcp_standalone.nats_server import inbox_prefix
from smcp_testing.event_payloads import GOOD
from smcp_testing.nats_peer import nats_peer
from tests.e2e.hostile.mutations import Mutator
from tests.e2e.hostile.rows import wrong_acknowledgement, wrong_answer_on_the_bus, wrong_relayed
from tests.e2e.hostile.target import (
    ANSWER_S,
    AT_ONCE,
    GUEST,
    RESULT,
    THIRD,
    VICTIM,
    Target,
    acknowledged,
    call,
    connected,
    join,
)
from tests.e2e.worlds.world import ELSEWHERE, LAB

CALL: Final = re.compile(r"42/smcp,(\d+)(\[.*)", re.DOTALL)
"""A packet that asks for an answer; notifications have no number."""


async def _events(
    target: Target,
    socket: aiohttp.ClientWebSocketResponse,
    make: Mutator,
    count: int,
    names: list[str],
    agent: str | None,
) -> Counter[str]:
    seen = Counter[str]()
    for start in range(0, count, 50):
        sent: dict[int, tuple[str, object]] = {}
        for number in range(start, min(start + 50, count)):
            event = make.random.choice(names)
            good = {**GOOD.get(event, {}), "req_id": f"{number:032x}", "timeout": 1, "office_id": LAB}
            if "computer" in good:
                good["computer"] = VICTIM.name
            body = make.changed(good)
            sent[number] = said = (event, body if body is not None else {})
            await socket.send_str(f"42/smcp,{number}" + json.dumps(said))
        answers = await acknowledged(socket, set(sent))
        for number, said in sent.items():
            wrong = wrong_acknowledgement(*said, answers[number], agent)
            seen[target.outcome(answers[number], said, wrong)] += 1
    return seen


async def an_agent(target: Target, make: Mutator, count: int) -> Counter[str]:
    async with connected(target.url, target.keys.agent) as socket:
        await join(socket, "agent", "mallory")
        names = [event for event in GOOD if event not in ("server:leave_office", "server:join_office")]
        return await _events(target, socket, make, count, [*names, "client:other", "server:update_other"], "mallory")


async def a_computer_at_the_gateway(target: Target, make: Mutator, count: int) -> Counter[str]:
    async with connected(target.url, target.keys.computer) as socket:
        await join(socket, "computer", "evil")
        names = [event for event in GOOD if event.startswith(("server:update", "notify:", "server:resources"))]
        return await _events(target, socket, make, count, names, None)


async def a_computer_at_nats(target: Target, make: Mutator, count: int) -> Counter[str]:
    seen = Counter[str]()
    verbs = {catalog.verb_of(event) for event in GOOD if event.startswith("server:")} | {
        verb for prefix, verb in registry_contract.ROWS if prefix == "server"
    }
    asked = [subjects.server(LAB, "computer", GUEST.name, verb) for verb in sorted(verbs | {"x"})]
    leases = [subjects.hosts(GUEST.credential, "p1", "lease")]
    async with nats_peer(target.world.nats_url, target.world.credentials / f"{GUEST.credential}.json") as peer:

        async def ask(subject: str, body: bytes) -> None:
            message = await peer.client.request(subject, body, timeout=ANSWER_S)
            code = (message.headers or {}).get(ERROR)
            wrong = wrong_answer_on_the_bus(subject, code, message.data)
            seen[target.outcome(json.loads(message.data or b"null"), (subject, body), wrong)] += 1

        for start in range(0, count, 25):
            async with asyncio.TaskGroup() as group:
                for _ in range(min(25, count - start)):
                    body = make.text(GOOD["server:join_office"] | {"lease_s": 1, "sockets": 10**6, "accepting": True})
                    group.create_task(ask(make.random.choice(asked + leases), body))
    return seen


def _not_its_own(make: Mutator) -> str:
    """A subject on which a Computer may neither publish nor hear: of others, and of JetStream."""
    office, number = make.random.choice([LAB, ELSEWHERE, THIRD]), str(make.random.getrandbits(32))
    verb = catalog.verb_of(make.random.choice([*catalog.CATALOG]))
    other = make.random.choice([VICTIM.name, "gamma", "x"])
    credential = make.random.choice([VICTIM.credential, "gateway-1", "registry-1"])
    stream = make.random.choice(["KV_members", "KV_leases", "x"])
    api = make.random.choice(["STREAM.DELETE", "STREAM.PURGE", "STREAM.INFO", "STREAM.MSG.GET", "CONSUMER.CREATE"])
    return make.random.choice(
        [
            subjects.notify(ELSEWHERE, verb),
            subjects.client(office, other, verb),
            subjects.server(office, "computer", other, verb),
            subjects.server(ELSEWHERE, "computer", GUEST.name, verb),
            subjects.server(office, "agent", "mallory", verb),
            subjects.hosts(credential, number, make.random.choice(["lease", "alive"])),
            subjects.hosts(GUEST.credential, number, make.random.choice(["gateway_lease", "assert"])),
            subjects.audit(office, "call"),
            subjects.operators("ops", "offices"),
            f"{inbox_prefix(credential)}.{number}",
            f"$JS.API.{api}.{stream}",
            f"$JS.API.DIRECT.GET.{stream}.{number}",
            f"$JS.ACK.{stream}.{number}.1.1.1.1.1",
            f"$KV.members.{number}",
            f"$SYS.REQ.SERVER.{number}",
        ]
    )


async def a_computer_at_nats_elsewhere(target: Target, make: Mutator, count: int) -> Counter[str]:
    """Publishes and subscribes where it may not, and to its own office what registries alone tell it."""
    seen = Counter[str]()
    async with nats_peer(target.world.nats_url, target.world.credentials / f"{GUEST.credential}.json") as peer:
        for start in range(0, count, AT_ONCE):
            sent = Counter[str]()
            for number in range(start, min(start + AT_ONCE, count)):
                if make.random.random() < 0.2:
                    sent[subject := _not_its_own(make)] += 1
                    await peer.client.subscribe(subject)
                else:
                    told = subjects.notify(LAB, catalog.verb_of(make.event()) or "x")
                    sent[subject := make.random.choice([told, _not_its_own(make)])] += 1
                    body = make.text(GOOD["server:join_office"])
                    reply = f"{inbox_prefix(GUEST.credential)}.{number}"
                    await peer.client.publish(subject, body, reply=reply, headers=make.headers() or None)
            refused = Counter[str](text.split('"')[1] for text in await peer.refusals())
            for subject, times in sent.items():
                if (said := refused[subject.lower()]) != times:
                    target.failed.append((f"{times - said} of {times} messages were not refused", subject))
            seen["refused"] += refused.total()
    return seen


@asynccontextmanager
async def answering(
    socket: aiohttp.ClientWebSocketResponse, text: Callable[[str, dict[str, Any]], bytes]
) -> AsyncIterator[None]:
    """Answer each request of an Agent, while the body runs, with what `text` gives for its event and its fields."""

    async def answer() -> None:
        while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            if message.data == "2":
                await socket.send_str("3")
            elif asked := CALL.match(message.data):
                number, rest = asked.groups()
                await socket.send_str(f"43/smcp,{number}" + text(*json.loads(rest)).decode("utf-8", "replace"))

    task = asyncio.create_task(answer())
    try:
        yield
        assert not task.done(), "the Computer's connection ended"
    finally:
        task.cancel()
        await asyncio.wait({task})


async def a_computer_that_answers(target: Target, make: Mutator, count: int) -> Counter[str]:
    seen, said = Counter[str](), dict[str, Any]()

    def text(_: str, asked: dict[str, Any]) -> bytes:
        made = make.text([RESULT])
        said[asked["req_id"]] = _parsed(made)
        return made

    async with (
        connected(target.url, target.keys.computer) as theirs,
        connected(target.url, target.keys.agent) as socket,
    ):
        await join(theirs, "computer", "evil")
        await join(socket, "agent", "mallory")
        async with answering(theirs, text):
            for start in range(0, count, AT_ONCE):
                numbers = range(start, min(start + AT_ONCE, count))
                asked = [await call(socket, number, make, "evil", "t", {}) for number in numbers]
                answers = await acknowledged(socket, set(numbers))
                for number, req_id in zip(numbers, asked, strict=True):
                    sent = said[req_id]
                    result = sent[0] if isinstance(sent, list) and sent else None
                    if isinstance(result, dict):
                        result = with_meta(result, ours=True)  # what the gateway does for Computers on Socket.IO
                    wrong = wrong_relayed(answers[number], result)
                    seen[target.outcome(answers[number], sent, wrong)] += 1
    return seen


async def a_computer_at_nats_that_answers(target: Target, make: Mutator, count: int) -> Counter[str]:
    seen, said = Counter[str](), defaultdict[str, list[tuple[dict[str, str], bytes]]](list)
    async with (
        nats_peer(target.world.nats_url, target.world.credentials / f"{GUEST.credential}.json") as peer,
        connected(target.url, target.keys.agent) as socket,
    ):

        async def answer(message: Msg) -> None:
            req_id = json.loads(message.data)["req_id"]
            for _ in range(make.random.choice([1] * 9 + [2])):  # one may be a note of progress
                said[req_id].append((make.headers(), make.text(RESULT)))
                headers, text = said[req_id][-1]
                await peer.client.publish(message.reply, text, headers=headers)

        await join(socket, "agent", "mallory")
        await peer.client.subscribe(subjects.client_all(LAB, GUEST.name), queue=subjects.OWNER_QUEUE, cb=answer)
        await peer.flushed()
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            asked = {number: await call(socket, number, make, GUEST.name, "t", {}) for number in numbers}
            answers = await acknowledged(socket, set(numbers))
            for number in numbers:
                sent = said[asked[number]]
                wrongs = [wrong_relayed(answers[number], _parsed(text)) for _, text in sent]
                wrong = "" if "" in wrongs else wrongs[0]
                seen[target.outcome(answers[number], sent, wrong)] += 1
    return seen


def _parsed(text: bytes) -> Any:
    """None: it is not JSON."""
    try:
        return json.loads(text.decode("utf-8", "replace"))
    except ValueError:
        return None
