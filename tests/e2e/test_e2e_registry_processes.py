"""The command `smcp-registry`: as people run it, and as it is killed and paused."""

import asyncio
import signal
import sys
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import orjson

from smcp_bus.nats.bus import BusConfig, open_bus
from smcp_proto.errors import SmcpError
from smcp_testing.member_process import MemberProcess, member_process, observe
from smcp_testing.nats_process import NatsServer
from smcp_testing.service_process import ServiceProcess, service_process
from smcp_testing.waiting import eventually, within

COMMAND = Path(sys.executable).with_name("smcp-registry")


@asynccontextmanager
async def registry(url: str, **env: str) -> AsyncIterator[ServiceProcess]:
    async with service_process(COMMAND, env={"SMCP_NATS_URL": url, "SMCP_LEASE_S": "2", **env}) as process:
        await process.logged("ready")
        yield process


async def get(url: str) -> tuple[int, dict[str, object]]:
    def fetch() -> tuple[int, dict[str, object]]:
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return response.status, orjson.loads(response.read())
        except urllib.error.HTTPError as error:
            with error:
                return error.code, orjson.loads(error.read())

    return await asyncio.to_thread(fetch)


async def test_readiness_follows_nats_and_liveness_does_not(nats_server: NatsServer) -> None:
    async with registry(nats_server.url) as process:
        health = (await process.logged("ready"))["health"]
        assert await get(f"{health}/readyz") == (
            200,
            {"status": "ok", "checks": dict.fromkeys(("nats", "members", "leases", "announcer"), "ok")},
        )
        await nats_server.kill()

        async def status(path: str, code: int) -> bool:
            return (await get(f"{health}/{path}"))[0] == code

        await eventually(lambda: status("readyz", 503))
        assert await status("livez", 200)
        await nats_server.start()
        await eventually(lambda: status("readyz", 200))
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0


async def join_all(members: list[MemberProcess], office: str, numbers: range) -> set[str]:
    """Join one seat per number; a registry that dies meanwhile is asked again. Returns the names that joined."""
    joined = set()

    async def join(number: int) -> None:
        member = members[number % len(members)]
        async with asyncio.timeout(40):
            while f"pc{number}" not in joined:
                try:
                    await member.join(office, "computer", f"pc{number}", member.claim(f"s{number}"))
                except SmcpError:
                    continue
                joined.add(f"pc{number}")

    await asyncio.gather(*map(join, numbers))
    return joined


async def test_a_registry_killed_in_the_middle_loses_no_announcement_and_doubles_none(nats_url: str) -> None:
    async with registry(nats_url) as victim, registry(nats_url), AsyncExitStack() as stack:
        members = [await stack.enter_async_context(member_process(nats_url)) for _ in range(4)]
        bus = await stack.enter_async_context(open_bus(BusConfig(url=nats_url)))
        observer = await observe(bus, "lab")
        joining = asyncio.create_task(join_all(members, "lab", range(150)))
        await eventually(lambda: len(observer.told) >= 20)
        victim.signal(signal.SIGKILL)
        names = await joining
        await eventually(lambda: {told.name for told in observer.told} == names)
        assert all(observer.of(name) == ["enter_office"] for name in names)


async def test_a_suspended_and_killed_registry_delays_announcements_by_at_most_three_seconds(
    nats_url: str,
) -> None:
    async with registry(nats_url) as victim, registry(nats_url), member_process(nats_url) as member:
        observer = await observe(member.bus, "lab")
        # it has asked for the next record to announce, and will not tell it
        victim.signal(signal.SIGSTOP)
        try:
            names = await join_all([member], "lab", range(3))
            async with within(3):
                await eventually(lambda: {told.name for told in observer.told} == names)
        finally:
            victim.signal(signal.SIGKILL)
        assert all(observer.of(name) == ["enter_office"] for name in names)


async def test_a_registry_suspended_past_a_lease_removes_nobody(nats_url: str) -> None:
    async with registry(nats_url, SMCP_LEASE_S="1") as paused, member_process(nats_url) as member:
        observer = await observe(member.bus, "lab")
        await member.renew()
        await member.join("lab", "computer", "pc")
        await eventually(lambda: observer.of("pc") == ["enter_office"])
        paused.signal(signal.SIGSTOP)
        async with open_bus(BusConfig(url=nats_url)) as other:
            js = other.jetstream()

            async def no_lease() -> bool:
                return (await js.stream_info("KV_leases")).state.messages == 0

            await eventually(no_lease)
        paused.signal(signal.SIGCONT)
        asked = member.asked
        await eventually(lambda: member.asked > asked)
        assert await member.room("lab", "computer", "pc") == {("computer", "pc")}
        assert observer.of("pc") == ["enter_office"]


async def test_restarting_registries_one_by_one_fails_no_request(nats_url: str) -> None:
    async with AsyncExitStack() as stack, member_process(nats_url) as member:
        observer = await observe(member.bus, "lab")
        running = [await stack.enter_async_context(registry(nats_url)) for _ in range(2)]
        joining = asyncio.create_task(join_all([member], "lab", range(100)))
        for old in running:
            await stack.enter_async_context(registry(nats_url))
            old.signal(signal.SIGTERM)
            assert await old.exit_code() == 0
        names = await joining
        await eventually(lambda: {told.name for told in observer.told} == names)
        assert all(observer.of(name) == ["enter_office"] for name in names)
