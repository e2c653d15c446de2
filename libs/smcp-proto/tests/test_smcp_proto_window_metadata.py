"""Metadata of an MCP server's windows, row by row of the tables (desktop.txt, Window 资源元数据)."""

from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.desktop import read_metadata
from smcp_testing.substring import Part

URI = "window://com.example/w"


class Metadata(NamedTuple):
    priority: float = 0.0
    fullscreen: bool = False


def read_resource(resource: dict[str, Any]) -> tuple[Metadata, list[str]]:
    warnings: list[str] = []
    return Metadata(*read_metadata(resource, warnings.append)), warnings


def read(annotations: object = None, meta: object = None) -> tuple[Metadata, list[str]]:
    return read_resource({"uri": URI, "annotations": annotations, "_meta": meta})


@pytest.mark.rule(
    "desktop.{annotations.priority.default,annotations.audience,meta.fullscreen.default}",
    "desktop.{metadata.check.missing,annotations.audience.recommended}",
)
@pytest.mark.parametrize(
    ("resource"),
    [
        {},
        {"annotations": None, "_meta": None},
        {"annotations": {}, "_meta": {}},
        {"annotations": {"priority": None, "audience": None, "lastModified": None}, "_meta": {"fullscreen": None}},
    ],
)
def test_a_missing_value_and_null_are_the_same_and_no_warning(resource: dict[str, Any]) -> None:
    assert read_resource(resource) == (Metadata(), [])


@pytest.mark.rule("desktop.annotations.priority.type")
@pytest.mark.parametrize("priority", [0.0, 0.3, 0.5, 1.0, 5e-324])
def test_a_priority_from_zero_to_one_is_taken(priority: float) -> None:
    assert read({"priority": priority}) == (Metadata(priority=priority), [])


@pytest.mark.rule("answers.desktop.priority.integer")
@pytest.mark.parametrize("priority", [0, 1])
def test_an_integer_counts_as_a_float(priority: int) -> None:
    metadata, warnings = read({"priority": priority})
    assert (metadata.priority, type(metadata.priority), warnings) == (float(priority), float, [])


@pytest.mark.rule("desktop.metadata.check.priority", "answers.desktop.priority.type")
@pytest.mark.parametrize(
    "priority", [1.0000001, -0.0000001, 2, -1, 80, 10**400, -(10**400), float("inf"), float("nan")]
)
def test_a_priority_out_of_range_is_a_warning_and_zero(priority: float) -> None:
    assert read({"priority": priority}) == (Metadata(priority=0.0), [Part("priority is not from 0 to 1")])


@pytest.mark.rule("desktop.annotations.priority.type", "answers.desktop.priority.type")
@pytest.mark.parametrize("priority", [True, False, "0.5", "", [0.5], {"value": 0.5}])
def test_a_priority_that_is_no_number_is_a_warning_and_zero(priority: object) -> None:
    assert read({"priority": priority}) == (Metadata(priority=0.0), [Part("priority is a")])


@pytest.mark.rule("desktop.meta.fullscreen.type")
@pytest.mark.parametrize("fullscreen", [True, False])
def test_fullscreen_is_a_boolean(fullscreen: bool) -> None:
    assert read(meta={"fullscreen": fullscreen}) == (Metadata(fullscreen=fullscreen), [])


@pytest.mark.rule("desktop.metadata.check.fullscreen")
@pytest.mark.parametrize("fullscreen", [1, 0, 1.0, "true", "", [True], {"on": True}])
def test_fullscreen_of_another_type_is_a_warning_and_false(fullscreen: object) -> None:
    assert read(meta={"fullscreen": fullscreen}) == (Metadata(fullscreen=False), [Part("fullscreen is ")])


@pytest.mark.rule("desktop.annotations.audience", "desktop.annotations.audience.recommended")
@pytest.mark.parametrize("audience", [["assistant"], ["user", "assistant"], ["assistant", "user"]])
def test_an_audience_with_the_assistant_is_no_warning(audience: list[str]) -> None:
    assert read({"audience": audience, "priority": 0.5}) == (Metadata(priority=0.5), [])


@pytest.mark.rule("desktop.annotations.audience.user", "desktop.metadata.check.audience", "desktop.practice.audience")
@pytest.mark.parametrize("audience", [["user"], []])
def test_an_audience_without_the_assistant_is_a_warning_and_changes_nothing(audience: list[str]) -> None:
    assert read({"audience": audience, "priority": 0.5}) == (
        Metadata(priority=0.5),
        [Part("does not name the assistant")],
    )


