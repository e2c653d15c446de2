"""Hostile members of `LAB`, with keys for the gateway or a credential for NATS."""

import asyncio
import json
from collections import Counter

import aiohttp
from nats.aio.msg import Msg

from smcp_bus import registry_contract, subjects
from smcp_proto import catalog
from smcp_testing.event_payloads import GOOD
from smcp_testing.nats_peer import nats_peer
from tests.e2e.hostile.mutations import Mutator
from tests.e2e.hostile.target import (
    ANSWER_S,
    AT_ONCE,
    GUEST,
    RESULT,
    VICTIM,
    Target,
    acknowledged,
    call,
    connected,
    join,
)
from tests.e2e.worlds.world import LAB


async def _events(
    target: Target, socket: aiohttp.ClientWebSocketResponse, make: Mutator, count: int, names: list[str]
) -> Counter[str]:
    seen = Counter[str]()
    for start in range(0, count, 50):
        sent: dict[int, object] = {}
        for number in range(start, min(start + 50, count)):
            event = make.random.choice(names)
            good = {**GOOD.get(event, {}), "req_id": f"{number:032x}", "timeout": 1, "office_id": LAB}
            if "computer" in good:
                good["computer"] = VICTIM.name
            body = make.changed(good)
            sent[number] = said = [event, body if body is not None else {}]
            await socket.send_str(f"42/smcp,{number}" + json.dumps(said))
        answers = await acknowledged(socket, set(sent))
        seen.update(target.outcome(answers[number], said) for number, said in sent.items())
    return seen


async def an_agent(target: Target, make: Mutator, count: int) -> Counter[str]:
    async with connected(target.url, target.keys.agent) as socket:
        await join(socket, "agent", "mallory")
        names = [event for event in GOOD if event not in ("server:leave_office", "server:join_office")]
        return await _events(target, socket, make, count, [*names, "client:other", "server:update_other"])


async def a_computer_at_the_gateway(target: Target, make: Mutator, count: int) -> Counter[str]:
    async with connected(target.url, target.keys.computer) as socket:
        await join(socket, "computer", "evil")
        names = [event for event in GOOD if event.startswith(("server:update", "notify:", "server:resources"))]
        return await _events(target, socket, make, count, names)


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
            try:
                seen[target.outcome(json.loads(message.data), (subject, body))] += 1
            except ValueError:
                seen["answered"] += 1

        for start in range(0, count, 25):
            async with asyncio.TaskGroup() as group:
                for _ in range(min(25, count - start)):
                    body = make.text(GOOD["server:join_office"] | {"lease_s": 1, "sockets": 10**6, "accepting": True})
                    group.create_task(ask(make.random.choice(asked + leases), body))
    return seen


async def a_computer_that_answers(target: Target, make: Mutator, count: int) -> Counter[str]:
    seen, said = Counter[str](), dict[str, bytes]()

    async def answer(socket: aiohttp.ClientWebSocketResponse) -> None:
        while (message := await socket.receive()).type is aiohttp.WSMsgType.TEXT:
            if message.data == "2":
                await socket.send_str("3")
            elif message.data.startswith("42/smcp,"):
                number, bracket, rest = message.data[8:].partition("[")
                text = make.text([RESULT])
                said[json.loads(bracket + rest)[1]["req_id"]] = text
                await socket.send_str(f"43/smcp,{number}" + text.decode("utf-8", "replace"))

    async with (
        connected(target.url, target.keys.computer) as theirs,
        connected(target.url, target.keys.agent) as socket,
    ):
        await join(theirs, "computer", "evil")
        await join(socket, "agent", "mallory")
        answering = asyncio.create_task(answer(theirs))
        try:
            for start in range(0, count, AT_ONCE):
                numbers = range(start, min(start + AT_ONCE, count))
                asked = [await call(socket, number, make, "evil", "t", {}) for number in numbers]
                answers = await acknowledged(socket, set(numbers))
                seen.update(target.outcome(answers[number], said.get(asked[number - start])) for number in numbers)
        finally:
            answering.cancel()
            await asyncio.wait({answering})
    return seen


async def a_computer_at_nats_that_answers(target: Target, make: Mutator, count: int) -> Counter[str]:
    seen, said = Counter[str](), dict[str, object]()
    async with (
        nats_peer(target.world.nats_url, target.world.credentials / f"{GUEST.credential}.json") as peer,
        connected(target.url, target.keys.agent) as socket,
    ):

        async def answer(message: Msg) -> None:
            headers, text = make.headers(), make.text(RESULT)
            said[json.loads(message.data)["req_id"]] = headers, text
            await peer.client.publish(message.reply, text, headers=headers)

        await join(socket, "agent", "mallory")
        await peer.client.subscribe(subjects.client_all(LAB, GUEST.name), queue=subjects.OWNER_QUEUE, cb=answer)
        await peer.flushed()
        for start in range(0, count, AT_ONCE):
            numbers = range(start, min(start + AT_ONCE, count))
            asked = {number: await call(socket, number, make, GUEST.name, "t", {}) for number in numbers}
            answers = await acknowledged(socket, set(numbers))
            seen.update(target.outcome(answers[number], said.get(asked[number])) for number in numbers)
    return seen
