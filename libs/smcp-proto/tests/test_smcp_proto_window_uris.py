"""window:// URIs, by the rules of desktop.txt."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.uris import WindowUri, parse_window_uri

nearly = st.text("window:/?#%2Fc@.[] \x00é中", max_size=40).map(lambda tail: "window://" + tail)


@given(st.text(max_size=60) | nearly)
def test_any_text_is_read_or_refused_with_a_value_error(text: str) -> None:
    try:
        assert parse_window_uri(text).host
    except ValueError:
        return


@pytest.mark.rule("desktop.uri.{path,path.encoding,check.path,example.many,example.none,example.special,host.style}")
@pytest.mark.parametrize(
    ("text", "host", "path"),
    [
        ("window://com.example.browser/main/tab1", "com.example.browser", ("main", "tab1")),
        ("window://com.example.logger", "com.example.logger", ()),
        ("window://com.example.logger/", "com.example.logger", ()),
        ("window://com.example.editor/src%2Fmain/file%20name", "com.example.editor", ("src/main", "file name")),
        ("window://com.example.editor/c%2Fd", "com.example.editor", ("c/d",)),
        ("window://com.example.editor/file name", "com.example.editor", ("file name",)),
        ("window://编辑器/窗口", "编辑器", ("窗口",)),
        ("window://%E7%BC%96/a", "编", ("a",)),
        ("WINDOW://host/a", "host", ("a",)),
        ("window://host/a/", "host", ("a", "")),
        ("window://host/a//b", "host", ("a", "", "b")),
        ("window://host/../a", "host", ("..", "a")),
    ],
)
def test_a_window_uri_is_read(text: str, host: str, path: tuple[str, ...]) -> None:
    assert parse_window_uri(text) == WindowUri(host, path)


@pytest.mark.rule("desktop.uri.check.query")
@pytest.mark.parametrize("query", ["?priority=80", "?", "?fullscreen=true&priority=1"])
def test_a_query_does_not_count(query: str) -> None:
    uri = parse_window_uri(f"window://com.example.browser/main{query}")
    assert uri == WindowUri("com.example.browser", ("main",))


@pytest.mark.rule("desktop.uri.scheme", "desktop.uri.host", "desktop.uri.check.scheme", "desktop.uri.check.host")
@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "scheme"),
        ("com.example/main", "scheme"),
        ("dpe://com.example/main", "scheme"),
        ("window:com.example", "scheme"),
        ("window:///main", "host"),
        ("window://", "host"),
        ("window://user@host/a", "host"),
        ("window://host:80/a", "host"),
        ("window://[::1]/a", "host"),
        ("window://a b/c", "host"),
        ("window://a%00/c", "host"),
        ("window://host/a%zz", "path"),
        ("window://host/a%2", "path"),
        ("window://host/%FF", "path"),
        ("window://host/%0A", "path"),
        ("window://host/a\nb", "path"),
        ("window://host/\ud800", "path"),
        ("window://host/a#top", "fragment"),
        ("window://" + "a" * 8192, "uri"),
    ],
)
def test_a_refusal_names_the_part(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=f"^{part}: "):
        parse_window_uri(text)
