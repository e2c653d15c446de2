"""The limits of a Computer's answers at the real nats-server: only to the asker, and a bounded number."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from nats.aio.msg import Msg

from smcp_bus import subjects
from smcp_standalone import nats_server
from smcp_standalone.nats_config_file import NatsModel
from smcp_standalone.nats_server import open_nats_server
from smcp_testing.nats_peer import Peer, nats_peer

MODEL = NatsModel.model_validate(
    {
        "offices": ["lab"],
        "computers": [{"credential": "rack", "office": "lab", "names": ["one"]}],
        "listen": "127.0.0.1:-1",
    }
)


@asynccontextmanager
async def a_computer_and_a_gateway(directory: Path) -> AsyncIterator[tuple[Peer, Peer]]:
    async with (
        open_nats_server(MODEL, directory) as server,
        nats_peer(server.url, server.credentials["rack"]) as rack,
        nats_peer(server.url, server.credentials["gateway-1"]) as gateway,
    ):
        yield rack, gateway


async def test_a_computer_answers_with_as_many_messages_as_the_largest_body_takes(tmp_path: Path) -> None:
    async with a_computer_and_a_gateway(tmp_path) as (rack, gateway):
        chunks = 128

        async def answer(message: Msg) -> None:
            for number in range(chunks):
                await rack.client.publish(message.reply, str(number).encode())

        await rack.client.subscribe(subjects.client_all("lab", "one"), queue="owner", cb=answer)
        await rack.flushed()
        inbox = gateway.client.new_inbox()
        answers = await gateway.client.subscribe(inbox)
        await gateway.client.publish(subjects.client("lab", "one", "tool_call"), b"", reply=inbox)
        got = [int((await answers.next_msg(timeout=30)).data) for _ in range(chunks)]
        assert got == list(range(chunks))
        assert not await rack.refused()


async def test_a_computer_may_not_answer_without_end(tmp_path: Path) -> None:
    async with a_computer_and_a_gateway(tmp_path) as (rack, gateway):
        asked: asyncio.Future[str] = asyncio.get_running_loop().create_future()

        async def note(message: Msg) -> None:
            asked.set_result(message.reply)

        await rack.client.subscribe(subjects.client_all("lab", "one"), queue="owner", cb=note)
        await rack.flushed()
        inbox = gateway.client.new_inbox()
        await gateway.client.publish(subjects.client("lab", "one", "tool_call"), b"", reply=inbox)
        reply = await asyncio.wait_for(asked, 30)
        for _ in range(nats_server.RESPONSES):
            await rack.client.publish(reply, b"")
        assert not await rack.refused()
        await rack.client.publish(reply, b"")
        assert await rack.refused()


async def test_both_ways_of_a_chunked_exchange_stay_inside_the_permissions(tmp_path: Path) -> None:
    """The Computer pulls a request on its reply subject; the gateway pulls a reply on the Computer's inbox."""
    async with a_computer_and_a_gateway(tmp_path) as (rack, gateway):
        pulled = await rack.client.subscribe(rack.client.new_inbox())

        async def answer(message: Msg) -> None:
            await rack.client.publish(message.reply, b"pull", reply=pulled.subject)

        await rack.client.subscribe(subjects.client_all("lab", "one"), queue="owner", cb=answer)
        await rack.flushed()
        inbox = gateway.client.new_inbox()
        answers = await gateway.client.subscribe(inbox)
        await gateway.client.publish(subjects.client("lab", "one", "tool_call"), b"", reply=inbox)
        pull = await answers.next_msg(timeout=30)
        await gateway.client.publish(pull.reply, b"chunk", reply=inbox)
        chunk = await pulled.next_msg(timeout=30)
        assert chunk.data == b"chunk"
        await rack.client.publish(chunk.reply, b"done")
        assert (await answers.next_msg(timeout=30)).data == b"done"
        assert not await rack.refused()
        assert not await gateway.refused()
