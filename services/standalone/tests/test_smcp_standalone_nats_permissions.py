"""Every permission against the real nats-server: what must be allowed works, what must not is refused."""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from nats.errors import NoRespondersError

from smcp_bus import subjects
from smcp_registry.bucket_watch import Change, View, follow
from smcp_standalone.nats_config_file import NatsModel
from smcp_standalone.nats_server import NatsServer, open_nats_server
from smcp_testing.nats_peer import Peer, nats_peer
from smcp_testing.waiting import eventually

MODEL = NatsModel.model_validate(
    {
        "offices": ["lab", "北京 3.*"],
        "registries": ["registry-1", "registry-2"],
        "gateways": ["gateway-1", "gateway-2"],
        "operators": ["ops"],
        "computers": [
            {"credential": "rack", "office": "lab", "names": ["one", "two"]},
            {"credential": "desk", "office": "lab"},
            {"credential": "上海", "office": "北京 3.*", "names": ["one"]},
        ],
        "listen": "127.0.0.1:-1",
    }
)
PROCESS = "0" * 32


def connected(server: NatsServer, credential: str) -> AbstractAsyncContextManager[Peer]:
    return nats_peer(server.url, server.credentials[credential])


async def test_a_computer_may_do_its_work(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "rack") as rack:
        for name in ("one", "two"):
            assert await rack.may_publish(subjects.server("lab", "computer", name, "join_office"))
            assert await rack.may_subscribe(subjects.client_all("lab", name), queue="owner")
        assert await rack.may_subscribe(subjects.notify_all("lab"))
        assert await rack.may_publish(subjects.hosts("rack", PROCESS, "lease"))
        assert await rack.may_subscribe(subjects.hosts("rack", PROCESS, "alive"))
        assert await rack.may_subscribe("_INBOX.rack.>")


async def test_subscriptions_above_the_limit_of_a_connection_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("smcp_standalone.nats_server.MAX_SUBSCRIPTIONS", 50)
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "rack") as rack:
        for _ in range(40):
            await rack.client.subscribe("_INBOX.rack.x")
        await rack.client.flush()
        for _ in range(20):
            await rack.client.subscribe("_INBOX.rack.x")
        await eventually(lambda: "maximum subscriptions exceeded" in str(rack.client.last_error))


async def test_names_of_any_text_work(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "上海") as host:
        assert await host.may_publish(subjects.server("北京 3.*", "computer", "one", "join_office"))
        assert await host.may_subscribe(subjects.client_all("北京 3.*", "one"), queue="owner")
        assert await host.may_subscribe(subjects.notify_all("北京 3.*"))
        assert await host.may_publish(subjects.hosts("上海", PROCESS, "lease"))


@pytest.mark.rule("answers.who.nats", "answers.who.nats.gateways")
@pytest.mark.parametrize(
    "subject",
    [
        subjects.server("lab", "computer", "desk", "join_office"),
        subjects.server("北京 3.*", "computer", "one", "join_office"),
        subjects.server("lab", "agent", "one", "join_office"),
        subjects.client("lab", "desk", "tool_call"),
        subjects.client("lab", "one", "tool_call"),
        subjects.notify("lab", "enter_office"),
        subjects.notify("lab", "update_config"),
        subjects.hosts("desk", PROCESS, "lease"),
        subjects.hosts("rack", PROCESS, "gateway_lease"),
        subjects.hosts("rack", PROCESS, "assert"),
        subjects.hosts("rack", PROCESS, "alive"),
        subjects.hosts("gateway-1", PROCESS, "alive"),
        "_INBOX.rack.x",
        "_INBOX.desk.x",
        "_INBOX.gateway-1.x",
        "$JS.API.INFO",
        "$JS.API.STREAM.MSG.GET.KV_members",
        "$JS.API.DIRECT.GET.KV_members.$KV.members.lab.agent",
        "$KV.members.lab.computer.desk",
        "$JS.ACK.KV_members.c.1.1.1.1.1",
        "$JS.FC.x",
        "$SYS.REQ.SERVER.PING",
        "anything",
    ],
)
async def test_a_computer_may_not_publish_for_anybody_else(tmp_path: Path, subject: str) -> None:
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "rack") as rack:
        assert not await rack.may_publish(subject)


