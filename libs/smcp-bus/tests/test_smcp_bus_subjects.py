"""Every subject, literally: what permissions and operators see."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smcp_bus import subjects
from smcp_bus.callers import Caller
from smcp_bus.subjects import route
from smcp_proto.member_names import check_name

LITERALS = [
    (subjects.client("lab", "pc", "tool_call"), "smcp.v1.lab.client.pc.tool_call"),
    (subjects.client_all("lab", "pc"), "smcp.v1.lab.client.pc.*"),
    (subjects.server("lab", "agent", "alice", "join_office"), "smcp.v1.lab.server.agent.alice.join_office"),
    (subjects.server("lab", "computer", "a.b", "find"), "smcp.v1.lab.server.computer.a=2Eb.find"),
    (subjects.notify("lab", "enter_office"), "smcp.v1.lab.notify.enter_office"),
    (subjects.notify_all("*"), "smcp.v1.=2A.notify.*"),
    (subjects.notify_all("实验"), "smcp.v1.=E5=AE=9E=E9=AA=8C.notify.*"),
    (subjects.hosts("host 1", "ab12", "lease"), "smcp.hosts.v1.host=201.ab12.lease"),
    (subjects.SERVER_ALL, "smcp.v1.*.server.*.*.*"),
    (subjects.HOSTS_LEASE_ALL, "smcp.hosts.v1.*.*.lease"),
    (subjects.HOSTS_GATEWAY_LEASE_ALL, "smcp.hosts.v1.*.*.gateway_lease"),
    (subjects.HOSTS_ASSERT_ALL, "smcp.hosts.v1.*.*.assert"),
]


def legal(text: str) -> bool:
    try:
        check_name(text)
    except ValueError:
        return False
    return True


names = st.text(min_size=1, max_size=20).filter(legal).map(check_name)


@pytest.mark.rule("answers.names.token", "answers.nats.subjects")
@pytest.mark.parametrize(("built", "literal"), LITERALS)
def test_subjects_have_this_exact_form(built: str, literal: str) -> None:
    assert built == literal


@given(office=names, name=names)
def test_the_caller_of_a_registry_is_read_from_the_subject(office: str, name: str) -> None:
    row, caller = route(subjects.server(office, "computer", name, "list_room"))
    assert (row.event, caller) == ("server:list_room", Caller(role="computer", office=office, name=name))


@pytest.mark.rule("answers.names.narrow")
@given(office=names, name=names)
def test_no_name_adds_a_token_or_a_wildcard_to_a_subject(office: str, name: str) -> None:
    subject = subjects.client(office, name, "tool_call")
    assert subject.count(".") == 5
    assert not set(subject) & set("*> \t\r\n")


@pytest.mark.parametrize(
    "subject",
    [
        "smcp.v1.lab.server.agent.alice",
        "smcp.v1.lab.server.boss.alice.join_office",
        "smcp.v2.lab.server.agent.alice.join_office",
        "smcp.v1.l=61b.server.agent.alice.join_office",
        "smcp.v1.lab.client.agent.alice.join_office",
        "",
    ],
)
def test_a_subject_of_another_form_names_no_member(subject: str) -> None:
    with pytest.raises(ValueError, match=r"subject|name"):
        route(subject)


def test_a_computer_is_asked_by_the_agent_of_the_office_in_the_subject() -> None:
    row, caller = route("smcp.v1.lab.client.a=2Eb.resources_list")
    assert (row.event, caller) == ("client:resources/list", Caller(role="agent", office="lab"))


def test_a_process_is_read_with_its_credential() -> None:
    row, caller = route("smcp.hosts.v1.host-1.ab12.lease")
    assert (row.event, caller.name, caller.session) == ("hosts:lease", "host-1", "ab12")