@pytest.mark.rule("desktop.annotations.audience", "desktop.metadata.check.annotations")
@pytest.mark.parametrize(
    "audience", ["assistant", ["assistant", 7], ["robot"], ["assistant", "robot"], {"assistant": 1}, 7]
)
def test_an_audience_that_is_none_of_mcp_is_a_warning_and_changes_nothing(audience: object) -> None:
    assert read({"audience": audience, "priority": 0.5}) == (Metadata(priority=0.5), [Part("audience is not a list")])


@pytest.mark.rule("desktop.metadata.division")
def test_misplaced_window_metadata_are_ignored() -> None:
    annotations, meta = {"fullscreen": True}, {"priority": 0.9, "audience": ["user"], "lastModified": "x"}
    assert read(annotations, meta) == (Metadata(priority=0.0, fullscreen=False), [])
    assert read_resource({"uri": URI, **annotations, **meta}) == (Metadata(), [])


@pytest.mark.rule("desktop.annotations.last_modified")
def test_last_modified_does_not_count() -> None:
    assert read({"lastModified": "2026-01-15T08:30:00Z", "priority": 0.5}) == (Metadata(priority=0.5), [])


@pytest.mark.rule("desktop.annotations.last_modified", "desktop.metadata.check.annotations")
@pytest.mark.parametrize(
    ("last_modified", "message"),
    [
        (1768465800, Part("lastModified is a")),
        (["2026-01-15T08:30:00Z"], Part("lastModified is a")),
        ("yesterday", Part("not an ISO 8601 instant")),
        ("", Part("not an ISO 8601 instant")),
    ],
)
def test_a_last_modified_that_is_no_instant_is_a_warning(last_modified: object, message: str) -> None:
    assert read({"lastModified": last_modified}) == (Metadata(), [message])


@pytest.mark.rule("desktop.metadata.check.annotations")
@pytest.mark.parametrize("value", ["x", 7, True, [], ["priority"]])
def test_annotations_and_meta_that_are_no_objects_are_a_warning_and_count_as_missing(value: object) -> None:
    assert read(annotations=value) == (Metadata(), [Part("annotations is ")])
    assert read(meta=value) == (Metadata(), [Part("_meta is ")])


@pytest.mark.parametrize(
    ("resource", "message"),
    [
        ({"annotations": []}, "annotations is an array, not an object; it counts as missing"),
        ({"_meta": "x"}, "_meta is a string, not an object; it counts as missing"),
        ({"annotations": {"priority": True}}, "priority is a boolean, not a number; it counts as 0.0"),
        ({"annotations": {"priority": 2}}, "priority is not from 0 to 1; it counts as 0.0"),
        ({"_meta": {"fullscreen": {}}}, "fullscreen is an object, not a boolean; it counts as false"),
        ({"annotations": {"audience": 1}}, "audience is not a list of user and assistant; the window is kept"),
        ({"annotations": {"audience": []}}, "audience does not name the assistant; the window is kept"),
        ({"annotations": {"lastModified": 1.5}}, "lastModified is a number, not a string"),
        ({"annotations": {"lastModified": "x"}}, "lastModified is not an ISO 8601 instant"),
    ],
)
def test_a_warning_says_what_is_wrong_and_what_counts_instead(resource: dict[str, Any], message: str) -> None:
    assert read_resource({"uri": URI, **resource})[1] == [message]


@pytest.mark.rule("answers.desktop.tolerance")
def test_one_wrong_value_leaves_the_others_as_they_are() -> None:
    metadata, warnings = read({"priority": "high", "audience": ["user"], "lastModified": 1}, {"fullscreen": True})
    assert metadata == Metadata(priority=0.0, fullscreen=True)
    assert warnings == [Part("priority is a"), Part("does not name the assistant"), Part("lastModified is a")]


@pytest.mark.rule("desktop.metadata.example")
def test_the_example_of_the_page() -> None:
    annotations = {"priority": 0.8, "audience": ["assistant"], "lastModified": "2026-01-15T08:30:00Z"}
    assert read(annotations, {"fullscreen": True}) == (Metadata(priority=0.8, fullscreen=True), [])


@pytest.mark.rule("desktop.metadata.check.priority")
@given(st.floats() | st.integers() | st.booleans())
def test_any_priority_ends_between_zero_and_one(priority: float) -> None:
    metadata, warnings = read({"priority": priority})
    assert 0.0 <= metadata.priority <= 1.0
    assert bool(warnings) == (isinstance(priority, bool) or not 0 <= priority <= 1)
