"""Opening a connection to NATS: absent servers and refused credentials."""

import asyncio
import json
import logging
import socket
import time
from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest
import uvloop

from smcp_bus.bus import NotConnected
from smcp_bus.nats.bus import Bus, BusConfig, open_bus
from smcp_bus.nats.config import Credentials, load_credentials
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually


async def test_opening_without_a_server_fails_in_time_with_a_clear_error() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"nats://someone:secret@127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(NotConnected, match=r"127\.0\.0\.1:\d+ could not be reached within 0\.3 s") as told:
            async with open_bus(BusConfig(url=url, connect_timeout=0.3)):
                raise AssertionError("it opened")
    assert "secret" not in str(told.value)


async def test_a_server_that_comes_within_the_time_is_waited_for(tmp_path: Path) -> None:
    server = NatsServer(tmp_path / "nats")
    await server.start()
    await server.stop()

    async def opens() -> bool:
        async with open_bus(BusConfig(url=server.url)) as bus:
            return bus.connected

    opening = asyncio.create_task(opens())
    await server.start()
    try:
        assert await opening
    finally:
        await server.stop()


async def test_a_connection_that_breaks_while_it_is_opened_is_followed_by_another_one() -> None:
    connections = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        pings = 0
        writer.write(b'INFO {"server_id": "x", "version": "2.15.0", "headers": true, "max_payload": 1048576}\r\n')
        while line := await reader.readline():
            pings += line == b"PING\r\n"
            if connections == 1 and pings == 2:  # the first one is nats-py's own
                break
            if line == b"PING\r\n":
                writer.write(b"PONG\r\n")
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with open_bus(BusConfig(url=f"nats://127.0.0.1:{port}")) as bus:
            assert bus.connected
    assert connections == 2


async def test_an_opening_that_is_cancelled_leaves_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.2), open_bus(BusConfig(url=f"127.0.0.1:{taken.getsockname()[1]}")):
                raise AssertionError("it opened")


async def cancel_an_opening_at_each_moment(server: NatsServer) -> None:
    await server.start()
    opened = False

    async def opens() -> None:
        nonlocal opened
        async with open_bus(BusConfig(url=server.url)):
            opened = True

    try:
        for moment in range(10_000):  # a round of the loop later each time
            opening = asyncio.create_task(opens())
            for _ in range(moment):
                await asyncio.sleep(0)
            if opened:
                await opening
                break
            opening.cancel()
            await asyncio.wait({opening}, timeout=10)
            assert opening.cancelled(), f"cancelled after {moment} rounds of the loop: {opening!r}"
        assert moment > 5
    finally:
        await server.stop()


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_an_opening_ends_at_whatever_moment_it_is_cancelled(
    new_loop: Callable[[], asyncio.AbstractEventLoop], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(cancel_an_opening_at_each_moment(NatsServer(tmp_path / "nats")))
    assert caplog.messages == []


def refusals(caplog: pytest.LogCaptureFixture) -> list[float]:
    """When each came (seconds since the epoch)."""
    return [
        record.created
        for record in caplog.records
        if "nats-py:" in record.getMessage() and "authorization violation" in record.getMessage().lower()
    ]


def told_at_info(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]


def allowing(config: Path, secret: str) -> Path:
    """nats-server's configuration: a user `host` with this password."""
    config.write_text(f'authorization {{ users: [ {{user: "host", password: "{secret}"}} ] }}\n')
    return config


REFUSED = pytest.mark.parametrize(
    ("given", "words"),
    [
        (Credentials("host", "wrong", "_INBOX.host"), "refuses the credential 'host'"),
        (None, "asks for a credential, and there is none"),
    ],
    ids=["a wrong secret", "no credential"],
)


@REFUSED
async def test_a_command_gives_up_when_its_credential_is_refused(
    tmp_path: Path, given: Credentials | None, words: str
) -> None:
    server = NatsServer(tmp_path / "nats", config=allowing(tmp_path / "auth.conf", "right"))
    await server.start()
    try:
        with pytest.raises(NotConnected, match=words):
            async with (
                asyncio.timeout(20),
                open_bus(BusConfig(url=server.url, credentials=given, connect_timeout=600, patient=False)),
            ):
                raise AssertionError("it opened")
    finally:
        await server.stop()


@REFUSED
async def test_a_refused_credential_is_logged_once_and_retried_beyond_the_connect_time_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, given: Credentials | None, words: str
) -> None:
    caplog.set_level("DEBUG", logger="smcp_bus")
    server = NatsServer(tmp_path / "nats", config=allowing(tmp_path / "auth.conf", "right"))
    await server.start()
    opened: list[Bus] = []

    # between two refusals are a pause of at most 0.8 s and three round trips: with 1.5 s for both, the opening ended
    config = BusConfig(url=server.url, credentials=given, connect_timeout=4)

    async def opens() -> None:
        async with open_bus(config, opening=opened.append):
            raise AssertionError("it opened")

    began = time.time()
    opening = asyncio.create_task(opens())

    def refused_beyond_the_time_out() -> bool:
        if opening.done():
            opening.result()
        return max(refusals(caplog), default=0) > began + config.connect_timeout

    try:
        await eventually(refused_beyond_the_time_out)
        assert not opening.done()
        assert opened[0].problem == "nats-server refuses the credential"
        assert [words in message for message in told_at_info(caplog)] == [True]
        await server.stop()
        with pytest.raises(NotConnected, match="could not be reached within"):
            async with asyncio.timeout(20):
                await opening
    finally:
        opening.cancel()
        await asyncio.wait({opening})
        await server.stop()


