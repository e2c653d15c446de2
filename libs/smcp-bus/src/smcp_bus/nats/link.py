"""The connection under the bus: how it comes up, who is told of it, what may be sent over it."""

import asyncio
import logging
import random
import re
import ssl
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

from nats import errors as nats_errors

from smcp_bus.bus import Connection, Watcher
from smcp_bus.cancellation import raise_if_cancelled
from smcp_bus.errors import BodyTooLarge, BusError, NotConnected, RequestTimedOut
from smcp_bus.nats.client import NatsClient, is_refusal
from smcp_bus.nats.config import BusConfig, renewed

_log = logging.getLogger(__name__)

_REFUSED: Final = "refused"
_WHITE_SPACE: Final = re.compile(r"\s")
_SLOW_PAUSE_S: Final = 1.0
_NOTICE_S: Final = 1.0
"""After that it is said that nothing answers where nats-server should be."""
_REFUSED_PAUSE_S: Final = (0.2, 0.8)
"""Before a credential that was refused is tried again: a random time in this range."""
_LAST_WORDS_S: Final = 1.0
"""How long closing waits for nats-server to take what was sent."""


class Link:
    """One connection, its watchers, and the checks before anything is sent."""

    def __init__(self, config: BusConfig, *, lost: Callable[[], None], denied: Callable[[str], None]) -> None:
        """`lost` is called when the connection broke, after the watchers; `denied` with nats-server's words (in lower
        case) when its permissions refused something."""
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._lost = lost
        self._watchers: list[Watcher] = []
        self._slow_timer: asyncio.TimerHandle | None = None
        self._slow_again = False
        self._last_error: Exception | None = None
        self._opening: asyncio.Timeout | None = None
        """When the first connection is given up, while it is made."""
        self.refusals = 0
        """How many attempts ended with nats-server not taking the credential."""
        self._trouble = ""
        """What was logged last of why there is no connection; empty while there is one."""
        self._closing = False
        self.client = NatsClient(self._came_up, self._went_down, denied)

    @property
    def up(self) -> bool:
        return self.client.up

    @property
    def problem(self) -> str | None:
        """Why there is no connection now, in a few words without names; None: there is one."""
        if self.client.up:
            return None
        return "nats-server refuses the credential" if self._trouble == _REFUSED else "not connected"

    @property
    def max_message(self) -> int:
        return self.client.max_payload

    # -- its life

    async def open(self, inbox_prefix: str) -> None:
        """Connect. A nats-server that refuses the credential is asked again until it takes it.

        Raises:
            OSError: the file of certificates cannot be read (`ssl.SSLError`: it holds none).
            NotConnected: nothing answered within the time that the configuration gives; says where and why.
        """
        config, client = self._config, self.client
        options: dict[str, Any] = {
            "servers": config.url.split(","),
            "name": config.name,
            "error_cb": self._error,
            "connect_timeout": 2,
            "reconnect_time_wait": 0.1,
            "max_reconnect_attempts": -1,
            "ping_interval": config.ping_interval,
            "max_outstanding_pings": 2,
            "pending_size": 0,  # nothing is kept while there is no connection
            "inbox_prefix": inbox_prefix,
        }
        if config.ca is not None:
            options["tls"] = ssl.create_default_context(cafile=config.ca)
        if config.credentials is not None:
            credentials = config.credentials
            options.update(user=lambda: renewed(credentials).login, password=lambda: renewed(credentials).secret)
        elif any(urlsplit(url).password is not None for url in config.url.split(",")):
            # asked for each attempt, which may go to any of the servers; nats-py sends them as they stand in the URL
            options.update(
                user=lambda: unquote(getattr(client.server, "username", None) or ""),
                password=lambda: unquote(getattr(client.server, "password", None) or ""),
            )
        notice = self._loop.call_later(_NOTICE_S, self._say_that_it_does_not_answer)
        try:
            async with asyncio.timeout(config.connect_timeout) as self._opening:
                await client.connect(**options)
                raise_if_cancelled()
                await client.round_trip()
        except (TimeoutError, BusError, nats_errors.Error) as error:
            await client.shut(0)
            why = _worded(self._last_error or error)
            raise NotConnected(
                f"nats-server at {config.hosts} could not be reached within {config.connect_timeout:g} s: {why}"
            ) from error
        except BaseException:
            self._closing = True  # it is given up by the caller: no word about a connection that broke
            await client.shut(0)
            raise
        finally:
            self._opening = None
            notice.cancel()

    def _say_that_it_does_not_answer(self) -> None:
        config = self._config
        if self._trouble == _REFUSED or self.client.up:  # up: opened in a moment
            return
        _log.warning("NATS at %s does not answer yet; trying for %g s", config.hosts, config.connect_timeout)

    async def close(self) -> None:
        self._closing = True
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        await self.client.shut(_LAST_WORDS_S)

    # -- sending

    def check(self, subject: str, size: int, head: int) -> None:
        """Whether a message with `size` bytes of body and `head` bytes of headers can go to `subject` now.

        Raises:
            NotConnected, BodyTooLarge: as `Bus.publish`.
            ValueError: that is no subject.
        """
        if not self.client.up:
            raise NotConnected("not connected to nats-server")
        if not subject or _WHITE_SPACE.search(subject):
            raise ValueError("a subject is not empty and holds no white space")
        if head + size > self.client.max_payload:
            raise BodyTooLarge(size, self.client.max_payload - head)

    def send(self, subject: str, reply: str, head: bytes, body: bytes | memoryview) -> None:
        if self.client.up:
            self.client.send(subject, reply, head, body)

    async def room(self, deadline: float) -> None:
        try:
            async with asyncio.timeout_at(deadline):
                while self.client.congested:
                    await self.client.room()
        except TimeoutError as error:
            raise NotConnected("nats-server does not take what is sent") from error

    async def flush(self, timeout: float) -> None:
        try:
            async with asyncio.timeout(timeout):
                await self.client.round_trip()
        except TimeoutError as error:
            raise RequestTimedOut("nats-server did not answer in time") from error

    # -- telling

    def watch(self, watcher: Watcher) -> Callable[[], None]:
        self._watchers.append(watcher)

        def stop() -> None:
            if watcher in self._watchers:
                self._watchers.remove(watcher)

        return stop

    def dropped(self) -> None:
        """A message was dropped on the way in: tell the watchers that we are slow.

        At the first drop, and once more after a pause in which there were others: who repairs at the first must
        not miss what was dropped while he did.
        """
        if self._slow_timer is not None:
            self._slow_again = True
            return
        self._slow_timer = self._loop.call_later(_SLOW_PAUSE_S, self._slow_over)
        self._tell(Connection.SLOW)

    def _slow_over(self) -> None:
        self._slow_timer = None
        if self._slow_again:
            self._slow_again = False
            self.dropped()

    def _tell(self, what: Connection) -> None:
        for watcher in list(self._watchers):
            try:
                watcher(what)
            except Exception:  # noqa: BLE001 -- one that fails must not keep the others from closing their gates
                _log.exception("a watcher of the connection failed")

    def _came_up(self) -> None:
        if self._trouble:
            _log.info("connected to nats-server" if self._opening else "connected to nats-server again")
        self._last_error, self._trouble = None, ""
        self._tell(Connection.UP)

    def _went_down(self) -> None:
        if not self._closing:
            _log.warning("the connection to nats-server broke; connecting again")
            self._trouble = "broke"
        self._tell(Connection.DOWN)
        self._lost()

    async def _error(self, error: Exception) -> None:
        if isinstance(error, nats_errors.SlowConsumerError):
            _log.error("nats-py dropped a message: %s", error)
            self.dropped()
            return
        self._last_error = error
        _log.debug("nats-py: %r", error)
        opening = self._opening
        # one line for each turn of an outage: connecting goes on several times a second
        if not is_refusal(str(error)):
            if self._trouble == _REFUSED:
                _log.warning("nats-server at %s cannot be reached now: %s", self._config.hosts, _worded(error))
                self._trouble = "unreachable"
            return
        self.refusals += 1
        if self._trouble != _REFUSED and (self._trouble or opening is not None):
            _log.warning("%s; connecting again until it is taken", self.refusal())
            self._trouble = _REFUSED
        if opening is not None and not opening.expired():
            opening.reschedule(self._loop.time() + self._config.connect_timeout)  # it is there: that was waited for
            await asyncio.sleep(random.uniform(*_REFUSED_PAUSE_S))  # noqa: S311 -- spreads load; no secret

    def refusal(self) -> str:
        """That nats-server does not take this process's credential, in a sentence."""
        credentials = self._config.credentials
        if credentials is None:
            return f"nats-server at {self._config.hosts} asks for a credential, and there is none (SMCP_NATS_CREDS)"
        return f"nats-server at {self._config.hosts} refuses {credentials}"


def _worded(error: BaseException) -> str:
    return str(error).removeprefix("nats: ") or type(error).__name__
