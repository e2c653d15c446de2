"""Names of tools are legal for every LLM API and unique. New ones do not depend on any order, and listed ones stay."""

import json
import logging
import os
import random
import re
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_computer.config.file import parse_config
from smcp_computer.config.inputs import InputResolver
from smcp_computer.mcp.supervisor import Supervisor
from smcp_computer.mcp.transports import Limits
from smcp_computer.tool_names import NO_NAMES, Names, Offer, ToolRef, legal, name_tools, take_names, write_names
from smcp_computer.tools import Catalogue
from smcp_service.files import LARGEST

LEGAL = re.compile(r"[A-Za-z0-9_-]{1,64}")

tool_names = st.one_of(
    st.sampled_from(["read", "write", "re ad", "re.ad", "re_ad", "a__read", "b__read", "读", "", "x" * 70]),
    st.text(max_size=80),
)
offers = st.lists(
    st.builds(
        Offer,
        server=st.one_of(st.sampled_from(["a", "b", "a.b", "a_b", "服务"]), st.text(min_size=1, max_size=70)),
        tools=st.lists(tool_names, max_size=6),
        aliases=st.dictionaries(tool_names, tool_names.filter(bool), max_size=3),
        forbidden=st.frozensets(tool_names, max_size=3),
    ),
    max_size=5,
    unique_by=lambda offer: offer.server,
)


@pytest.mark.rule("answers.tools.names.legal")
@given(offers)
def test_all_listed_names_are_legal_and_each_allowed_tool_has_exactly_one(offers: list[Offer]) -> None:
    names = name_tools(offers)
    assert all(LEGAL.fullmatch(name) for name in names.listed)
    allowed = {
        ToolRef(offer.server, tool)
        for offer in offers
        for tool in offer.tools
        if tool not in offer.forbidden and offer.aliases.get(tool) not in offer.forbidden
    }
    assert sorted(names.listed.values()) == sorted(allowed)


@pytest.mark.rule("answers.tools.names.stable")
@given(offers, st.randoms(use_true_random=False))
def test_names_do_not_depend_on_any_order(offers: list[Offer], shuffle: random.Random) -> None:
    mixed = [
        Offer(offer.server, shuffle.sample(offer.tools, len(offer.tools)), offer.aliases, offer.forbidden)
        for offer in shuffle.sample(offers, len(offers))
    ]
    assert name_tools(mixed) == name_tools(offers)


@pytest.mark.rule("answers.tools.names.kept")
@given(offers, offers)
def test_a_listed_tool_keeps_its_name_whatever_comes(first: list[Offer], second: list[Offer]) -> None:
    before = name_tools(first)
    after = name_tools(second, before)
    kept = {name: ref for name, ref in before.listed.items() if after.wanted.get(ref) == before.wanted[ref]}
    assert kept.items() <= after.listed.items()
    assert sorted(after.listed.values()) == sorted(name_tools(second).listed.values())
    assert all(LEGAL.fullmatch(name) for name in after.listed)


@pytest.mark.rule("answers.tools.names.kept")
def test_the_tool_of_a_slower_server_is_qualified_and_the_one_that_came_first_is_not() -> None:
    before = name_tools([Offer("slow", []), Offer("quick", ["echo"])])
    after = name_tools([Offer("slow", ["echo"]), Offer("quick", ["echo"])], before)
    assert dict(after.listed) == {"echo": ToolRef("quick", "echo"), "slow__echo": ToolRef("slow", "echo")}


@pytest.mark.rule("answers.tools.names.restart")
@given(offers, offers, offers)
def test_names_that_were_written_are_kept_as_those_of_the_same_process_are(
    first: list[Offer], second: list[Offer], third: list[Offer]
) -> None:
    seen = name_tools(second, name_tools(first))
    assert name_tools(third, written_and_read(seen)) == name_tools(third, seen)


