"""Keeps a member (an Agent, or a Computer on Socket.IO) in its office: connects to one of its gateways and joins, again
after each loss."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, Protocol
from urllib.parse import urlsplit, urlunsplit

import aiohttp
from pydantic import SecretStr

from smcp_agent.connecting.connection import Connection, ConnectionBroken, Notice, connect
from smcp_agent.connecting.options import ConnectionOptions, check_token, local_key, with_token
from smcp_agent.errors import (
    BadReply,
    CannotConnect,
    ConnectionLost,
    ErrorCode,
    JoinRefused,
    Malformed,
    NotAllowed,
    NotAuthenticated,
    RateLimited,
    SmcpError,
    Unavailable,
    flat_error,
    retry_after,
    without_traceback,
)
from smcp_proto.backoff import Backoff, jittered
from smcp_proto.catalog import GRACE_S, ROOM_S
from smcp_proto.errors import ERRORS, read_refusal
from smcp_proto.printable import is_url, without_login
from smcp_proto.schemas import EnterOfficeReq, LeaveOfficeReq
from smcp_proto.schemas.rooms import RESTARTS

LEAVE_S: Final = 5.0
"""Before the answer, the next Agent of this name may be refused: a busy gateway needs seconds. Longer is of no use: a
client that goes away is noticed without it, too."""
REFUSED_PATIENCE_S: Final = 20.0
"""A refused re-join is reported after so long: the broken socket may still count as alive."""
SETTLE_S: Final = 5.0
"""When NATS comes back, one gateway has it sooner than another (3.2 s were seen: an attempt to connect that had begun
before takes up to 2 s), and no Agent is to move for that."""
FIRST_DELAY_S: Final = 0.25
"""The pause after the first failure to connect, join or list the room; it doubles up to `MAX_DELAY_S`."""
MAX_DELAY_S: Final = 5.0
"""An Agent is back within seconds after a long outage."""
STABLE_S: Final = 10.0
"""After a connection that lasted so long, the pauses between attempts begin short again."""

READY_S: Final = 2.0
TOKEN_S: Final = 10.0
"""The pause after a token that is not accepted: it may be renewed. The gateway slows down who tries too often (429)."""

logger = logging.getLogger(__name__)


class Addresses:
    """The URLs of gateways, in the order in which they are tried. Raises Malformed."""

    def __init__(self, urls: Iterable[str]) -> None:
        self._urls = [checked_url(url) for url in urls]
        if not self._urls:
            raise Malformed("url: is missing", details={"field": "url"})

    def prefer(self, url: str) -> None:
        at = self._urls.index(url)
        self._urls = self._urls[at:] + self._urls[:at]

    def avoid(self, url: str, tried: Collection[str] = ()) -> bool:
        """Try this one last next time. False where the next one is the same, or among the `tried` ones."""
        self._urls.remove(url)
        self._urls.append(url)
        return self._urls[0] != url and self._urls[0] not in tried

    async def ready_instead_of(self, url: str, options: ConnectionOptions) -> bool:
        """Whether a gateway at another URL says that it is ready; that one is tried first next time."""
        timeout = aiohttp.ClientTimeout(total=READY_S)
        async with aiohttp.ClientSession(headers=options.headers, timeout=timeout) as session:
            for other in self._urls:
                if other != url and await _is_ready(session, other):
                    self.prefer(other)
                    return True
        return False

    async def connect(self, options: ConnectionOptions, on_notice: Notice) -> Connection:
        """A connection to the first of them where one opens; each has its share of `connect_timeout`. Raises
        CannotConnect, TokenUnavailable; SmcpError: the last refusal of a server."""
        has_token, options = options.token is not None, await with_token(options)
        options = options.model_copy(update={"connect_timeout": options.connect_timeout / len(self._urls)})
        refusal: SmcpError | None = None
        reasons: dict[str, str] = {}
        for url in self._urls:
            try:
                own = options if has_token else await with_token(options.model_copy(update={"token": local_key(url)}))
                connection = await connect(url, own, on_notice)
            except CannotConnect as error:
                reasons |= error.details["urls"]
            except SmcpError as error:
                refusal = error
            else:
                self.prefer(url)
                return connection
        if refusal is not None:
            raise refusal
        failures = "; ".join(f"{url}: {why}" for url, why in reasons.items())
        raise CannotConnect(f"cannot connect to {failures}", details={"urls": reasons})


def checked_url(url: str) -> str:
    """Raises Malformed: it is not an http(s) or ws(s) URL with a host."""
    if not is_url(url, {"http", "https", "ws", "wss"}):
        raise Malformed(f"url: {without_login(str(url))!r} is not like http://host:port", details={"field": "url"})
    return url


def connection_problems(urls: Iterable[str], token: SecretStr | None, named: tuple[str, str]) -> list[str]:
    """What is wrong with the settings of a connection, each after its name: of the URLs, and of the token."""
    checks: list[tuple[str, Callable[[str], str], str]] = [(named[0], checked_url, url) for url in urls]
    checks += [] if token is None else [(named[1], check_token, token.get_secret_value())]
    problems = []
    for name, check, value in checks:
        try:
            check(value)
        except Malformed as error:
            problems.append(f"{name}: {error.message.partition(': ')[2]}")
    return problems


async def _is_ready(session: aiohttp.ClientSession, url: str) -> bool:
    """Asks `/readyz`, beside the gateway's Socket.IO endpoint."""
    parts = urlsplit(url)
    scheme = {"ws": "http", "wss": "https"}.get(parts.scheme, parts.scheme)
    asked = urlunsplit((scheme, parts.netloc, f"{parts.path.rstrip('/')}/readyz", "", ""))
    try:
        async with session.get(asked, allow_redirects=False) as response:
            return response.status == HTTPStatus.OK
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return False


