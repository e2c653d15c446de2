"""Properties of any desktop (desktop.txt, Desktop 组织策略)."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.desktop import MAX_WARNED_URI, UNREAD, Window, is_certain, organize_desktop
from smcp_proto.uris import parse_window_uri

HOST = "window://com.example"

servers = st.sampled_from(["a", "b", "文档", "Z"])
histories = st.lists(servers | st.just("gone"), max_size=6)
priorities = st.sampled_from([None, 0, 0.25, 0.5, 1, 2, "x"])
windows_of_any_kind = st.lists(
    st.builds(
        lambda server, uri, priority, fullscreen, contents: Window(
            server, {"uri": uri, "annotations": {"priority": priority}, "_meta": {"fullscreen": fullscreen}}, contents
        ),
        servers,
        st.sampled_from([f"{HOST}/{name}" for name in "abcdef"] + ["file:///x", f"{HOST}?q"]),
        priorities,
        st.sampled_from([None, False, False, True, 1]),
        st.sampled_from([[], [{"text": ""}], [{"text": "t"}], [{"blob": "AA=="}], [{"text": "u"}, {"blob": "AA=="}]]),
    ),
    max_size=12,
)


def numbered(windows: list[Window]) -> list[Window]:
    """The same windows, each distinguishable from the others."""
    return [
        Window(each.server, {**each.resource, "uri": f"{each.resource['uri']}/{index}"}, each.contents)
        for index, each in enumerate(windows)
    ]


@pytest.mark.rule("desktop.organize.5.limit")
@given(windows_of_any_kind, histories, st.integers(0, 13))
def test_a_smaller_desktop_is_a_prefix_of_the_full_one(windows: list[Window], history: list[str], size: int) -> None:
    whole = organize_desktop(windows, None, history).desktops
    assert organize_desktop(windows, size, history).desktops == whole[:size]


@pytest.mark.rule("answers.desktop.at_once")
@given(windows_of_any_kind, histories, st.none() | st.integers(0, 5), st.data())
def test_a_desktop_is_certain_where_no_content_of_the_unread_windows_changes_it(
    windows: list[Window], history: list[str], size: int | None, data: st.DataObject
) -> None:
    windows = numbered(windows)
    unread = data.draw(st.sets(st.sampled_from(range(len(windows))))) if windows else set()

    def read(number: int, contents: list[dict[str, str]]) -> Window:
        return replace(windows[number], contents=contents) if number in unread else windows[number]

    def desktop(contents: dict[int, list[dict[str, str]]]) -> list[str]:
        return organize_desktop([read(at, contents.get(at, [])) for at in range(len(windows))], size, history).desktops

    none, every = desktop({}), desktop({number: [{"text": "x"}] for number in unread})
    turned_out = st.sampled_from([[], [{"text": "x"}], [{"blob": "AA=="}]])
    some = desktop({number: data.draw(turned_out) for number in unread})
    waiting = [replace(each, contents=UNREAD) if at in unread else each for at, each in enumerate(windows)]
    if is_certain(waiting, size, history):
        assert none == some == every
    else:
        assert none != every


def oracle(windows: list[Window], history: list[str]) -> list[str]:
    """Steps 2 to 4 of the page, written as it says them, over windows that pass step 1; their URIs.

    No sorting: of what is left the one that comes first is looked for, again and again.
    """
    recent: list[str] = []
    for server in history[::-1]:  # step 2
        if server not in recent:
            recent.append(server)
    names = {each.server for each in windows}
    for server in recent:
        names.discard(server)
    while names:
        recent.append(min(names))
        names.remove(min(names))
    shown: list[str] = []
    for server in recent:
        own = [each for each in windows if each.server == server]
        full = [each for each in own if each.resource["_meta"]["fullscreen"] is True]
        while own and not full:  # step 3
            first = own[0]
            for each in own[1:]:
                if weight(each) > weight(first):
                    first = each
            own.remove(first)
            shown.append(first.resource["uri"])
        if full:  # step 4
            shown.append(full[0].resource["uri"])
    return shown


def weight(window: Window) -> float:
    """The priority that counts: 0 where it is missing, no number, or out of 0 to 1."""
    priority = window.resource["annotations"]["priority"]
    return float(priority) if priority in (0, 0.25, 0.5, 1) else 0.0


@pytest.mark.rule("desktop.organize.2.recent", "desktop.organize.2.others", "desktop.organize.3.order")
@given(windows_of_any_kind, histories)
def test_servers_and_windows_are_ordered_by_the_steps_of_the_page(windows: list[Window], history: list[str]) -> None:
    windows = [each for each in numbered(windows) if each.resource["uri"].startswith(f"{HOST}/")]
    filled = [each for each in windows if any("text" in item for item in each.contents)]
    shown = organize_desktop(windows, None, history).desktops
    assert [text.partition("\n\n")[0] for text in shown] == oracle(filled, history)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=10) | st.just(f"{HOST}/w"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["uri", "annotations", "_meta", "priority", "audience", "lastModified", "fullscreen", "text", "blob"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)
resources = (
    st.fixed_dictionaries({"uri": st.just(f"{HOST}/w"), "annotations": json_values, "_meta": json_values}) | json_values
)


@pytest.mark.rule("answers.desktop.tolerance", "desktop.organize.input")
@given(st.lists(st.builds(Window, servers, resources, json_values), max_size=4))
def test_nothing_that_a_server_sends_raises(windows: list[Window]) -> None:
    made = organize_desktop(windows, None, ())
    assert all(text.startswith("window://") for text in made.desktops)
    assert all(warning.message and len(warning.uri) <= MAX_WARNED_URI for warning in made.warnings)


@pytest.mark.rule("desktop.uri.check.scheme")
@given(
    st.text("window:/?#%2Fc7f@.~_- \x00é中", max_size=30).map(lambda tail: "window://" + tail) | st.text(max_size=30)
)
def test_a_window_is_left_out_exactly_when_its_uri_is_invalid(uri: str) -> None:
    made = organize_desktop([Window("a", {"uri": uri}, [{"text": ""}])], None, ())
    try:
        parsed = parse_window_uri(uri)
    except ValueError:
        assert made.desktops == []
        return
    (shown,) = made.desktops
    assert parse_window_uri(shown) == parsed
    assert len(made.warnings) == ("?" in uri)
