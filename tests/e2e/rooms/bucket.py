"""Who is in an office by the registries' own bucket."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from nats.js import JetStreamContext
from nats.js.kv import KeyValue

from smcp_proto.member_names import encode_name
from smcp_registry.member_records import MemberRecord
from smcp_registry.store import MEMBERS
from smcp_testing.nats_peer import nats_peer
from tests.e2e.rooms.presence import MemberKey
from tests.e2e.worlds.world import World


class MembersBucket:
    def __init__(self, js: JetStreamContext, bucket: KeyValue) -> None:
        self._js = js
        self._bucket = bucket

    async def members(self, office: str) -> dict[MemberKey, MemberRecord]:
        """The members' records, by role and name."""
        prefix = f"$KV.{MEMBERS}."
        info = await self._js.stream_info(f"KV_{MEMBERS}", subjects_filter=f"{prefix}{encode_name(office)}.>")
        found: dict[MemberKey, MemberRecord] = {}
        for subject in info.state.subjects or {}:
            entry = await self._bucket.get(subject.removeprefix(prefix))
            record = MemberRecord.model_validate_json(entry.value or b"")
            if record.is_member:
                found[(record.role, record.name)] = record
        return found


@asynccontextmanager
async def members_bucket(world: World) -> AsyncIterator[MembersBucket]:
    """Read with the credential of a registry."""
    async with nats_peer(world.nats_url, world.credentials / "registry-1.json") as reader:
        js = reader.client.jetstream()
        yield MembersBucket(js, await js.key_value(MEMBERS))
