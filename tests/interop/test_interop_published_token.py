"""The unchanged published clients, with a token, on a gateway that asks for one."""

from pathlib import Path
from typing import Any

import pytest

from bench import published_env
from smcp_auth import api_keys as key_file
from smcp_auth.api_keys import new_key
from smcp_testing import issuer
from smcp_testing.gateway_world import gateway_world
from smcp_testing.issuer import open_issuer, signing_key
from smcp_testing.waiting import eventually
from tests.interop.published import KINDS, Kind, published_agent, published_computer
from tests.interop.published_pair import LEASE_S, OFFICE

pytestmark = pytest.mark.timeout(published_env.INSTALL_S + 120)

ISSUER = signing_key("of the published clients", "RS256")


@pytest.mark.rule("answers.connect.token")
@pytest.mark.parametrize("kind", KINDS)
async def test_an_agent_and_a_computer_connect_with_a_key_or_a_jwt(nats_url: str, tmp_path: Path, kind: Kind) -> None:
    keys = tmp_path / "keys.json"
    key, entry = new_key(subject="box", offices=[OFFICE], roles=["computer"], names=["box"])
    key_file.add(keys, entry)
    token = ISSUER.token(sub="anna", smcp={"offices": [OFFICE], "roles": ["agent"], "names": ["anna"]})
    async with open_issuer(ISSUER) as known:
        settings: dict[str, Any] = {**issuer.settings(known.url), "auth_keys": keys}
        async with (
            gateway_world(nats_url, gateways=2, lease_s=LEASE_S, settings=settings) as world,
            published_agent(tmp_path, world.gateways[1].url, OFFICE, "anna", kind=kind, token=token) as anna,
        ):
            await anna.ready()
            async with published_computer(tmp_path, world.gateways[0].url, OFFICE, "box", token=key) as box:
                await box.ready()
                await eventually(lambda: anna.heard("tools"))
                result = await anna.call("box", anna.heard("tools")[0]["tools"][0], text="hello")
                assert "content" in result


@pytest.mark.parametrize("kind", KINDS)
async def test_connecting_with_a_wrong_or_missing_token_raises_the_refusal(
    nats_url: str, tmp_path: Path, kind: Kind
) -> None:
    keys = tmp_path / "keys.json"
    keys.write_text('{"keys": []}')
    async with gateway_world(nats_url, settings={"auth_keys": keys}) as world:
        for name, token in (("anna", "wrong"), ("otto", "")):
            async with published_agent(tmp_path, world.url, OFFICE, name, kind=kind, token=token) as agent:
                raised = str(await agent.began)
                assert "/smcp" in raised  # all that the package says of a namespace that refuses it
                assert "ready" not in raised
        assert len(world.gateways[0].sessions) == 0


async def test_a_join_that_the_token_does_not_allow_is_refused(nats_url: str, tmp_path: Path) -> None:
    keys = tmp_path / "keys.json"
    key, entry = new_key(subject="box", offices=[OFFICE], roles=["computer"], names=["*"])
    key_file.add(keys, entry)
    async with (
        gateway_world(nats_url, lease_s=LEASE_S, settings={"auth_keys": keys}) as world,
        published_computer(tmp_path, world.url, OFFICE, "box", token=key) as box,
    ):
        await box.ready()
        said = await box.do("switch elsewhere")
        assert any(line.startswith("refused:") and "not for this office" in line for line in said), said
