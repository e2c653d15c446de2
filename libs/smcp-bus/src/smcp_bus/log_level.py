"""The level of the log of processes that run, asked and changed over NATS by operators (`smcp log-level`).

All processes serve one subject; a request may name the credential of those that are meant. Each of them answers.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, Final, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from smcp_bus.bus import Bus, BusError, Incoming, Reply

SUBJECT: Final = "smcp.admin.v1.log_level"
"""nats-server lets operators alone publish here."""
Level = Literal["debug", "info", "warning", "error", "critical"]

_log = logging.getLogger("smcp_bus.log_level")


class Question(BaseModel):
    model_config = ConfigDict(extra="forbid")

    level: Level | None = None
    """None: change nothing."""
    credential: Annotated[str, Field(max_length=1024)] | None = None
    """Of the processes that are meant; None: all."""


class Answer(BaseModel):
    service: str
    credential: str
    process: str
    level: str


class LevelSwitch(Protocol):
    """`smcp_service.logging.LEVEL`."""

    @property
    def name(self) -> str: ...

    def set(self, level: str) -> None: ...


@asynccontextmanager
async def serve_log_level(bus: Bus, service: str, switch: LevelSwitch) -> AsyncIterator[None]:
    """Answer while the body runs; where nats-server permits it, which an older configuration does not."""

    async def handle(incoming: Incoming) -> Reply:
        try:
            question = Question.model_validate_json(incoming.body)
        except ValidationError:
            return Reply(b'{"error":"not a request for a level"}')
        is_meant = question.credential in (None, bus.credential)
        if is_meant and question.level is not None and question.level != switch.name:
            switch.set(question.level)
        answer = Answer(service=service, credential=bus.credential, process=bus.process, level=switch.name)
        return Reply(answer.model_dump_json().encode())

    try:
        serving = await bus.serve(SUBJECT, handle)
    except BusError as error:
        _log.info("smcp log-level does not reach this process: %s", error)
        yield
        return
    try:
        yield
    finally:
        await serving.drain()