@pytest.mark.rule("answers.who.nats.reads")
@pytest.mark.parametrize(
    ("subject", "queue"),
    [
        (subjects.client_all("lab", "desk"), "owner"),
        (subjects.client_all("北京 3.*", "one"), "owner"),
        (subjects.client_all("lab", "one"), ""),  # a plain one would run a call twice
        (subjects.client_all("lab", "one"), "other"),
        ("smcp.v1.lab.client.*.>", "owner"),
        ("smcp.v1.*.client.one.>", "owner"),
        ("smcp.v1.>", "owner"),
        (subjects.notify_all("北京 3.*"), ""),
        ("smcp.v1.*.notify.>", ""),
        (subjects.SERVER_ALL, "registry"),
        (subjects.server("lab", "computer", "one", "join_office"), "registry"),
        (subjects.HOSTS_LEASE_ALL, "registry"),
        (subjects.hosts("desk", PROCESS, "alive"), ""),
        (subjects.hosts("*", PROCESS, "alive"), ""),
        ("_INBOX.desk.>", ""),
        ("_INBOX.gateway-1.>", ""),
        ("_INBOX.*.>", ""),
        ("_INBOX.>", ""),
        ("$KV.>", ""),
        ("$JS.>", ""),
        ("$SYS.>", ""),
        (">", ""),
    ],
)
async def test_a_computer_may_not_hear_anybody_else(tmp_path: Path, subject: str, queue: str) -> None:
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "rack") as rack:
        assert not await rack.may_subscribe(subject, queue)


async def test_a_gateway_may_do_its_work_and_nothing_of_the_registry(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "gateway-1") as gateway:
        assert await gateway.may_publish(subjects.client("lab", "one", "tool_call"))
        assert await gateway.may_publish(subjects.server("北京 3.*", "agent", "a b", "join_office"))
        assert await gateway.may_publish(subjects.hosts("gateway-1", PROCESS, "gateway_lease"))
        assert await gateway.may_publish(subjects.hosts("gateway-1", PROCESS, "assert"))
        assert await gateway.may_publish("_INBOX.rack.x")
        assert await gateway.may_subscribe(subjects.notify_all("北京 3.*"))
        assert await gateway.may_subscribe(subjects.client_all("lab", "other"), queue="owner")
        assert await gateway.may_subscribe(subjects.hosts("gateway-1", PROCESS, "alive"))
        assert await gateway.may_subscribe("_INBOX.gateway-1.>")

        assert not await gateway.may_publish(subjects.notify("lab", "enter_office"))
        assert not await gateway.may_publish(subjects.hosts("gateway-2", PROCESS, "lease"))
        assert not await gateway.may_publish(subjects.hosts("gateway-2", PROCESS, "gateway_lease"))
        assert not await gateway.may_publish(subjects.hosts("gateway-2", PROCESS, "assert"))
        assert not await gateway.may_publish(subjects.hosts("gateway-1", PROCESS, "alive"))
        assert not await gateway.may_publish("$JS.API.INFO")
        assert not await gateway.may_publish("$KV.members.lab.agent")
        assert not await gateway.may_subscribe(subjects.client_all("lab", "one"))
        assert not await gateway.may_subscribe("smcp.v1.*.client.>")
        assert not await gateway.may_subscribe(subjects.SERVER_ALL, queue="registry")
        assert not await gateway.may_subscribe("_INBOX.gateway-2.>")
        assert not await gateway.may_subscribe("_INBOX.rack.>")


async def test_a_registry_announces_asks_and_keeps_records(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "registry-1") as registry:
        assert await registry.may_publish(subjects.notify("北京 3.*", "enter_office"))
        assert await registry.may_publish(subjects.hosts("rack", PROCESS, "alive"))
        assert await registry.may_publish("_INBOX.rack.x")
        assert await registry.may_subscribe(subjects.SERVER_ALL, queue="registry")
        assert await registry.may_subscribe(subjects.HOSTS_LEASE_ALL, queue="registry")
        assert await registry.may_subscribe(subjects.HOSTS_GATEWAY_LEASE_ALL, queue="registry")
        assert await registry.may_subscribe(subjects.HOSTS_ASSERT_ALL, queue="registry")
        assert await registry.may_subscribe(subjects.OPERATORS_ALL, queue="registry")
        assert await registry.may_subscribe("_INBOX.registry-1.>")

        assert not await registry.may_publish(subjects.client("lab", "one", "tool_call"))
        assert not await registry.may_publish(subjects.hosts("rack", PROCESS, "lease"))
        assert not await registry.may_subscribe(subjects.SERVER_ALL)
        assert not await registry.may_subscribe(subjects.client_all("lab", "one"), queue="owner")
        assert not await registry.may_subscribe("_INBOX.registry-2.>")
        assert not await registry.may_subscribe(">")