hosts = st.dictionaries(
    st.sampled_from(["a", "b", "a__b", "c"]),
    st.lists(st.sampled_from(["echo", "read", "a__echo", "b__echo", "re ad", "re_ad"]), unique=True, max_size=4),
)


@pytest.mark.rule("answers.tools.names.restart")
@given(hosts, hosts, st.randoms(use_true_random=False))
def test_after_a_restart_a_seen_name_means_its_tool_or_none_whichever_server_is_ready_first(
    before: dict[str, list[str]], after: dict[str, list[str]], shuffle: random.Random
) -> None:
    old = Host(before)
    for server in shuffle.sample(sorted(before), len(before)):
        old.start(server)
        if shuffle.random() < 0.5:
            assert old.catalogue.listing is not None  # somebody looks
    seen = written_and_read(old.catalogue.seen)
    kept = {name: ref for name, ref in seen.listed.items() if ref.tool in after.get(ref.server, ())}
    new = Host(after, seen)
    for server in shuffle.sample(sorted(after), len(after)):
        assert all(new.catalogue.find(name) is None for name, ref in kept.items() if ref.server == server)
        new.start(server)
        found = {name: target.ref for name in kept if (target := new.catalogue.find(name)) is not None}
        assert found == {name: ref for name, ref in kept.items() if ref.server in new.ready}


class Host:
    """The tools of a Computer whose servers are started one after another."""

    def __init__(self, servers: Mapping[str, Sequence[str]], seen: Names = NO_NAMES) -> None:
        self._servers = servers
        configs = parse_config(json.dumps({"servers": {name: {"command": "true"} for name in servers}})).servers
        self._supervisors = {
            name: Supervisor(config, InputResolver({}, {}), limits=Limits(), on_change=lambda: None)
            for name, config in configs.items()
        }
        self.ready = set[str]()
        self.catalogue = Catalogue(self._supervisors, seen=seen)
        self.catalogue.refresh()

    def start(self, server: str) -> None:
        supervisor = self._supervisors[server]
        supervisor.tools = tuple(types.Tool(name=name, input_schema={}) for name in self._servers[server])
        supervisor.starts += 1
        self.ready.add(server)
        self.catalogue.refresh()


def written_and_read(names: Names) -> Names:
    with TemporaryDirectory() as directory:
        file = Path(directory, "state", "names.json")
        write_names(file, names)
        return take_names(file)


