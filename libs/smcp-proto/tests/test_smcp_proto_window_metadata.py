"""What a server says of its windows, row by row of the tables (desktop.txt, Window 资源元数据)."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto.desktop import WindowMetadata, read_metadata, usual_metadata
from smcp_proto.warnings import Rule

URI = "window://com.example/w"


def read(annotations: object = None, meta: object = None) -> tuple[WindowMetadata, list[Rule]]:
    metadata, found = read_metadata("s", {"uri": URI, "annotations": annotations, "_meta": meta})
    assert all((each.server, each.uri) == ("s", URI) for each in found)
    return metadata, [each.rule for each in found]


@pytest.mark.rule(
    "desktop.annotations.priority.default",
    "desktop.annotations.audience",
    "desktop.meta.fullscreen.default",
    "desktop.metadata.check.missing",
    "desktop.annotations.audience.recommended",
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
    assert read_metadata("s", resource) == (WindowMetadata(priority=0.0, fullscreen=False), ())


@pytest.mark.rule("desktop.annotations.priority.type")
@pytest.mark.parametrize("priority", [0.0, 0.3, 0.5, 1.0, 5e-324])
def test_a_priority_from_zero_to_one_is_taken(priority: float) -> None:
    assert read({"priority": priority}) == (WindowMetadata(priority=priority), [])


@pytest.mark.rule("answers.desktop.priority.integer")
@pytest.mark.parametrize("priority", [0, 1])
def test_an_integer_counts_as_a_float(priority: int) -> None:
    metadata, rules = read({"priority": priority})
    assert (metadata.priority, type(metadata.priority), rules) == (float(priority), float, [])


@pytest.mark.rule("desktop.metadata.check.priority", "answers.desktop.priority.type")
@pytest.mark.parametrize(
    "priority", [1.0000001, -0.0000001, 2, -1, 80, 10**400, -(10**400), float("inf"), float("nan")]
)
def test_a_priority_out_of_range_is_a_warning_and_zero(priority: float) -> None:
    assert read({"priority": priority}) == (WindowMetadata(priority=0.0), [Rule.PRIORITY_RANGE])


@pytest.mark.rule("desktop.annotations.priority.type", "answers.desktop.priority.type")
@pytest.mark.parametrize("priority", [True, False, "0.5", "", [0.5], {"value": 0.5}])
def test_a_priority_that_is_no_number_is_a_warning_and_zero(priority: object) -> None:
    assert read({"priority": priority}) == (WindowMetadata(priority=0.0), [Rule.PRIORITY_TYPE])


@pytest.mark.rule("desktop.meta.fullscreen.type")
@pytest.mark.parametrize("fullscreen", [True, False])
def test_fullscreen_is_a_boolean(fullscreen: bool) -> None:
    assert read(meta={"fullscreen": fullscreen}) == (WindowMetadata(fullscreen=fullscreen), [])


@pytest.mark.rule("desktop.metadata.check.fullscreen")
@pytest.mark.parametrize("fullscreen", [1, 0, 1.0, "true", "", [True], {"on": True}])
def test_fullscreen_of_another_type_is_a_warning_and_false(fullscreen: object) -> None:
    assert read(meta={"fullscreen": fullscreen}) == (WindowMetadata(fullscreen=False), [Rule.FULLSCREEN_TYPE])


@pytest.mark.rule("desktop.annotations.audience", "desktop.annotations.audience.recommended")
@pytest.mark.parametrize("audience", [["assistant"], ["user", "assistant"], ["assistant", "user"]])
def test_an_audience_with_the_assistant_is_no_warning(audience: list[str]) -> None:
    assert read({"audience": audience, "priority": 0.5}) == (WindowMetadata(priority=0.5), [])


@pytest.mark.rule("desktop.annotations.audience.user", "desktop.metadata.check.audience", "desktop.practice.audience")
@pytest.mark.parametrize("audience", [["user"], []])
def test_an_audience_without_the_assistant_is_a_warning_and_changes_nothing(audience: list[str]) -> None:
    assert read({"audience": audience, "priority": 0.5}) == (
        WindowMetadata(priority=0.5),
        [Rule.AUDIENCE_WITHOUT_ASSISTANT],
    )


@pytest.mark.rule("desktop.annotations.audience", "desktop.metadata.check.annotations")
@pytest.mark.parametrize(
    "audience", ["assistant", ["assistant", 7], ["robot"], ["assistant", "robot"], {"assistant": 1}, 7]
)
def test_an_audience_that_is_none_of_mcp_is_a_warning_and_changes_nothing(audience: object) -> None:
    assert read({"audience": audience, "priority": 0.5}) == (WindowMetadata(priority=0.5), [Rule.AUDIENCE_TYPE])


@pytest.mark.rule("desktop.metadata.division")
def test_what_stands_where_it_does_not_belong_does_not_count() -> None:
    annotations, meta = {"fullscreen": True}, {"priority": 0.9, "audience": ["user"], "lastModified": "x"}
    assert read(annotations, meta) == (WindowMetadata(priority=0.0, fullscreen=False), [])
    assert read_metadata("s", {"uri": URI, **annotations, **meta}) == (WindowMetadata(), ())


@pytest.mark.rule("desktop.annotations.last_modified")
def test_last_modified_does_not_count() -> None:
    assert read({"lastModified": "2026-01-15T08:30:00Z", "priority": 0.5}) == (WindowMetadata(priority=0.5), [])


@pytest.mark.rule("desktop.annotations.last_modified", "desktop.metadata.check.annotations")
@pytest.mark.parametrize(
    ("last_modified", "rule"),
    [
        (1768465800, Rule.LAST_MODIFIED_TYPE),
        (["2026-01-15T08:30:00Z"], Rule.LAST_MODIFIED_TYPE),
        ("yesterday", Rule.LAST_MODIFIED_UNREADABLE),
        ("", Rule.LAST_MODIFIED_UNREADABLE),
    ],
)
def test_a_last_modified_that_is_no_instant_is_a_warning(last_modified: object, rule: Rule) -> None:
    assert read({"lastModified": last_modified}) == (WindowMetadata(), [rule])


@pytest.mark.rule("desktop.metadata.check.annotations")
@pytest.mark.parametrize("value", ["x", 7, True, [], ["priority"]])
def test_annotations_and_meta_that_are_no_objects_are_a_warning_and_count_as_missing(value: object) -> None:
    assert read(annotations=value) == (WindowMetadata(), [Rule.ANNOTATIONS_TYPE])
    assert read(meta=value) == (WindowMetadata(), [Rule.META_TYPE])


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
        ({"annotations": {"lastModified": "x"}}, "lastModified is no instant of ISO 8601"),
    ],
)
def test_a_warning_says_what_is_wrong_and_what_counts_instead(resource: dict[str, Any], message: str) -> None:
    _, (warning,) = read_metadata("s", {"uri": URI, **resource})
    assert (warning.server, warning.uri, warning.message) == ("s", URI, message)


@pytest.mark.rule("answers.desktop.tolerance")
def test_one_wrong_value_leaves_the_others_as_they_are() -> None:
    metadata, rules = read({"priority": "high", "audience": ["user"], "lastModified": 1}, {"fullscreen": True})
    assert metadata == WindowMetadata(priority=0.0, fullscreen=True)
    assert rules == [Rule.PRIORITY_TYPE, Rule.AUDIENCE_WITHOUT_ASSISTANT, Rule.LAST_MODIFIED_TYPE]


@pytest.mark.rule("desktop.metadata.example")
def test_the_example_of_the_page() -> None:
    annotations = {"priority": 0.8, "audience": ["assistant"], "lastModified": "2026-01-15T08:30:00Z"}
    assert read(annotations, {"fullscreen": True}) == (WindowMetadata(priority=0.8, fullscreen=True), [])


@pytest.mark.rule("desktop.metadata.check.priority")
@given(st.floats() | st.integers() | st.booleans())
def test_any_priority_ends_between_zero_and_one(priority: float) -> None:
    metadata, rules = read({"priority": priority})
    assert 0.0 <= metadata.priority <= 1.0
    assert bool(rules) == (isinstance(priority, bool) or not 0 <= priority <= 1)


MODIFIED = ["2026-01-15T08:30:00Z", "2026-01-15T08:30:00z", "2026-01-15 08:30", "2026-01-32T00:00:00Z", "yesterday", 7]
ANYTHING: st.SearchStrategy[object] = (
    st.none() | st.booleans() | st.integers(-1, 2) | st.floats() | st.text(max_size=3) | st.just([])
)
ANNOTATIONS = st.fixed_dictionaries(
    {},
    optional={
        "priority": ANYTHING,
        "audience": ANYTHING | st.lists(st.sampled_from(["assistant", "user", "x"]), max_size=3),
        "lastModified": ANYTHING | st.sampled_from(MODIFIED),
    },
)


@given(ANNOTATIONS | ANYTHING, st.fixed_dictionaries({}, optional={"fullscreen": ANYTHING}) | ANYTHING)
def test_what_is_read_in_the_usual_way_is_what_is_read_in_any_case(annotations: object, meta: object) -> None:
    resource = {"uri": URI, "annotations": annotations, "_meta": meta}
    usual = usual_metadata(resource)
    assert usual is None or (usual, ()) == read_metadata("s", resource)


FINE = {"priority": 0.5, "audience": ["assistant"], "lastModified": "2026-01-15T08:30:00Z"}


@pytest.mark.parametrize(
    ("annotations", "meta", "read"),
    [
        (FINE, {"fullscreen": True}, WindowMetadata(0.5, True)),
        (FINE | {"priority": 0.0, "audience": ["user", "assistant"]}, {"fullscreen": False}, WindowMetadata()),
        (FINE | {"priority": 1.0, "audience": None, "lastModified": None}, {}, WindowMetadata(1.0)),
        ({}, None, WindowMetadata()),
        (None, {"fullscreen": True}, WindowMetadata(0.0, True)),
    ],
)
def test_metadata_without_a_fault_are_read_in_the_usual_way(annotations: Any, meta: Any, read: WindowMetadata) -> None:
    assert usual_metadata({"annotations": annotations, "_meta": meta}) == read


WRONG: list[dict[str, Any]] = [
    {"priority": 1.5}, {"priority": -0.5}, {"priority": float("nan")}, {"priority": True},
    {"audience": ["user"]}, {"audience": "assistant"}, {"audience": ["assistant", "x"]}, {"audience": []},
    {"lastModified": "yesterday"}, {"lastModified": 7}, {"lastModified": ""},
]  # fmt: skip


@pytest.mark.parametrize(
    "fault",
    [
        {"annotations": []},
        {"_meta": "x"},
        {"_meta": {"fullscreen": 1}},
        *({"annotations": FINE | wrong} for wrong in WRONG),
    ],
)
def test_metadata_with_a_fault_are_not_read_in_the_usual_way(fault: dict[str, Any]) -> None:
    resource = {"uri": URI, "annotations": FINE, "_meta": {}} | fault
    assert usual_metadata(resource) is None
    assert read_metadata("s", resource)[1], "and the other way finds something wrong with them"
