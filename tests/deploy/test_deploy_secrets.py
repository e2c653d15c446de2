"""The Job that makes the demo's Secrets: its command, against the Secrets of a cluster's API."""

import asyncio
import functools
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.deploy.demo_secrets import MADE, keys
from tests.deploy.kubelet import Kubelet, run
from tests.deploy.rendering import rendered
from tests.deploy.secrets_api import SecretsApi

once = functools.cache(rendered)


@asynccontextmanager
async def account(directory: Path) -> AsyncIterator[tuple[SecretsApi, "Job"]]:
    manifests = once("dev")
    api = SecretsApi(manifests)
    async with api.open(directory / "account") as variables:
        yield api, Job(Kubelet(manifests, api.secrets, directory / "pods"), variables)


class Job:
    """The pod of `smcp-secrets`, as often as it is started."""

    def __init__(self, kubelet: Kubelet, variables: dict[str, str]) -> None:
        command, self.variables = kubelet.command(kubelet.container("smcp-secrets", "secrets"), **variables)
        assert command[0] == "python"
        self._command = [sys.executable, *command[1:]]

    async def run(self) -> tuple[int, str, str]:
        return await run(self._command, self.variables)

    async def succeeds(self) -> str:
        code, output, errors = await self.run()
        assert code == 0, errors
        return output


async def test_secrets_are_made_once_and_a_missing_one_is_made_again_from_the_same_keys(tmp_path: Path) -> None:
    async with account(tmp_path) as (api, job):
        assert (await job.succeeds()).count(": made") == len(keys())
        assert {name: set(held) for name, held in api.secrets.items() if name != MADE} == keys()
        assert api.files("smcp-agent")["token"].startswith(b"smcp_")
        first = dict(api.secrets)
        del api.secrets["smcp-gateway"]  # the first was stopped half-way
        said = await job.succeeds()
        assert "smcp-gateway: made" in said
        assert said.count(": is there") == len(keys()) - 1
        assert api.secrets == first


async def test_concurrent_jobs_make_one_set_of_secrets_per_cluster(tmp_path: Path) -> None:
    async with account(tmp_path / "one") as (api, job), account(tmp_path / "other") as (other, job_elsewhere):
        await asyncio.gather(job.succeeds(), job.succeeds(), job_elsewhere.succeeds())
        made, gateway = api.files(MADE), api.files("smcp-gateway")
        assert (gateway["nats.json"], gateway["keys.json"]) == (made["gateway.json"], made["keys.json"])
        assert api.files("smcp-nats")["nats-server.conf"] == made["nats-server.conf"]
        assert api.files("smcp-agent")["token"] == made["token"]
        assert api.secrets.keys() == other.secrets.keys()
        assert not [name for name in api.secrets if api.secrets[name] == other.secrets[name]]


async def test_secrets_of_an_older_version_are_kept_and_the_log_says_what_to_do(tmp_path: Path) -> None:
    async with account(tmp_path) as (api, job):
        api.secrets[MADE] = {"token": "c21jcF94"}
        code, _, errors = await job.run()
        assert code == 1
        assert (
            "has no computer.json, gateway.json, keys.json, mcp-token, nats-server.conf, operator.json, registry.json"
            in errors
        )
        assert f"kubectl delete secret {MADE} {' '.join(keys())}" in errors
        assert "Traceback" not in errors
        assert api.secrets == {MADE: {"token": "c21jcF94"}}


async def test_a_refusal_of_the_api_server_is_reported(tmp_path: Path) -> None:
    async with account(tmp_path) as (api, job):
        of_account = Path(job.variables["SERVICE_ACCOUNT"])
        (of_account / "token").write_text("the token of yesterday")
        code, _, errors = await job.run()
        assert code == 1
        assert "401" in errors
        assert "Unauthorized" in errors
        assert "Traceback" not in errors
        assert api.secrets == {}


async def test_no_token_is_sent_to_an_untrusted_api_server(tmp_path: Path) -> None:
    async with account(tmp_path / "one") as (api, job), account(tmp_path / "other") as (_, another):
        certificates = (Path(another.variables["SERVICE_ACCOUNT"]) / "ca.crt").read_bytes()
        (Path(job.variables["SERVICE_ACCOUNT"]) / "ca.crt").write_bytes(certificates)
        code, _, errors = await job.run()
        assert code == 1
        assert "certificate verify failed" in errors
        assert "Traceback" not in errors
        assert api.asked == []


async def test_the_role_may_create_secrets_and_read_only_its_own(tmp_path: Path) -> None:
    """What the stand-in of the API allows is what the manifests' Role says, so the Job needs no more than that."""
    role = once("dev").named("Role", "smcp-secrets")
    assert role is not None
    assert json.dumps(role["rules"], sort_keys=True) == json.dumps(
        [
            {"apiGroups": [""], "resources": ["secrets"], "verbs": ["create"]},
            {"apiGroups": [""], "resources": ["secrets"], "resourceNames": [MADE], "verbs": ["get"]},
        ],
        sort_keys=True,
    )
