"""Rows for what processes ask each other beside the events of the protocol.

They go through the same door as the events (see `registry_contract` for who asks whom), but no Socket.IO client can
name them: they are not in the catalog.
"""

from typing import Final

from pydantic import BaseModel, ConfigDict, Field

from smcp_bus.registry_contract import (
    AliveAnswer,
    AliveQuestion,
    Assertion,
    AssertionResult,
    Confirmed,
    FindComputer,
    Found,
    LeaseRenewal,
    LeaseState,
)
from smcp_proto.catalog_row import Ack, Row, SizeClass, TimeClass
from smcp_proto.ids import Role

BOTH: Final[frozenset[Role]] = frozenset({"agent", "computer"})


class Nothing(BaseModel):
    """A request that says all in its subject and headers."""

    model_config = ConfigDict(extra="allow")


class PendingQuestion(BaseModel):
    """Asked of an owner by who waits on it: which of these calls do you not know (any more)?"""

    calls: list[tuple[str, str]] = Field(max_length=10_000)
    """(agent, req_id) each."""


class PendingAnswer(BaseModel):
    """Which of those calls, each as (agent, req_id), need not be waited for. In neither list: those that run."""

    unknown: list[tuple[str, str]]
    """Neither running nor ended here: nobody will answer them."""
    ended: list[tuple[str, str]] = Field(default_factory=list)
    """Ended here, and answered: an answer that has not come by now was lost on the way."""


SOURCE: Final = "registry_contract"


def is_internal(row: Row) -> bool:
    """Whether it is no event of the protocol."""
    return row.source == SOURCE


def _row(event: str, request: type[BaseModel], reply: type[BaseModel], size: SizeClass = SizeClass.SMALL) -> Row:
    return Row(
        event=event,
        request=request,
        reply=reply,
        senders=BOTH,
        verb=event.partition(":")[2],
        ack=Ack.REPLY,
        time_class=TimeClass.ROOM,
        size=size,
        source=SOURCE,
    )


CONFIRM: Final = _row("server:confirm", Nothing, Confirmed)
FIND: Final = _row("server:find", FindComputer, Found)
LEASE: Final = _row("hosts:lease", LeaseRenewal, LeaseState)
ASSERT: Final = _row("hosts:assert", Assertion, AssertionResult, SizeClass.BODY)
ALIVE: Final = _row("hosts:alive", AliveQuestion, AliveAnswer)
PENDING: Final = _row("client:pending", PendingQuestion, PendingAnswer, SizeClass.BODY)

SERVER_ROWS: Final = {row.verb: row for row in (CONFIRM, FIND)}
HOST_ROWS: Final = {row.verb: row for row in (LEASE, ASSERT, ALIVE)}
CLIENT_ROWS: Final = {row.verb: row for row in (PENDING,)}
