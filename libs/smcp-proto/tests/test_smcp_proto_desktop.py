"""The desktop, step by step as on the page (desktop.txt, Desktop 组织策略), and its rendering."""

from typing import Any

import pytest

from smcp_proto.desktop import MAX_WARNED_URI, Window, organize_desktop
from smcp_testing.substring import Part

HOST = "window://com.example"


def window(server: str, name: str, *texts: str, priority: object = None, fullscreen: object = None) -> Window:
    """A window with some texts, `t` where none is given."""
    resource = {
        "uri": f"{HOST}.{server}/{name}",
        "annotations": {"priority": priority},
        "_meta": {"fullscreen": fullscreen},
    }
    return Window(server, resource, [{"text": text} for text in texts or ("t",)])


def names(windows: list[Window], size: int | None = None, history: tuple[str, ...] = ()) -> list[str]:
    """The names of the windows on the desktop, each with its server."""
    shown = organize_desktop(windows, size, history).desktops
    return [text.partition("\n\n")[0].removeprefix(f"{HOST}.") for text in shown]


def messages(windows: list[Window]) -> list[str]:
    return [warning.message for warning in organize_desktop(windows, None, ()).warnings]


# -- step 1: filtering and grouping


@pytest.mark.rule("desktop.render.empty", "desktop.organize.1.empty", "answers.desktop.no_contents")
@pytest.mark.parametrize("contents", [[], (), None])
def test_a_window_without_contents_is_left_out_without_a_warning(contents: Any) -> None:
    empty = Window("a", {"uri": f"{HOST}.a/empty"}, contents)
    assert names([empty, window("a", "1")]) == ["a/1"]
    assert messages([empty]) == []


@pytest.mark.rule("desktop.uri.scheme", "desktop.organize.1.uri", "desktop.servers.windows.valid")
@pytest.mark.parametrize(
    "uri", ["dpe://h/d", "file:///x", "window://", "window:h", "", "x", "window://h/%zz", "window://h#f"]
)
def test_a_window_whose_uri_is_invalid_is_left_out_with_a_warning(uri: str) -> None:
    wrong = Window("a", {"uri": uri}, [{"text": "t"}])
    assert names([wrong, window("a", "1")]) == ["a/1"]
    (warning,) = organize_desktop([wrong], None, ()).warnings
    assert (warning.server, warning.uri, warning.message) == ("a", uri, Part("it is skipped"))


@pytest.mark.rule("desktop.organize.1.uri", "desktop.servers.windows.valid")
@pytest.mark.parametrize(
    "resource", [{}, {"uri": None}, {"uri": 7}, {"uri": ["window://h"]}, None, [], "window://h", 7]
)
def test_a_resource_without_a_uri_is_left_out_with_a_warning(resource: Any) -> None:
    (warning,) = organize_desktop([Window("a", resource, [{"text": "t"}])], None, ()).warnings
    assert (warning.uri, warning.message) == ("", Part("it is skipped"))


@pytest.mark.rule("desktop.organize.1.blobs", "desktop.practice.text")
def test_a_window_of_blobs_alone_is_left_out_with_a_warning() -> None:
    blobs = Window("a", {"uri": f"{HOST}.a/image"}, [{"blob": "AA=="}, {"blob": "AA=="}])
    assert names([blobs, window("a", "1")]) == ["a/1"]
    assert messages([blobs]) == [Part("binary contents")]


@pytest.mark.rule("desktop.organize.1.groups")
def test_the_windows_of_a_server_stand_together() -> None:
    mixed = [window("b", "1"), window("a", "1"), window("b", "2"), window("a", "2")]
    assert names(mixed) == ["a/1", "a/2", "b/1", "b/2"]


@pytest.mark.rule("desktop.uri.check.host.grouping")
def test_servers_with_the_same_host_stay_two_servers() -> None:
    shared = [
        Window("b", {"uri": "window://host/1", "_meta": {"fullscreen": True}}, [{"text": "b"}]),
        Window("a", {"uri": "window://host/1"}, [{"text": "a"}]),
        Window("a", {"uri": "window://host/2"}, [{"text": "a"}]),
    ]
    assert organize_desktop(shared, None, ()).desktops == [
        "window://host/1\n\na",
        "window://host/2\n\na",
        "window://host/1\n\nb",
    ]


