from base64 import b64encode
from typing import Any

import pytest

from smcp_agent.errors import BadReply
from smcp_agent.results import ResourceContents, resource_contents

DOCUMENT = "dpe://host/doc"
FILE = "file:///a"


def read(uri: str, *contents: dict[str, Any]) -> ResourceContents:
    return resource_contents(uri, {"contents": [{"uri": uri, **each} for each in contents]})


def text(text: str, mime_type: str | None = None) -> dict[str, Any]:
    return {"text": text} | ({} if mime_type is None else {"mimeType": mime_type})


def blob(data: bytes) -> dict[str, Any]:
    return {"blob": b64encode(data).decode(), "mimeType": "image/png"}


@pytest.mark.rule("answers.finder.read", "finder.server.content.json")
@pytest.mark.parametrize(
    "mime_type", ["application/json", "Application/JSON; charset=utf-8", "application/dpe+json", None]
)
def test_json_of_a_document_is_parsed(mime_type: str | None) -> None:
    assert read(DOCUMENT, text('{"title": "深"}', mime_type)).value() == {"title": "深"}
    assert read("DPE://host/doc", text('{"title": "深"}', mime_type)).value() == {"title": "深"}


@pytest.mark.rule("answers.finder.read")
def test_text_that_is_not_a_json_document_stays_text() -> None:
    assert read(FILE, text('{"a": 1}', "application/json")).value() == '{"a": 1}'
    assert read(DOCUMENT, text('{"a": 1}', "text/plain")).value() == '{"a": 1}'
    assert read(DOCUMENT, text("no json, and no word of what it is")).value() == "no json, and no word of what it is"
    assert read(DOCUMENT, text("# A page", "text/markdown")).value() == "# A page"


@pytest.mark.parametrize("said", ["{", "", "[" * 100_000])
def test_the_error_for_invalid_json_names_the_resource(said: str) -> None:
    with pytest.raises(BadReply, match="dpe://host/doc is not JSON"):
        read(DOCUMENT, text(said, "application/json")).value()


def test_text_of_several_contents_is_joined_and_goes_before_bytes() -> None:
    mixed = read(FILE, text("a"), blob(b"\x00"), text("b"))
    assert (mixed.text, mixed.binary, mixed.value()) == ("a\nb", False, "a\nb")
    assert mixed.blob() == b"\x00"
    assert read(FILE).value() == ""


@pytest.mark.rule("answers.finder.read")
def test_bytes_come_as_bytes() -> None:
    picture = read(FILE, blob(b"\x89PNG\x00\xff"))
    assert (picture.binary, picture.value()) == (True, b"\x89PNG\x00\xff")
    assert picture.contents[0].mime_type == "image/png"
    assert read(DOCUMENT, blob(b"\x00")).value() == b"\x00"


def test_the_error_for_invalid_base64_names_the_resource() -> None:
    with pytest.raises(BadReply, match="file:///a is not in base64"):
        read(FILE, {"blob": "a?"}).value()
    several: list[list[dict[str, Any]]] = [[blob(b"1"), blob(b"2")], [{}]]
    for contents in several:
        with pytest.raises(BadReply, match="binary contents, not one"):
            read(FILE, *contents).value()


def test_a_malformed_result_of_a_read_is_a_bad_reply() -> None:
    results: list[dict[str, Any]] = [
        {},
        {"contents": {}},
        {"contents": [{"text": "no uri"}]},
        {"contents": [{"uri": FILE, "text": 1}]},
    ]
    for result in results:
        with pytest.raises(BadReply):
            resource_contents(FILE, result)


def test_the_raw_reply_is_kept_whole() -> None:
    result = {"contents": [{"uri": FILE, "text": "a", "_meta": {"x": 1}}], "_meta": {"y": 2}}
    assert resource_contents(FILE, result).raw == result
