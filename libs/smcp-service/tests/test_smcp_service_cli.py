"""The shared part of all service commands, run as users run them."""

from datetime import UTC, datetime, timedelta
from importlib.metadata import version
from pathlib import Path

import pytest

from smcp_service.cli import parse_time
from smcp_service.settings import SettingsError
from smcp_testing.fork_server import COMMANDS, born
from smcp_testing.service_process import ServiceProcess, service_process

SAMPLE = Path(__file__).with_name("sample_service.py")


async def run(*arguments: str, **variables: str) -> tuple[int, ServiceProcess]:
    async with service_process(*born(SAMPLE, *arguments, knows=COMMANDS), env=variables) as service:
        return await service.exit_code(), service


def said(service: ServiceProcess) -> str:
    return "\n".join(line["event"] for line in service.log)


async def test_version_is_that_of_the_distribution() -> None:
    code, service = await run("--version")

    assert code == 0
    assert service.output == [f"smcp-service {version('smcp-service')}"]


async def test_check_config_shows_the_settings_in_force_and_does_nothing_else() -> None:
    code, service = await run("--check-config", "--health-port", "0", SMCP_LEASE_S="2", SMCP_TOKEN="hunter2")

    assert code == 0
    assert "SMCP_LEASE_S=2.0" in service.output
    assert "SMCP_TOKEN=<hidden>" in service.output
    assert service.output[-1] == "the configuration is valid"
    assert not service.log


async def test_a_misspelt_variable_is_warned_about() -> None:
    code, service = await run("--check-config", SMCP_LEASES="2")

    assert code == 0
    assert "did you mean SMCP_LEASE_S?" in said(service)


@pytest.mark.parametrize("arguments", [[], ["--check-config"]])
async def test_wrong_settings_end_it_with_2_and_their_names(arguments: list[str]) -> None:
    code, service = await run(*arguments, "--health-port", "99999", SMCP_LEASE_S="soon")

    assert code == 2
    assert "SMCP_LEASE_S: " in said(service)
    assert "--health-port: " in said(service)
    assert "Traceback" not in said(service)


async def test_wrong_usage_ends_it_with_2() -> None:
    code, service = await run("--no-such-option")

    assert code == 2
    assert "--no-such-option" in said(service)


async def test_a_health_port_that_is_taken_is_a_sentence_and_ends_it_with_1() -> None:
    async with service_process(*born(SAMPLE, knows=COMMANDS)) as first:
        url = (await first.logged("serving"))["url"]
        port = url.rpartition(":")[2]

        code, second = await run("--health-port", port)

    assert code == 1
    last = f"error: port {port} of 127.0.0.1 is taken; choose another with SMCP_HEALTH_PORT"
    assert second.log[-1] == {"event": last}
    assert "Traceback" not in said(second)


def test_a_span_may_be_a_year_in_any_unit_and_a_date_is_its_midnight_in_utc() -> None:
    year = parse_time("--expires", "365d", 1)

    for same in ("525600m", "31536000s"):
        assert abs(parse_time("--expires", same, 1) - year) < timedelta(minutes=1)
    assert parse_time("--expires", "2027-01-31", 1) == datetime(2027, 1, 31, tzinfo=UTC)
    with pytest.raises(SettingsError, match="is not a valid time"):
        parse_time("--expires", "999999999d", 1)
