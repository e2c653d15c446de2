"""The catalog, literally: a change of an event is a change of this table."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_proto import schemas
from smcp_proto.catalog import (
    CATALOG,
    INTERNAL_VERBS,
    Ack,
    Row,
    by_verb,
    lookup,
    upstream,
)

EVENTS = """
client:tool_call ToolCallReq CallToolResult agent tool_call reply own
client:get_config GetComputerConfigReq GetComputerConfigRet agent get_config reply 30
client:get_tools GetToolsReq GetToolsRet agent get_tools reply 30
client:get_status GetStatusReq GetStatusRet agent get_status reply 30
client:get_desktop GetDeskTopReq GetDeskTopRet agent get_desktop reply 30
client:get_finder GetFinderReq GetFinderRet agent get_finder reply 30
client:resources/list ListResourcesReq ResourceRet agent resources_list reply 30
client:resources/read ReadResourceReq ResourceRet agent resources_read reply 30
client:resources/templates/list ListResourceTemplatesReq ResourceRet agent resources_templates_list reply 30
client:resources/subscribe SubscribeResourceReq ResourceRet agent resources_subscribe reply 30
client:resources/unsubscribe UnsubscribeResourceReq ResourceRet agent resources_unsubscribe reply 30
client:completion/complete CompleteReq ResourceRet agent completion_complete reply 30
client:prompts/list ListPromptsReq ResourceRet agent prompts_list reply 30
client:prompts/get GetPromptReq ResourceRet agent prompts_get reply 30
server:join_office EnterOfficeReq - agent+computer join_office done 10
server:leave_office LeaveOfficeReq - agent+computer leave_office done 10
server:list_room ListRoomReq ListRoomRet agent+computer list_room reply 10
server:tool_call_cancel AgentCallData - agent tool_call_cancel nothing 10
server:update_config UpdateComputerConfigReq - computer update_config nothing 10
server:update_tool_list UpdateToolListNotification - computer update_tool_list nothing 10
server:update_desktop UpdateComputerConfigReq - computer update_desktop nothing 10
server:update_finder UpdateComputerConfigReq - computer update_finder nothing 10
server:update_capabilities UpdateCapabilitiesReq - computer update_capabilities nothing 10
server:resources/list_changed ResourceListChangedNotification - computer resources_list_changed nothing 10
server:resources/updated ResourceUpdatedNotification - computer resources_updated nothing 10
server:tool_progress ToolProgressReq - computer tool_progress nothing 10
notify:enter_office EnterOfficeNotification - - enter_office none 10
notify:leave_office LeaveOfficeNotification - - leave_office none 10
notify:update_config UpdateMCPConfigNotification - - update_config none 10
notify:update_tool_list UpdateToolListNotification - - update_tool_list none 10
notify:update_desktop UpdateComputerConfigReq - - update_desktop none 10
notify:update_finder UpdateComputerConfigReq - - update_finder none 10
notify:tool_call_cancel AgentCallData - - tool_call_cancel none 10
notify:update_capabilities UpdateCapabilitiesReq - - update_capabilities none 10
notify:resources/list_changed ResourceListChangedNotification - computer resources_list_changed none 10
notify:resources/updated ResourceUpdatedNotification - computer resources_updated none 10
notify:tool_progress ToolProgressNotification - - tool_progress none 10
"""
"""Event, request, reply, senders, verb, acknowledgement, seconds."""

TOLD = """
server:tool_call_cancel
server:update_config
server:update_tool_list
server:update_desktop
server:update_finder
server:update_capabilities
server:resources/list_changed
server:resources/updated
"""
"""The events that become a notification of the same name."""

METERED = """
client:get_desktop
client:get_finder
client:resources/list
client:resources/read
client:resources/templates/list
client:resources/subscribe
client:completion/complete
client:prompts/list
client:prompts/get
"""
"""The events of which a session and an office may send so many only."""

UNKNOWN = "design, unknown events"
"""Where it is said what happens to events that nobody knows."""

verbs = st.from_regex(r"[a-z][a-z0-9_]{0,63}", fullmatch=True)


@pytest.mark.rule(
    "events.{classes.server.must,list.client:tool_call.request,list.client:tool_call.reply}",
    "events.{list.client:tool_call.sender,list.client:get_config.request,list.client:get_config.reply}",
    "events.{list.client:get_config.sender,list.client:get_tools.request,list.client:get_tools.reply}",
    "events.{list.client:get_tools.sender,list.client:get_desktop.request,list.client:get_desktop.reply}",
    "events.{list.client:get_desktop.sender,list.client:get_finder.request,list.client:get_finder.reply}",
    "events.{list.client:get_finder.sender,list.server:join_office.request}",
    "events.{list.server:join_office.sender,list.server:leave_office.request}",
    "events.{list.server:leave_office.sender,list.server:update_config.request}",
    "events.{list.server:update_config.sender,list.server:update_tool_list.request}",
    "events.{list.server:update_tool_list.sender,list.server:update_desktop.request}",
    "events.{list.server:update_desktop.sender,list.server:update_finder.request}",
    "events.{list.server:update_finder.sender,list.server:tool_call_cancel.request}",
    "events.{list.server:tool_call_cancel.sender,list.server:list_room.request}",
    "events.{list.server:list_room.sender,list.notify:enter_office.data,list.notify:leave_office.data}",
    "events.{list.notify:update_config.data,list.notify:update_tool_list.data}",
    "events.{list.notify:update_desktop.data,list.notify:update_finder.data}",
    "events.{list.notify:tool_call_cancel.data,update_desktop.reuse,update_finder.reuse}",
    "events.must.server.handles",
    "data-structures.UpdateComputerConfigReq.used-by.{server:update_config,server:update_desktop}",
    "data-structures.UpdateComputerConfigReq.used-by.notify:update_desktop",
    "data-structures.Desktop.update-events",
    "answers.{unknown.get_dpe,nats.verbs}",
)
def test_every_event_is_what_the_protocol_says() -> None:
    written = [
        [
            row.event,
            row.request.__name__,
            row.reply.__name__ if row.reply else "-",
            "+".join(sorted(row.senders)) or "-",
            row.verb,
            row.ack.value,
            "own" if row.seconds is None else f"{row.seconds:g}",
        ]
        for row in CATALOG.values()
    ]
    assert written == [line.split() for line in EVENTS.split("\n") if line]


@pytest.mark.rule(
    "events.{update_config.broadcast,update_tool_list.broadcast,update_desktop.broadcast}",
    "events.update_finder.broadcast",
)
def test_these_events_become_notifications_to_the_office() -> None:
    told = {row.event: row.notifies for row in CATALOG.values() if row.notifies}
    assert told == {event: event.replace("server:", "notify:") for event in TOLD.split()}


@pytest.mark.rule("answers.resources.limits.kinds")
def test_events_that_cost_mcp_servers_work_are_rate_limited() -> None:
    assert [row.event for row in CATALOG.values() if row.metered] == METERED.split()


def test_notifications_go_to_everybody_except_resource_ones_to_agents() -> None:
    assert {row.event: set(row.receivers) for row in CATALOG.values() if row.receivers != {"agent", "computer"}} == {
        "notify:resources/list_changed": {"agent"},
        "notify:resources/updated": {"agent"},
        "notify:tool_progress": {"agent"},
    }


def test_each_row_names_its_protocol_page() -> None:
    for row in CATALOG.values():
        page, _, section = row.source.partition(", ")
        if "resources/" in row.event or "completion/" in row.event or row.verb == "update_capabilities":
            assert (page, section.split()[0]) in {("computer.txt", "Resources"), ("finder.txt", "自动补全")}
        elif row.event == "client:get_status" or "prompts/" in row.event or row.verb == "tool_progress":
            assert row.source == "ours, no page has it"
        elif row.event == "server:tool_call_cancel":
            assert row.source == "events.txt, Server 事件"  # a table's row; it has no section of its own
        else:
            assert (page, section) == ("events.txt", row.event)


@pytest.mark.parametrize("row", CATALOG.values(), ids=lambda row: row.event)
def test_a_known_event_is_found_by_its_name_and_by_its_verb(row: Row) -> None:
    prefix = row.event.partition(":")[0]
    assert prefix in ("client", "server", "notify")
    assert lookup(row.event) is row
    assert by_verb(prefix, row.verb) is row


def test_only_a_call_carries_a_large_body() -> None:
    assert [row.event for row in CATALOG.values() if row.is_large] == ["client:tool_call"]


@pytest.mark.rule(
    "answers.unknown.{client,client.get_resources,client.get_skills,client.get_skill,client.get_blob}",
    "answers.unknown.client.put_blob",
)
@pytest.mark.parametrize(
    "event",
    ["client:get_resources", "client:get_skills", "client:get_skill", "client:get_blob", "client:put_blob", "client:x"],
)
def test_an_unknown_client_event_is_relayed(event: str) -> None:
    row = lookup(event)
    assert row is not None
    assert row == Row(
        event=event,
        request=schemas.UnknownClientReq,
        reply=schemas.UnknownRet,
        senders=frozenset({"agent"}),
        ack=Ack.REPLY,
        seconds=30,
        is_large=True,
        notifies=None,
        source=UNKNOWN,
        metered=True,
    )
    assert row.verb == event.removeprefix("client:")
    assert by_verb("client", row.verb) == row


@pytest.mark.rule("answers.unknown.update")
def test_an_unknown_update_becomes_its_notification() -> None:
    row = lookup("server:update_skills")
    assert row is not None
    assert row == by_verb("server", "update_skills")
    assert row == Row(
        event="server:update_skills",
        request=schemas.UnknownUpdate,
        reply=None,
        senders=frozenset({"computer"}),
        ack=Ack.NOTHING,
        seconds=10,
        is_large=False,
        notifies="notify:update_skills",
        source=UNKNOWN,
    )
    notification = lookup("notify:update_skills")
    assert notification is not None
    assert row.verb == notification.verb == "update_skills"
    assert notification == by_verb("notify", "update_skills")
    assert notification == Row(
        event="notify:update_skills",
        request=schemas.UnknownUpdate,
        reply=None,
        senders=frozenset(),
        ack=Ack.NONE,
        seconds=10,
        is_large=False,
        notifies=None,
        source=UNKNOWN,
    )


@pytest.mark.rule("answers.unknown.client.verb")
@pytest.mark.parametrize(
    "event",
    [
        "", "client", "client:", "client:Get", "client:get-x", "client:get x", "client:1x", "client:_x", "client:é",
        "client:a.b", "client:*", "client:>", "client:" + "a" * 65, "client:get_x\n", "client:resources/other",
        "client:resources_list", "client:completion_complete", "client:pending", "server:resources_updated",
        "server:x", "server:confirm", "server:update", "server:updat_x", "server:update_X", "server:update_" + "a" * 58,
        "notify:x", "notify:enter", "other:tool_call", "other:update_x",
        "tool_call", "connect", "message", ":x", "client::x",
    ],
)  # fmt: skip
def test_an_unknown_name_has_no_row(event: str) -> None:
    assert lookup(event) is None


@given(verbs)
def test_any_legal_client_verb_has_one_row_by_event_and_by_verb(verb: str) -> None:
    row = lookup(f"client:{verb}")
    if row is None:  # known under another name, or ours
        assert verb in INTERNAL_VERBS or by_verb("client", verb) in CATALOG.values()
    else:
        assert by_verb("client", verb) == row


@given(st.text(max_size=80))
def test_looking_up_any_text_never_raises(text: str) -> None:
    for event in (text, f"client:{text}", f"server:update_{text}"):
        row = lookup(event)
        assert row is None or (row.event == event and "." not in row.verb)


def test_internal_verbs_are_no_events_on_the_bus_either() -> None:
    assert {"pending"} == INTERNAL_VERBS
    assert by_verb("client", "pending") is None
    assert by_verb("server", "confirm") is None


def test_a_computers_notification_is_sent_to_the_registry_under_the_same_verb() -> None:
    said = {row.event: upstream(row) for row in CATALOG.values() if row.event.startswith("notify:")}
    assert {event: row.event for event, row in said.items() if row} == {
        "notify:resources/list_changed": "server:resources/list_changed",
        "notify:resources/updated": "server:resources/updated",
    }
    assert upstream(CATALOG["server:update_config"]) is None