class Followed(View):
    """The entries of a bucket that a registry's view received."""

    def __init__(self) -> None:
        super().__init__()
        self.entries: dict[str, int] = {}

    def reset(self, entries: Sequence[Change]) -> None:
        self.entries = {entry.key: len(entry.value or b"") for entry in entries}

    def apply(self, change: Change) -> None:
        self.entries[change.key] = len(change.value or b"")


async def test_a_registry_follows_a_large_bucket(tmp_path: Path) -> None:
    records, size = 600, 20_000
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "registry-1") as registry:
        js = registry.client.jetstream()
        bucket = await js.create_key_value(bucket="members", history=1)
        for number in range(records):
            await bucket.put(f"lab.computer.c{number}", bytes(size))
        sink = Followed()
        following = asyncio.create_task(follow(js, "members", sink))
        try:
            await eventually(lambda: len(sink.entries) == records)
            assert set(sink.entries.values()) == {size}
            await bucket.put("lab.agent", b"now")
            await eventually(lambda: sink.entries.get("lab.agent") == 3)
        finally:
            following.cancel()
            await asyncio.wait({following})
        assert not await registry.refused()


async def test_no_responder_is_reported_at_once_under_permissions(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "gateway-1") as gateway:
        with pytest.raises(NoRespondersError):
            await gateway.client.request(subjects.client("lab", "one", "tool_call"), b"", timeout=30)


async def test_subjects_of_the_longest_names_fit_nats_servers_control_line(tmp_path: Path) -> None:
    longest = "🚀" * 128
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "gateway-1") as gateway:
        for subject in (
            subjects.client(longest, longest, "v" * 64),
            subjects.server(longest, "computer", longest, "v" * 64),
        ):
            with pytest.raises(NoRespondersError):
                await gateway.client.request(subject, b"", timeout=30, headers={"a": "b"})


async def test_a_wrong_secret_is_refused(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server:
        host, port = server.url.removeprefix("nats://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b'CONNECT {"user": "rack", "pass": "wrong", "verbose": false}\r\nPING\r\n')
        said = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await writer.wait_closed()
        assert b"-ERR 'Authorization Violation'" in said
        assert b"PONG" not in said


async def test_gateways_and_registries_may_write_records_and_computers_may_not(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server:
        for credential, kind in (("gateway-1", "call"), ("registry-1", "join")):
            async with connected(server, credential) as peer:
                assert await peer.may_publish(subjects.audit("lab", kind)), credential
        async with connected(server, "rack") as rack:
            assert not await rack.may_publish(subjects.audit("lab", "approval"))
            assert not await rack.may_subscribe(subjects.AUDIT_ALL)


async def test_an_operator_may_read_the_records_and_nothing_else(tmp_path: Path) -> None:
    async with open_nats_server(MODEL, tmp_path) as server, connected(server, "ops") as ops:
        assert not await ops.may_subscribe(subjects.AUDIT_ALL)
        assert await ops.may_publish(subjects.operators("ops", "offices"))
        assert not await ops.may_publish(subjects.operators("other", "offices"))
        assert await ops.may_publish(subjects.operators("ops", "records"))
        for subject in (
            subjects.audit("lab", "call"),
            subjects.client("lab", "one", "tool_call"),
            subjects.notify("lab", "enter_office"),
            "$JS.API.STREAM.INFO.AUDIT",  # an answer of JetStream may go anywhere, as to STREAM.DELETE
            "$JS.API.DIRECT.GET.AUDIT",
            "$JS.API.STREAM.DELETE.AUDIT",
            "$JS.API.STREAM.PURGE.AUDIT",
            "$JS.API.STREAM.MSG.DELETE.AUDIT",
            "$JS.API.STREAM.UPDATE.AUDIT",
            "$KV.members.lab.agent",
        ):
            assert not await ops.may_publish(subject), subject
        assert not await ops.may_subscribe("smcp.v1.lab.>")
