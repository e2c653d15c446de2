"""The server of a URI, found by its list, its host or its templates; and the order of several."""

from typing import Any

import pytest

from smcp_computer.resources.index import Listing
from smcp_testing.computer_office import world
from smcp_testing.mcp_servers import configs
from smcp_testing.resource_agent import ResourceAgent


def listing(*uris: str) -> Listing:
    return Listing("here", [{"uri": uri} for uri in uris])


@pytest.mark.rule("answers.resources.windows")
@pytest.mark.parametrize(
    ("asked", "listed"),
    [
        ("window://h/a", "window://h/a?priority=80"),
        ("window://h/a?priority=80", "window://h/a?priority=80"),
        ("window://h/a?priority=1", "window://h/a?priority=80"),
        ("WINDOW://h/%61", "window://h/a?priority=80"),
        ("window://h/b?x=1", "window://h/b"),
        ("window://h/c%2fd", "window://h/c%2Fd"),
        ("window://h/d", None),
        ("window://%zz", None),
    ],
)
def test_a_window_is_found_by_host_and_path_whatever_its_query(asked: str, listed: str | None) -> None:
    here = listing("window://h/a?priority=80", "window://h/a?priority=9", "window://h/b", "window://h/c%2Fd")
    assert here.find(asked) == listed


@pytest.mark.rule("answers.resources.read.document")
@pytest.mark.parametrize(
    ("uri", "found"),
    [
        ("dpe://h/d1", True),
        ("dpe://h/d1?depth=pages", True),
        ("dpe://h/d1/pages/0", True),
        ("dpe://h/d1/elements/e?format=text", True),
        ("dpe://h/unknown", False),
        ("dpe://h", False),
        ("note://x?y=1", True),
        ("note://x", False),
        ("", False),
        (":", False),
    ],
)
def test_a_part_of_a_listed_document_is_found_and_else_only_what_is_listed(uri: str, found: bool) -> None:
    assert listing("dpe://h/d1", "note://x?y=1").find(uri) == (uri if found else None)


def test_a_listing_knows_the_hosts_of_its_windows_and_documents() -> None:
    assert listing("dpe://docs/d1", "window://view/main", "file:///a", "dpe://", "dpe:x").hosts == {"docs", "view"}


@pytest.mark.rule("computer.resources.computer.read", "answers.resources.read.host")
async def test_a_uri_that_nobody_lists_is_read_by_its_host_or_a_template_that_begins_like_it(nats_url: str) -> None:
    async with world(
        nats_url,
        docs=configs.context("2025", host="com.docs", windows=1),
        notes=configs.context("2026", host="com.notes", windows=1),
    ) as here:
        await here.tell("notes", "put_template", name="notes", template="note://{id}")
        alice = ResourceAgent(here)

        async def server_of(uri: str) -> Any:
            return (await alice.ask("resources/read", uri=uri)).get("serverId")

        assert await server_of("window://com.docs/unlisted") == "docs"
        assert await server_of("window://com.notes/unlisted") == "notes"
        assert await server_of("note://7") == "notes"
        assert await server_of("other://7") is None