# -- step 2: the order of the servers


@pytest.mark.rule("desktop.organize.2.recent")
def test_servers_used_last_come_first() -> None:
    windows = [window(server, "w") for server in ("a", "b", "c")]
    assert names(windows, history=("c", "b")) == ["b/w", "c/w", "a/w"]


@pytest.mark.rule("desktop.organize.2.recent")
def test_a_server_that_was_used_often_counts_by_its_last_use() -> None:
    windows = [window(server, "w") for server in ("a", "b", "c")]
    assert names(windows, history=("a", "c", "a", "b", "b", "c")) == ["c/w", "b/w", "a/w"]


@pytest.mark.rule("desktop.organize.2.others")
def test_servers_that_were_not_used_follow_by_name() -> None:
    windows = [window(server, "w") for server in ("d", "b", "c", "a")]
    assert names(windows, history=("c",)) == ["c/w", "a/w", "b/w", "d/w"]


def test_the_history_may_name_servers_without_windows() -> None:
    assert names([window("a", "w")], history=("gone", "a", "tools only")) == ["a/w"]


# -- step 3: the order of a server's windows


@pytest.mark.rule("desktop.annotations.priority.{scope,order}", "desktop.organize.3.order")
def test_the_highest_priority_comes_first_within_its_server_only() -> None:
    windows = [
        window("a", "low", priority=0.1),
        window("a", "high", priority=0.9),
        window("b", "highest", priority=1.0),
        window("a", "middle", priority=0.5),
    ]
    assert names(windows) == ["a/high", "a/middle", "a/low", "b/highest"]


@pytest.mark.rule("desktop.organize.3.order", "desktop.practice.priority")
def test_windows_of_one_priority_keep_the_order_of_the_list() -> None:
    windows = [window("a", name, priority=0.5) for name in "cab"]
    assert names(windows) == ["a/c", "a/a", "a/b"]


@pytest.mark.rule("desktop.metadata.check.priority", "desktop.organize.3.default", "desktop.practice.priority")
@pytest.mark.parametrize("priority", [None, 1.5, -0.1, "1", True, float("nan")])
def test_a_window_without_a_legal_priority_stands_where_zero_does(priority: object) -> None:
    windows = [
        window("a", "zero", priority=0.0),
        window("a", "odd", priority=priority),
        window("a", "some", priority=0.1),
    ]
    assert names(windows) == ["a/some", "a/zero", "a/odd"]


# -- step 4: fullscreen


@pytest.mark.rule("desktop.meta.fullscreen.effect", "desktop.organize.4.others", "desktop.practice.fullscreen")
def test_a_fullscreen_window_is_the_only_one_of_its_server() -> None:
    windows = [window("a", "1", priority=1), window("a", "full", priority=0, fullscreen=True), window("b", "1")]
    assert names(windows) == ["a/full", "b/1"]


@pytest.mark.rule("desktop.meta.fullscreen.effect", "desktop.organize.4.first")
def test_the_first_fullscreen_window_of_a_server_counts_whatever_its_priority() -> None:
    windows = [
        window("a", "first", priority=0.1, fullscreen=True),
        window("a", "important", priority=0.9, fullscreen=True),
    ]
    assert names(windows) == ["a/first"]


@pytest.mark.rule("desktop.organize.4.per_server")
def test_each_server_has_its_own_fullscreen_window() -> None:
    windows = [window("a", "f", fullscreen=True), window("a", "1"), window("b", "1"), window("b", "f", fullscreen=True)]
    assert names(windows, history=("a", "b")) == ["b/f", "a/f"]


@pytest.mark.rule("desktop.organize.flow")
def test_a_filtered_fullscreen_window_does_not_hide_the_others() -> None:
    empty = Window("a", {"uri": f"{HOST}.a/full", "_meta": {"fullscreen": True}}, [])
    assert names([empty, window("a", "1")]) == ["a/1"]


