import pytest

from smcp_agent.errors import BadReply
from smcp_agent.results import (
    AudioContent,
    CallResult,
    ImageContent,
    LinkContent,
    OtherContent,
    ResourceContent,
    TextContent,
    call_result,
)


def result_of(**reply: object) -> CallResult:
    return call_result(dict(reply), req_id="r", trace_id="t", duration_s=0.5)


def test_known_contents_are_typed_and_unknown_ones_kept() -> None:
    result = result_of(
        content=[
            {"type": "text", "text": "hello"},
            {"type": "image", "data": "AAAA", "mimeType": "image/png"},
            {"type": "audio", "data": "AAAA", "mimeType": "audio/wav"},
            {"type": "resource", "resource": {"uri": "file:///x", "mimeType": "text/plain", "text": "inside"}},
            {"type": "resource", "resource": {"uri": "file:///y", "blob": "AAAA"}},
            {"type": "resource_link", "uri": "file:///z", "name": "z"},
            {"type": "hologram", "depth": 3},
            {"type": "text"},
        ]
    )
    assert result.content == (
        TextContent("hello"),
        ImageContent("AAAA", "image/png"),
        AudioContent("AAAA", "audio/wav"),
        ResourceContent("file:///x", "text/plain", text="inside"),
        ResourceContent("file:///y", blob="AAAA"),
        LinkContent("file:///z", "z"),
        OtherContent({"type": "hologram", "depth": 3}),
        OtherContent({"type": "text"}),
    )
    assert result.text == "hello\ninside"


def test_structured_content_meta_and_the_raw_reply_are_there() -> None:
    reply = {"content": [], "structuredContent": {"sum": 3}, "isError": True, "meta": {"k": 1}, "later": 2}
    result = result_of(**reply)
    assert (result.structured_content, result.is_error, result.meta) == ({"sum": 3}, True, {"k": 1})
    assert result.raw == reply
    assert (result.req_id, result.trace_id, result.duration_s) == ("r", "t", 0.5)


@pytest.mark.parametrize(
    ("key", "field"),
    [("a2c_timeout", "timed_out"), ("a2c_cancelled", "cancelled"), ("a2c_result_expired", "expired")],
)
def test_the_meta_says_why_there_is_no_result_of_the_tool(key: str, field: str) -> None:
    assert getattr(result_of(content=[], isError=True, meta={key: True}), field) is True
    assert getattr(result_of(content=[], isError=True, meta={key: "yes"}), field) is False
    assert getattr(result_of(content=[]), field) is False


def test_a_reply_that_is_no_result_is_a_bad_reply() -> None:
    with pytest.raises(BadReply):
        result_of(content="text")
