"""Messages about unusable files of `smcp nats-config`; nothing is written then."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from smcp_standalone import nats_server
from smcp_standalone.nats_config_file import (
    Cluster,
    ComputerHost,
    JetStream,
    NatsConfigError,
    NatsModel,
    model_of,
    parse_model,
)

SMALL = "{offices: [lab], gateways: [ga, gb], server_name: a, cluster: {name: c}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("offices: [", "line 1, column 11: "),
        ("offices: [2026-99-99]", "not YAML: month must be in 1..12"),
        ("[" * 5_000, "not YAML: maximum recursion depth exceeded"),
        ("- a", "not a YAML mapping"),
        ("{}", "offices: is missing"),
        ("offices: kitchen", "offices: must be a list"),
        ("{offices: [a], jetstream: 1}", "jetstream: must be an object"),
        ("{offices: [a], gateways: 2}", "gateways: must be a list"),
        ("offices: []", "offices: must have at least 1 item"),
        ("offices: [7]", "offices.0: must be a string"),
        ('offices: [""]', "offices.0: a name has 1 to 128 characters"),
        ("{offices: [a], gateway: 2}", "gateway: is not a known field"),
        (
            "{offices: [a], computers: [{credential: c, office: a, nam: x}]}",
            "computers.0.nam: is not a known field",
        ),
        ("{offices: [a], tls: {cert: c, key: k, ca: ''}}", "tls.ca: must have at least 1 character"),
        ("{offices: [a], jetstream: {storedir: x}}", "jetstream.storedir: is not a known field"),
        ("{offices: [a], 7: 2}", "7: must be strings"),
        ("{offices: [a], xyzzy: 1}", "xyzzy: is not a known field"),
        ("{offices: [a], gateways: [g, '']}", "gateways.1: a name has 1 to 128 characters"),
        (
            "{offices: [a], gateways: [g, G]}",
            "gateways.1: 'G' is the name of another credential (gateways.0): each needs a file of its own",
        ),
        ("{offices: [a], computers: [{credential: c}]}", "computers.0.office: is missing"),
        ("{offices: [a], computers: [{credential: c, office: b}]}", "computers.0.office: 'b' is not in offices"),
        ("{offices: [a], computers: [{credential: %s, office: a}]}" % ("雨" * 20), "computers.0.credential: "),
        (
            "{offices: [a], computers: [{credential: ../../evil, office: a}]}",
            "computers.0.credential: a credential is a",
        ),
        ("{offices: [a], gateways: [a, ..]}", "gateways.1: a credential is a file of this name: without '/'"),
        ("{offices: [a], listen: here}", "listen: has to be HOST:PORT"),
        ("{offices: [a], client_advertise: here}", "client_advertise: has to be HOST:PORT"),
        (
            "{offices: [a], client_advertise: $POD_NAME.nats:4222}",
            "client_advertise: has to be HOST:PORT, or a",
        ),
        ("{offices: [a], listen: 'h:99999'}", "listen: has to be HOST:PORT"),
        ("{offices: [a], computers: [{credential: registry-1, office: a}]}", "computers.0.credential: 'registry-1' is"),
        ("{offices: [kitchen], computers: [{credential: c, office: kichen}]}", "did you mean 'kitchen'?"),
        ("{offices: [a], cluster: {name: c}}", "server_name: each node"),
        ("{offices: [a], jetstream: {max_file: big}}", "jetstream.max_file: has to be a size, such as 1G"),
        ("{offices: [a], server_name: a b}", "server_name: has to be 1 to 64 letters"),
    ],
)
def test_a_wrong_field_is_named(text: str, said: str) -> None:
    with pytest.raises(NatsConfigError) as refused:
        parse_model(text)
    assert said in str(refused.value)


def test_all_problems_are_reported_at_once() -> None:
    with pytest.raises(NatsConfigError) as refused:
        parse_model(
            """
            offices: [a]
            registries: 0
            gateways: [g, registry-1, G]
            computers:
              - {credential: c, office: b, names: [x, 1]}
              - {credential: 7, ofice: a}
            jetstream: {max_file: -1}
            listne: here
            """
        )
    assert sorted(refused.value.problems) == [
        "computers.0.names.1: must be a string",
        "computers.1.credential: must be a string",
        "computers.1.office: is missing",
        "computers.1.ofice: is not a known field",
        "jetstream.max_file: must be a string",
        "listne: is not a known field",
        "registries: must be a list",
    ]


LEAVES = (
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.dates() | st.binary(max_size=2)
)
KEYS = st.sampled_from(
    [key for model in (NatsModel, ComputerHost, JetStream, Cluster) for key in model.model_fields]
) | st.text(max_size=3)
ANYTHING = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS | st.integers(), inner, max_size=4)
)
FILES = st.fixed_dictionaries(
    {"offices": st.just(["a"]) | ANYTHING},
    optional={key: ANYTHING for key in NatsModel.model_fields if key != "offices"},
)


OURS = (
    "is missing",
    "is not a known field",
    "has to ",
    "must ",
    "a name ",
    "holds a control character",
    "a credential",
    "each node of a cluster",
)


def problems_of(data: dict[Any, Any]) -> tuple[str, ...]:
    try:
        model_of(data)
    except NatsConfigError as refused:
        assert refused.problems  # noqa: PT017 -- most are refused, and some are not
        return refused.problems
    return ()


@given(FILES | st.dictionaries(KEYS, ANYTHING, max_size=5))
def test_any_config_file_is_used_or_refused_with_our_messages(data: dict[Any, Any]) -> None:
    for problem in problems_of(data):
        place, colon, why = problem.partition(": ")
        assert place or "" in data
        assert colon
        assert why.startswith(OURS) or "is not in offices" in why or "is the name of another credential" in why


def test_an_error_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "hosts.yaml"
    with pytest.raises(NatsConfigError, match=r"hosts\.yaml: cannot be read: No such file"):
        nats_server.read_model(path)
    path.write_text("{gateways: 0}")
    with pytest.raises(NatsConfigError) as refused:
        nats_server.read_model(path)
    assert [problem.split(": ")[:2] for problem in refused.value.problems] == [
        [str(path), "offices"],
        [str(path), "gateways"],
    ]
    path.write_bytes(b"\xff")
    with pytest.raises(NatsConfigError, match=r"hosts\.yaml: is not UTF-8 text"):
        nats_server.read_model(path)


def contents(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_a_damaged_credential_is_refused_and_not_replaced(tmp_path: Path) -> None:
    written = nats_server.write(parse_model(SMALL), tmp_path)
    written.credentials["ga"].write_text("{")
    with pytest.raises(NatsConfigError, match=r"ga\.json: is not a JSON object; remove it"):
        nats_server.write(parse_model(SMALL), tmp_path)
    written.credentials["ga"].write_text(written.credentials["gb"].read_text())
    with pytest.raises(NatsConfigError, match=r"ga\.json: not the credential of 'ga'"):
        nats_server.write(parse_model(SMALL), tmp_path)


def test_a_damaged_secret_of_a_cluster_is_refused_and_not_replaced(tmp_path: Path) -> None:
    nats_server.write(parse_model(SMALL), tmp_path)
    for damaged in (b"", b"\xff", b'" } {'):
        (tmp_path / "cluster-secret").write_bytes(damaged)
        with pytest.raises(NatsConfigError, match="cluster-secret: is not a JSON object; remove it"):
            nats_server.write(parse_model(SMALL), tmp_path)
        assert (tmp_path / "cluster-secret").read_bytes() == damaged


@pytest.mark.parametrize("in_the_way", ["nats-server.conf", "cluster-secret", "creds/gb.json"])
def test_no_file_changes_if_one_cannot_be_written(tmp_path: Path, in_the_way: str) -> None:
    nats_server.write(parse_model(SMALL), tmp_path)
    (tmp_path / in_the_way).unlink()
    (tmp_path / in_the_way).mkdir()
    before = contents(tmp_path)
    with pytest.raises(NatsConfigError, match=rf"{in_the_way}: cannot be (read|written): Is a directory"):
        nats_server.write(parse_model(SMALL.replace("[ga", "[gc")), tmp_path)
    assert contents(tmp_path) == before


def test_a_file_that_is_refused_leaves_no_directory_behind(tmp_path: Path) -> None:
    with pytest.raises(NatsConfigError):
        nats_server.write(parse_model(yaml.safe_dump({"offices": [""]})), tmp_path / "out")
    assert not (tmp_path / "out").exists()