# -- step 5: cutting


@pytest.mark.rule("desktop.organize.5.zero", "desktop.organize.flow", "answers.desktop.size")
@pytest.mark.parametrize("size", [0, -1, -(10**9)])
def test_a_size_of_zero_or_less_is_an_empty_desktop_and_nothing_is_looked_at(size: int) -> None:
    made = organize_desktop([window("a", "1"), window("a", "2", priority=80)], size, ())
    assert (made.desktops, made.warnings) == ([], ())


@pytest.mark.rule("desktop.organize.5.none")
def test_without_a_size_all_windows_are_shown() -> None:
    assert len(names([window("a", str(number)) for number in range(300)])) == 300


@pytest.mark.rule("desktop.organize.5.limit")
@pytest.mark.parametrize(("size", "shown"), [(1, 1), (3, 3), (4, 4), (5, 4), (10**9, 4)])
def test_a_size_counts_over_all_servers(size: int, shown: int) -> None:
    windows = [window("a", "1"), window("a", "2"), window("b", "1"), window("b", "2")]
    assert names(windows, size) == ["a/1", "a/2", "b/1", "b/2"][:shown]


# -- rendering


@pytest.mark.rule("desktop.render.text", "data-structures.Desktop.format.text", "finder.versus.granularity")
def test_a_window_with_text_is_its_uri_an_empty_line_and_the_text() -> None:
    (text,) = organize_desktop([window("a", "w", "one\ntwo")], None, ()).desktops
    assert text == f"{HOST}.a/w\n\none\ntwo"


@pytest.mark.rule("desktop.render.texts", "data-structures.Desktop.format.text")
def test_the_texts_of_a_window_are_joined_by_an_empty_line() -> None:
    (text,) = organize_desktop([window("a", "w", "one", "two", "", "three")], None, ()).desktops
    assert text == f"{HOST}.a/w\n\none\n\ntwo\n\n\n\nthree"


@pytest.mark.rule("desktop.render.no_text", "answers.desktop.empty_text", "data-structures.Desktop.format.empty")
@pytest.mark.parametrize("texts", [("",), ("", "")])
def test_a_window_with_empty_text_is_its_uri_alone(texts: tuple[str, ...]) -> None:
    assert organize_desktop([window("a", "w", *texts)], None, ()).desktops == [f"{HOST}.a/w"]


@pytest.mark.rule("desktop.render.blob", "answers.desktop.blob")
def test_a_blob_beside_text_is_skipped_with_a_warning() -> None:
    both = Window("a", {"uri": f"{HOST}.a/w"}, [{"text": "one"}, {"blob": "AA=="}, {"text": "two"}])
    made = organize_desktop([both], None, ())
    assert made.desktops == [f"{HOST}.a/w\n\none\n\ntwo"]
    assert [(warning.uri, warning.message) for warning in made.warnings] == [(f"{HOST}.a/w", Part("binary contents"))]


@pytest.mark.parametrize("item", [{}, {"text": 7}, {"text": None}, {"blob": None}, None, 7, "t", ["t"]])
def test_contents_that_are_neither_text_nor_blob_are_skipped_with_a_warning(item: Any) -> None:
    odd = Window("a", {"uri": f"{HOST}.a/w"}, [item, {"text": "t"}])
    assert organize_desktop([odd], None, ()).desktops == [f"{HOST}.a/w\n\nt"]
    assert messages([odd]) == [Part("contents")]
    assert names([Window("a", {"uri": f"{HOST}.a/w"}, [item])]) == []


@pytest.mark.parametrize("contents", [{"text": "t"}, "text", 7, True])
def test_contents_that_are_no_list_are_left_out_with_a_warning(contents: Any) -> None:
    odd = Window("a", {"uri": f"{HOST}.a/w"}, contents)
    assert organize_desktop([odd], None, ()).desktops == []
    assert messages([odd]) == [Part("contents")]


