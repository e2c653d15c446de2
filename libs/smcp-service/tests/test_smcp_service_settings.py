"""Settings are read once, from `SMCP_*` and the command line, and refused when wrong."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr

from smcp_service.settings import (
    MIB,
    ServiceSettings,
    SettingsError,
    load_settings,
    misspelt_variables,
    shown,
)
from smcp_testing.certificates import Authority


class ThingSettings(ServiceSettings):
    thing_port: int = 8000
    token: SecretStr = SecretStr("")


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.upper().startswith("SMCP_"):
            monkeypatch.delenv(name)


def test_the_defaults_are_those_that_users_rely_on() -> None:
    settings = load_settings(ServiceSettings)

    assert settings.nats_url == "nats://127.0.0.1:4222"
    assert settings.nats_creds is None
    assert (settings.lease_s, settings.drain_s, settings.move_s) == (10, 60, 30)
    assert settings.max_payload == 32 * MIB
    assert settings.health_host == "127.0.0.1"


def test_variables_win_over_defaults_and_options_over_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMCP_THING_PORT", "1")
    monkeypatch.setenv("SMCP_LEASE_S", "2.5")

    settings = load_settings(ThingSettings, thing_port=2, health_host=None)

    assert settings.thing_port == 2
    assert settings.lease_s == 2.5
    assert settings.health_host == "127.0.0.1"


def test_nats_may_have_several_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMCP_NATS_URL", "nats://a:4222, tls://u:hunter2@b,nats://[::1]:4223")

    settings = load_settings(ServiceSettings)

    assert settings.nats_url == "nats://a:4222,tls://u:hunter2@b,nats://[::1]:4223"
    assert shown(settings)["SMCP_NATS_URL"] == "nats://a:4222,tls://<hidden>@b,nats://[::1]:4223"


def test_a_variable_may_be_written_in_lower_case(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("smcp_thing_port", "1")

    assert load_settings(ThingSettings).thing_port == 1


def test_an_empty_variable_counts_as_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMCP_NATS_CREDS", "")
    monkeypatch.setenv("SMCP_LEASE_S", "")

    settings = load_settings(ServiceSettings)

    assert settings.nats_creds is None
    assert settings.lease_s == 10


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SMCP_NATS_URL", "http://127.0.0.1", "must begin with one of nats://"),
        ("SMCP_NATS_URL", "nats://", "names no host"),
        ("SMCP_NATS_URL", "nats://h:port", "port"),
        ("SMCP_NATS_URL", "nats://a:4222,b:4222", "each server must begin with one of nats://"),
        ("SMCP_NATS_URL", "nats://a:4222,", "each server must begin"),
        ("SMCP_NATS_URL", "nats://a,nats://", "names no host"),
        ("SMCP_NATS_URL", "nats://a,nats://b:port", "port"),
        ("SMCP_NATS_URL", "nats://a,wss://b", "must begin with one of nats://, tls://"),
        ("SMCP_NATS_CREDS", "/does/not/exist", "there is no such file"),
        ("SMCP_LEASE_S", "0", "greater than or equal to 0.5"),
        ("SMCP_LEASE_S", "nan", "finite number"),
        ("SMCP_LEASE_S", "ten", "valid number"),
        ("SMCP_DRAIN_S", "-1", "greater than or equal to 0"),
        ("SMCP_MOVE_S", "inf", "finite number"),
        ("SMCP_MAX_PAYLOAD", "1000", "greater than or equal to 65536"),
        ("SMCP_MAX_PAYLOAD", "32MB", "valid integer"),
        ("SMCP_HEALTH_HOST", "http://here", "host name or an IP address"),
        ("SMCP_HEALTH_PORT", "70000", "less than or equal to 65535"),
        ("SMCP_LOG_LEVEL", "loud", "'debug', 'info'"),
        ("SMCP_LOG_FORMAT", "xml", "'auto', 'json' or 'console'"),
    ],
)
def test_a_wrong_variable_is_refused_by_its_name_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, reason: str
) -> None:
    monkeypatch.setenv(variable, value)

    with pytest.raises(SettingsError) as refused:
        load_settings(ThingSettings)

    assert len(refused.value.problems) == 1
    assert refused.value.problems[0].startswith(variable)
    assert reason in str(refused.value)
    assert refused.value.exit_code == 2


@pytest.mark.parametrize(
    ("below", "reason"),
    [("", "is a directory"), ("not/there.log", "does not exist")],
    ids=["directory", "no directory"],
)
def test_a_file_of_the_audit_trail_that_cannot_be_written_is_refused(
    below: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SMCP_AUDIT_FILE", str(tmp_path / below))
    with pytest.raises(SettingsError, match=f"SMCP_AUDIT_FILE: .*{reason}"):
        load_settings(ServiceSettings)


def test_all_wrong_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMCP_LEASE_S", "x")
    monkeypatch.setenv("SMCP_HEALTH_PORT", "y")

    with pytest.raises(SettingsError) as refused:
        load_settings(ServiceSettings)

    assert {problem.partition(":")[0] for problem in refused.value.problems} == {"SMCP_LEASE_S", "SMCP_HEALTH_PORT"}


def test_a_wrong_option_is_named_as_it_was_written() -> None:
    with pytest.raises(SettingsError, match="--thing-port: "):
        load_settings(ThingSettings, thing_port="many")


def test_a_refused_setting_shows_no_password(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SMCP_NATS_URL", "http://user:hunter2@host")

    with pytest.raises(SettingsError) as refused:
        load_settings(ServiceSettings)

    assert "hunter2" not in str(refused.value)


def test_certificates_for_nats_are_read_and_need_an_encrypted_address(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca, wrong = Authority(tmp_path).ca, tmp_path / "wrong.pem"
    wrong.write_text("no certificate")
    monkeypatch.setenv("SMCP_NATS_CA", str(ca))
    monkeypatch.setenv("SMCP_NATS_URL", "tls://a:4222,tls://b:4222")
    assert load_settings(ServiceSettings).nats_ca == ca
    monkeypatch.setenv("SMCP_NATS_CA", str(wrong))
    with pytest.raises(SettingsError, match=r"^SMCP_NATS_CA: holds no certificates that can be read \(PEM\)"):
        load_settings(ServiceSettings)
    monkeypatch.setenv("SMCP_NATS_CA", str(ca))
    monkeypatch.setenv("SMCP_NATS_URL", "tls://a:4222,nats://b:4222")
    with pytest.raises(SettingsError, match=r"^SMCP_NATS_CA: is for NATS with TLS: .*begin with tls://"):
        load_settings(ServiceSettings)


def test_shown_settings_are_by_variable_and_without_secrets(tmp_path: Path) -> None:
    creds = tmp_path / "creds.json"
    creds.write_text("{}")

    values = shown(
        load_settings(ThingSettings, token=SecretStr("hunter2"), nats_url="nats://u:hunter2@h:1", nats_creds=creds)
    )

    assert values["SMCP_LEASE_S"] == "10.0"
    assert values["SMCP_NATS_CREDS"] == str(creds)
    assert values["SMCP_NATS_URL"] == "nats://<hidden>@h:1"
    assert values["SMCP_TOKEN"] == "<hidden>"
    assert "hunter2" not in repr(values)


def test_settings_do_not_change_after_they_were_read() -> None:
    settings = load_settings(ServiceSettings)

    with pytest.raises(ValueError, match="frozen"):
        settings.lease_s = 1  # type: ignore[misc]


@given(st.text(min_size=1).filter(lambda text: "\0" not in text and text.isprintable()))
def test_any_text_for_a_number_is_read_or_refused_with_the_variables_name(text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SMCP_HEALTH_PORT", text)
        try:
            port = load_settings(ServiceSettings).health_port
        except SettingsError as refused:
            said = refused.problems[0]
        else:
            said = f"SMCP_HEALTH_PORT: {range(65536)[port]}"

    assert said.startswith("SMCP_HEALTH_PORT: ")


def test_a_variable_that_is_nearly_a_setting_is_found_with_that_setting() -> None:
    environ = ("SMCP_LEASES", "SMCP_LEASE_S", "SMCP_INPUT_KEY", "SMCP_START_S", "HOME")

    assert misspelt_variables([ThingSettings], environ) == {"SMCP_LEASES": "SMCP_LEASE_S"}