def test_a_name_with_half_a_surrogate_pair_is_written_and_read() -> None:
    names = name_tools([Offer("git", ["\ud800"], {"\ud800": "\udfff"})])
    assert (written_and_read(names).listed, written_and_read(names).wanted) == (names.listed, names.wanted)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{",
        "[]",
        "[" * 100_000,
        '{"\\ud800": ["a", "echo", "echo"]}',
        '{"a b": ["a", "echo", "echo"]}',
        '{"echo": ["a", "echo"]}',
        "\0",
    ],
)
def test_a_broken_file_of_names_is_a_warning(content: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "names.json"
    file.write_text(content)
    assert take_names(file) == NO_NAMES
    [said] = caplog.messages
    assert said.startswith(f"tools may get other names than before: {file} cannot be read: ")


def test_a_file_of_names_that_cannot_be_read_or_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "names.json"
    os.mkfifo(file)
    assert take_names(file) == NO_NAMES
    file.unlink()
    with file.open("w") as large:
        large.truncate(LARGEST + 1)
    assert take_names(file) == NO_NAMES
    file.unlink()
    file.mkdir()
    assert take_names(file) == NO_NAMES
    write_names(file, name_tools([Offer("git", ["log"])]))
    write_names(Path("/dev/null/names.json"), NO_NAMES)
    assert [(level, "cannot be" in said) for _, level, said in caplog.record_tuples] == [(logging.WARNING, True)] * 5


def test_names_are_kept_for_one_process_so_that_a_crash_brings_back_no_old_ones(tmp_path: Path) -> None:
    file = tmp_path / "names.json"
    write_names(file, name_tools([Offer("git", ["log"])]))
    assert take_names(file).listed == {"log": ToolRef("git", "log")}
    assert take_names(file) == NO_NAMES


def test_without_a_file_no_names_are_kept(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert take_names(tmp_path / "names.json") == NO_NAMES
    assert caplog.messages == []


def test_a_changed_alias_renames_a_listed_tool() -> None:
    before = name_tools([Offer("git", ["log"])])
    assert list(name_tools([Offer("git", ["log"], {"log": "history"})], before).listed) == ["history"]


@pytest.mark.rule("answers.tools.names.callable")
def test_each_tool_has_its_qualified_names_beside_the_listed_one() -> None:
    names = name_tools([Offer("git", ["log", "push"], {"log": "history"}, frozenset({"push"}))])
    log = ToolRef("git", "log")
    assert names.qualified == {"git__log": log, "git__history": log}


@given(offers)
def test_a_qualified_name_is_never_a_listed_one_and_names_an_allowed_tool(offers: list[Offer]) -> None:
    names = name_tools(offers)
    assert not names.qualified.keys() & names.listed.keys()
    assert set(names.qualified.values()) <= set(names.listed.values())


@given(offers)
def test_a_forbidden_tool_is_not_listed_under_any_name(offers: list[Offer]) -> None:
    names = name_tools(offers)
    assert not names.listed.keys() & names.forbidden.keys()
    assert not set(names.listed.values()).intersection(chain.from_iterable(names.forbidden.values()))


@given(st.text())
def test_a_name_is_made_legal_and_a_legal_one_stays(name: str) -> None:
    assert LEGAL.fullmatch(legal(name))
    assert legal(legal(name)) == legal(name)


@pytest.mark.rule("answers.tools.names.qualified")
def test_a_name_that_two_servers_share_is_qualified_in_both() -> None:
    names = name_tools([Offer("git", ["log", "show"]), Offer("svn", ["log"])])
    assert dict(names.listed) == {
        "show": ToolRef("git", "show"),
        "git__log": ToolRef("git", "log"),
        "svn__log": ToolRef("svn", "log"),
    }


@pytest.mark.rule("data-structures.SMCPTool.alias", "data-structures.ToolMeta.alias.meaning")
def test_a_tool_is_listed_under_its_alias() -> None:
    names = name_tools([Offer("git", ["log"], {"log": "history"}), Offer("svn", ["log"])])
    assert dict(names.listed) == {"history": ToolRef("git", "log"), "log": ToolRef("svn", "log")}


@pytest.mark.rule("computer.config.allowed", "answers.config.forbidden.original", "answers.config.forbidden.alias")
def test_forbidden_by_original_name_or_by_alias() -> None:
    names = name_tools([Offer("git", ["log", "push", "show"], {"push": "send"}, frozenset({"send", "show"}))])
    assert list(names.listed) == ["log"]
    assert {"push", "send", "show"} <= names.forbidden.keys()


def test_forbidden_names_do_not_depend_on_any_order() -> None:
    offers = [Offer(server, ["x", "x."], {}, frozenset({"x", "x."})) for server in ("a", "a.")]
    assert name_tools(offers) == name_tools(offers[::-1])


def test_tool_names_that_collide_get_a_digest() -> None:
    names = name_tools([Offer("a", ["re.ad", "re ad"]), Offer("b", ["读"])])
    assert len(names.listed) == 3
    assert names.listed["_"] == ToolRef("b", "读")
    assert all(name.startswith("a__re_ad_") for name in names.listed if name != "_")


def test_a_long_name_is_cut_and_stays_recognisable() -> None:
    first, second = "x" * 70, "x" * 71
    names = name_tools([Offer("a", [first, second])])
    assert len(names.listed) == 2
    assert all(name.startswith("x" * 50) and len(name) == 64 for name in names.listed)