@pytest.mark.parametrize("mended", ["nats-server", "the file"])
async def test_a_corrected_credential_is_used(tmp_path: Path, caplog: pytest.LogCaptureFixture, mended: str) -> None:
    caplog.set_level("DEBUG", logger="smcp_bus")
    config = allowing(tmp_path / "auth.conf", "right")
    file = tmp_path / "host.json"

    def told(secret: str) -> None:
        file.write_text(json.dumps({"name": "host", "secret": secret, "inbox_prefix": "_INBOX.host"}))

    told("wrong")
    server = NatsServer(tmp_path / "nats", config=config)
    await server.start()
    opened: list[Bus] = []

    async def opens() -> None:
        async with open_bus(
            BusConfig(url=server.url, credentials=load_credentials(file)), opening=opened.append
        ) as bus:
            assert (bus.connected, bus.problem) == (True, None)
            assert (bus.credential, bus.inbox_prefix) == ("host", "_INBOX.host")
            await bus.flush()

    opening = asyncio.create_task(opens())
    try:
        await eventually(lambda: refusals(caplog))
        file.write_text("half of a fi")  # as one that is being written
        before = len(refusals(caplog))
        await eventually(lambda: len(refusals(caplog)) > before + 1)
        if mended == "the file":
            told("right")
        else:
            allowing(config, "wrong")
            server.reload()
        async with asyncio.timeout(30):
            await opening
        assert told_at_info(caplog)[-1] == "connected to nats-server"
        assert len(told_at_info(caplog)) == 2, caplog.messages
    finally:
        opening.cancel()
        await asyncio.wait({opening})
        await server.stop()


async def test_name_and_password_in_the_url_may_hold_what_a_url_has_to_escape(tmp_path: Path) -> None:
    name, secret = "host, 主", "a,b@c:d/e?f#g%2C"
    config = tmp_path / "auth.conf"
    config.write_text(f'authorization {{ users: [ {{user: "{name}", password: "{secret}"}} ] }}\n')
    server = NatsServer(tmp_path / "nats", config=config)
    await server.start()
    try:
        login = f"nats://{quote(name, safe='')}:{quote(secret, safe='')}@"
        url = server.url.replace("nats://", login)
        async with open_bus(BusConfig(url=url)) as bus:
            assert bus.connected
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            nobody = f"nats://other:one@127.0.0.1:{taken.getsockname()[1]}"
            async with open_bus(BusConfig(url=f"{nobody},{url}")) as bus:
                assert bus.connected
    finally:
        await server.stop()


async def test_a_revoked_credential_is_logged_once_and_retried_until_it_is_valid_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG", logger="smcp_bus")
    config = allowing(tmp_path / "auth.conf", "right")

    def said(words: str) -> int:
        return sum(words in record.getMessage() for record in caplog.records)

    server = NatsServer(tmp_path / "nats", config=config)
    await server.start()
    try:
        right = Credentials("host", "right", "_INBOX.host", file=Path("host.json"))
        async with open_bus(BusConfig(url=server.url, credentials=right)) as bus:
            host = server.url.removeprefix("nats://")
            allowing(config, "other")
            server.reload()
            await eventually(lambda: said("refuses the credential 'host' of host.json"))
            assert bus.problem == "nats-server refuses the credential"
            attempts = len(refusals(caplog))
            await eventually(lambda: len(refusals(caplog)) > attempts + 5)
            await server.stop()
            await eventually(lambda: bus.problem == "not connected")
            allowing(config, "right")
            await server.start()
            await eventually(lambda: bus.connected)
            assert told_at_info(caplog) == [
                "the connection to nats-server broke; connecting again",
                f"nats-server at {host} refuses the credential 'host' of host.json; connecting again until it is taken",
                "connected to nats-server again",
            ]
    finally:
        await server.stop()