@pytest.mark.rule("desktop.{uri.check.query,render.identity,organize.3.source,uri.identity}", "answers.desktop.uri")
@pytest.mark.parametrize("query", ["?priority=80", "?", "?a=?b"])
def test_a_query_is_dropped_with_a_warning_and_host_and_path_are_shown(query: str) -> None:
    asking = Window("a", {"uri": f"{HOST}.a/c%2Fd{query}"}, [{"text": "t"}])
    made = organize_desktop([asking], None, ())
    assert made.desktops == [f"{HOST}.a/c%2Fd\n\nt"]
    (warning,) = made.warnings
    assert (warning.uri, warning.message) == (f"{HOST}.a/c%2Fd{query}", Part("query: "))


@pytest.mark.rule("desktop.uri.identity", "desktop.practice.query")
def test_no_layout_is_read_from_a_uri() -> None:
    asking = Window("a", {"uri": f"{HOST}.a/2?priority=1&fullscreen=true"}, [{"text": "t"}])
    assert names([window("a", "1"), asking, window("a", "3", priority=0.1)]) == ["a/3", "a/1", "a/2"]


@pytest.mark.rule("desktop.render.example")
def test_the_example_of_the_page() -> None:
    windows = [
        Window("logger", {"uri": "window://com.example.logger"}, [{"text": "[2026-02-14 10:30:01] INFO: 操作完成"}]),
        Window("browser", {"uri": "window://com.example.browser/main"}, [{"text": "<html>当前页面内容...</html>"}]),
    ]
    assert organize_desktop(windows, None, ["logger", "browser"]).desktops == [
        "window://com.example.browser/main\n\n<html>当前页面内容...</html>",
        "window://com.example.logger\n\n[2026-02-14 10:30:01] INFO: 操作完成",
    ]


# -- warnings


def test_warnings_cover_all_windows_in_order_including_cut_ones() -> None:
    windows = [
        window("b", "1", priority=2),
        window("a", "1"),
        window("a", "2", fullscreen="yes"),
        window("b", "2", priority="x"),
    ]
    made = organize_desktop(windows, 1, ())
    assert [(warning.server, warning.message) for warning in made.warnings] == [
        ("b", Part("priority is not from 0 to 1")),
        ("a", Part("fullscreen is ")),
        ("b", Part("priority is a")),
    ]


@pytest.mark.parametrize(
    ("resource", "contents", "uri", "message"),
    [
        ({"uri": 7}, [{"text": "t"}], "", "its URI is a number; it is skipped"),
        ({"uri": "x:"}, [{"text": "t"}], "x:", "scheme: not a window:// URI; it is skipped"),
        ({"uri": "window://h?a"}, [{"text": "t"}], "window://h?a", "query: a window URI carries none; it was dropped"),
        ({"uri": "window://h"}, "t", "window://h", "its contents are a string, no list; it is skipped"),
        ({"uri": "window://h"}, [{"blob": ""}], "window://h", "binary contents cannot be shown; they are skipped"),
        ({"uri": "window://h"}, [{}], "window://h", "contents that are neither text nor blob are skipped"),
    ],
)
def test_a_warning_names_the_server_and_the_window_and_says_what_is_wrong(
    resource: Any, contents: Any, uri: str, message: str
) -> None:
    (warning,) = organize_desktop([Window("a", resource, contents)], None, ()).warnings
    assert (warning.server, warning.uri, warning.message) == ("a", uri, message)


def test_a_long_uri_is_truncated_in_a_warning() -> None:
    long = Window("a", {"uri": "window://" + "x" * 100_000}, [{"text": "t"}])
    (warning,) = organize_desktop([long], None, ()).warnings
    assert warning.uri == "window://".ljust(MAX_WARNED_URI, "x")
    assert len(warning.message) < 200


# -- beside the page


def test_a_desktop_names_the_server_of_each_window() -> None:
    windows = [window("b", "1"), window("a", "low", priority=0.1), window("a", "high", priority=0.9)]
    shown = organize_desktop([*windows, Window("a", {"uri": "file:///x"}, [{"text": "t"}])], 2, ("b", "a"))
    assert shown.sources == (("a", f"{HOST}.a/high"), ("a", f"{HOST}.a/low"))
    assert organize_desktop(windows, 0, ()).sources == ()
