"""One Agent's calls, at random moments, independent of the outcome of earlier ones; each is written to the journal.

For processes in any environment: the standard library alone.
"""

import asyncio
import json
import math
import random
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, TextIO
from uuid import uuid4

SHORTEST_S: Final = 0.01
LAST_S: Final = 60.0
"""How long an Agent may go on calling until one of its last calls has a result."""


@dataclass(frozen=True)
class Answer:
    """What a call gave: the text of its result, or the error in place of it.

    Attributes:
        code: of an error of the protocol; None where it is the client's own.
        may_have_run: as the error says; None where it does not say.
    """

    text: str | None = None
    error: str | None = None
    code: int | None = None
    may_have_run: bool | None = None


@dataclass(frozen=True)
class Pace:
    """Calls a second, and the seconds of the longest; they are log-uniform."""

    rate: float
    longest_s: float

    def pause(self) -> float:
        """Until the next call: what comes from many sources at random."""
        return random.expovariate(self.rate)

    def seconds(self) -> float:
        return math.exp(random.uniform(math.log(SHORTEST_S), math.log(self.longest_s)))


class Journal:
    """Lines of JSON. Two for each call: what was sent, and what it gave. Made by `journal`."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, **line: Any) -> None:
        self._file.write(json.dumps(line, ensure_ascii=False) + "\n")


@contextmanager
def journal(path: str) -> Iterator[Journal]:
    """Each line is in the file at once."""
    with Path(path).open("w", encoding="utf-8", buffering=1) as file:
        yield Journal(file)


Ask = Callable[[str, float], Awaitable[Answer]]
"""Calls the tool, with a `req_id` and its seconds."""


class Caller:
    """Args:
    client: `sdk` or `published`.
    """

    def __init__(self, client: str, office: str, pace: Pace, journal: Journal, ask: Ask) -> None:
        self._client = client
        self._office = office
        self._pace = pace
        self._journal = journal
        self._ask = ask
        self._last_result = -math.inf
        """When the last call that has a result was sent (monotonic seconds)."""

    async def run(self, finishing: asyncio.Event) -> None:
        """Make calls until `finishing`, and then until one that was sent since has a result; all have ended then.

        Raises:
            TimeoutError: none has.
        """
        async with asyncio.TaskGroup() as calls:
            due, finish = time.monotonic(), math.inf
            while self._last_result < finish:
                due += self._pace.pause()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if finishing.is_set() and finish == math.inf:
                    finish = time.monotonic()
                if time.monotonic() > finish + LAST_S:
                    raise TimeoutError(f"no call of {self._client} in {self._office} had a result for {LAST_S:g} s")
                calls.create_task(self._call())

    async def _call(self) -> None:
        req_id, sent = uuid4().hex, time.monotonic()
        self._journal.write(id=req_id, client=self._client, office=self._office, sent=sent)
        answer = await self._ask(req_id, self._pace.seconds())
        self._journal.write(id=req_id, ended=time.monotonic(), **asdict(answer))
        if answer.error is None:
            self._last_result = max(self._last_result, sent)