def delay(error: SmcpError) -> float:
    """Minimum wait in seconds after this refused connect."""
    match error:
        case NotAuthenticated():
            return jittered(TOKEN_S)
        case RateLimited():
            # `jittered` takes up to 20 % off: never earlier than the gateway asked for
            return jittered(1.25 * (retry_after(error) or TOKEN_S))
        case _:
            return 0.0


class Listener(Protocol):
    """Hears what happens to the link. `joining` and the `on_` methods must not block."""

    def joining(self) -> None:
        """A connection is open, and the join is next."""

    async def joined(self, connection: Connection) -> None:
        """The member is in the office again. A ConnectionBroken from here makes the link connect again."""

    def on_lost(self, reason: str) -> None:
        """The connection has ended, and another one is being made."""

    def on_refused(self, why: str) -> None:
        """The server refuses the join, which is tried again. `why` is for people."""


@dataclass(eq=False, repr=False)
class Link:
    """One joined connection at a time: `open` makes the first, `run` the others."""

    addresses: Addresses
    seat: EnterOfficeReq
    options: ConnectionOptions
    listener: Listener
    on_notice: Notice
    failure: SmcpError | None = field(default=None, init=False)
    """Why the office does not take the member back."""
    connection: Connection | None = field(default=None, init=False)
    """The joined connection, if there is one at this moment."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    async def open(self) -> Connection:
        """Raises CannotConnect, ConnectionLost, JoinRefused; Unavailable: no gateway could find out whether the seat is
        free; SmcpError: the server refused the connection."""
        tried: set[str] = set()
        while True:
            connection = await self.addresses.connect(self.options, self.on_notice)
            try:
                await self._join(connection)
            except BaseException as error:
                await connection.close()
                if isinstance(error, ConnectionBroken | TimeoutError):
                    raise ConnectionLost("the connection broke while joining", may_have_run=False) from error
                tried.add(connection.url)
                if not isinstance(error, Unavailable) or not self.addresses.avoid(connection.url, tried):
                    raise
            else:
                self.failure = None
                self._set(connection)
                return connection

    async def run(self) -> None:
        loop, backoff = asyncio.get_running_loop(), Backoff(FIRST_DELAY_S, MAX_DELAY_S)
        while True:
            connection, since = self.connection, loop.time()
            assert connection is not None
            await self._until_lost(connection)
            self._set(None)
            if loop.time() - since > STABLE_S:
                backoff.reset()
            closing = asyncio.create_task(connection.close())  # if the host hangs, this takes a while
            try:
                self.listener.on_lost(connection.reason)
                # a gateway may also send members away because others have fewer
                away = (connection.silent or connection.moving) and self.addresses.avoid(connection.url)
                if not (away and connection.silent):
                    await asyncio.sleep(backoff.next())
                await self._come_back(backoff)
            finally:
                await closing

    async def ready(self) -> Connection:
        """The joined connection, once there is one. Raises SmcpError: the office does not take the member back."""
        while True:
            if self.failure is not None:
                raise without_traceback(self.failure)
            if self.connection is not None and not self.connection.lost.is_set():
                return self.connection
            await self._changed.wait()

    def drop(self, connection: Connection) -> None:
        if connection is self.connection:
            connection.give_up("the agent is no longer a member")

    def fail(self, failure: SmcpError) -> None:
        self.failure = failure
        self._tell()

    async def leave(self, connection: Connection, *, restarts: bool = False) -> None:
        """Say that the member leaves; `restarts`: and that another process takes its seat (`RESTARTS`)."""
        office = LeaveOfficeReq(office_id=self.seat.office_id).model_dump()
        payload = office | ({RESTARTS: True} if restarts else {})
        # the ack also says that everything sent before it has arrived
        await connection.request("server:leave_office", payload, timeout=LEAVE_S)

    async def close(self, *, restarts: bool = False) -> None:
        """Leave the office (see `leave`), as far as the connection allows, and close it."""
        connection, self.connection = self.connection, None
        if connection is None:
            return
        try:
            await self.leave(connection, restarts=restarts)
        except (ConnectionBroken, TimeoutError):
            logger.debug("closing without an answer to leave_office")
        finally:
            await connection.close()

    async def _until_lost(self, connection: Connection) -> None:
        """A connection whose gateway has lost NATS is given up only once another is ready: else an outage of NATS as
        a whole would have every Agent leave its office and enter it again."""
        loop, ready_since = asyncio.get_running_loop(), None
        while not connection.lost.is_set():
            await connection.doubted.wait()
            connection.doubted.clear()
            if connection.lost.is_set():
                return
            if not await self.addresses.ready_instead_of(connection.url, self.options):
                ready_since = None
            elif ready_since is None:
                ready_since = loop.time()
            elif loop.time() - ready_since > SETTLE_S:
                connection.give_up("its gateway has lost NATS, and another one has not")

    async def _come_back(self, backoff: Backoff) -> None:
        patience = asyncio.get_running_loop().time() + REFUSED_PATIENCE_S
        unknown, why = False, ""
        while True:
            try:
                connection = await self.addresses.connect(self.options, self.on_notice)
            except SmcpError as error:
                level = logging.DEBUG if error.message == why else logging.INFO  # an outage is one line
                logger.log(level, "not connected: %s; retrying", error.message)
                why = error.message
                if isinstance(error, NotAuthenticated) and unknown:  # the first token may have expired on its way
                    self._refuse(error)
                unknown = isinstance(error, NotAuthenticated)
                await asyncio.sleep(max(backoff.next(), delay(error)))
                continue
            unknown = False
            try:
                await self._join(connection)
                self.failure = None
                self._set(connection)
                await self.listener.joined(connection)
            except BaseException as error:
                self._set(None)
                await connection.close()
                if not isinstance(error, ConnectionBroken | TimeoutError | SmcpError):
                    raise
                if isinstance(error, SmcpError) and asyncio.get_running_loop().time() > patience:
                    self._refuse(error)
                if isinstance(error, Unavailable):
                    self.addresses.avoid(connection.url)  # where it is the only URL, another gateway may be behind it
                await asyncio.sleep(backoff.next())
            else:
                return

    def _refuse(self, error: SmcpError) -> None:
        if self.failure is None:
            self.listener.on_refused(error.details.get("why", error.message))
            self.fail(error)

    async def _join(self, connection: Connection) -> None:
        self.listener.joining()
        seat = self.seat.model_dump(exclude_unset=True)
        ack = await connection.request("server:join_office", seat, timeout=ROOM_S + GRACE_S)
        _check_joined(ack, self.seat)

    def _set(self, connection: Connection | None) -> None:
        self.connection = connection
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _check_joined(ack: Any, seat: EnterOfficeReq) -> None:
    """Raises JoinRefused for `[false, why, details]` if `why` has the code 403 or none, else the class of the code.
    Servers of other projects send no `details`."""
    match ack:
        case [True, *_]:
            return
        case [False, *rest]:
            office, member = f"the office {seat.office_id!r}", f"the {seat.role.capitalize()} {seat.name!r}"
            code, why = read_refusal(str(rest[0]) if rest and rest[0] else "no reason given")
            details = {**rest[1], "why": why} if len(rest) > 1 and isinstance(rest[1], dict) else {"why": why}
            details.pop("may_have_run", None)  # it is about the join: no tool ran
            kind = ERRORS.get(code or ErrorCode.NOT_ALLOWED, NotAllowed)
            if kind is NotAllowed:
                raise JoinRefused(f"{office} refused {member}: {why}", details=details)
            raise kind(f"{office} cannot be joined by {member} now: {why}", details=details)
    raise flat_error(ack) or BadReply("join_office was acknowledged with neither [true, null] nor [false, why]")
