"""The one argument of an acknowledgement."""

import orjson
import pytest

from smcp_bus.dispatch import Answer, failed
from smcp_gateway.sockets.packet import ack_argument
from smcp_proto.catalog import CATALOG
from smcp_proto.errors import NotAllowed, Unavailable

JOIN, LEAVE = CATALOG["server:join_office"], CATALOG["server:leave_office"]
CALL, UPDATE = CATALOG["client:tool_call"], CATALOG["server:update_config"]
REFUSED = failed(NotAllowed("taken").body())
LARGE = 1 << 22


@pytest.mark.rule(
    "events.join_office.reply.done",
    "events.join_office.reply.refused",
    "answers.acks.join.done",
    "answers.acks.join.refused",
)
def test_joining_and_leaving_answer_with_one_array() -> None:
    assert ack_argument(JOIN, Answer(b""), LARGE, flat_errors=False) == b"[true,null]"
    assert ack_argument(JOIN, REFUSED, LARGE, flat_errors=False) == b'[false,"403 taken"]'


@pytest.mark.rule("answers.acks.join.why")
def test_a_refused_join_names_its_error_code() -> None:
    unavailable = failed(Unavailable("no registry answered", details={"may_have_run": False}).body())
    assert ack_argument(JOIN, unavailable, LARGE, flat_errors=False) == b'[false,"503 no registry answered"]'


@pytest.mark.rule("answers.acks.details")
def test_a_client_that_reads_flat_errors_gets_the_details_of_a_refused_join_or_leave() -> None:
    details = {"holder": "anna", "since": "2026-01-31T12:00:00Z"}
    taken = failed(NotAllowed("taken", details=details).body())
    for row in (JOIN, LEAVE):
        assert orjson.loads(ack_argument(row, taken, LARGE, flat_errors=True)) == [False, "403 taken", details]
        assert ack_argument(row, taken, LARGE, flat_errors=False) == b'[false,"403 taken"]'
        assert ack_argument(row, REFUSED, LARGE, flat_errors=True) == b'[false,"403 taken",{}]'
        assert ack_argument(row, Answer(b""), LARGE, flat_errors=True) == b"[true,null]"


@pytest.mark.rule("answers.acks.update")
def test_an_update_answers_with_null_or_the_flat_error() -> None:
    assert ack_argument(UPDATE, Answer(b""), LARGE, flat_errors=False) == b"null"
    assert ack_argument(UPDATE, REFUSED, LARGE, flat_errors=False) == REFUSED.body


@pytest.mark.rule("answers.acks.reply")
def test_a_reply_is_sent_unchanged() -> None:
    assert ack_argument(CALL, Answer(b'{"content": []}'), LARGE, flat_errors=False) == b'{"content": []}'
    assert ack_argument(CALL, Answer(b""), LARGE, flat_errors=False) == b"null"
    assert ack_argument(None, REFUSED, LARGE, flat_errors=False) == REFUSED.body


def test_a_reply_above_the_clients_limit_is_413_with_that_limit() -> None:
    body = b'"' + b"x" * 1000 + b'"'
    assert ack_argument(CALL, Answer(body), len(body) + 65, flat_errors=False) == body
    error = orjson.loads(ack_argument(CALL, Answer(body), len(body), flat_errors=True))
    assert error["code"] == 413
    assert error["details"] == {"limit": len(body), "size": len(body)}
