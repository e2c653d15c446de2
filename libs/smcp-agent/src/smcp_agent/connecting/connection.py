"""One Socket.IO connection, with its own client and HTTP session: nothing of a broken one can leak into the next."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final
from urllib.parse import urlsplit

import aiohttp
import socketio
from socketio.exceptions import BadNamespaceError
from socketio.exceptions import ConnectionError as SocketIOConnectionError

from smcp_agent.connecting.options import ConnectionOptions
from smcp_agent.connecting.transport import HttpSession, JsonText, WireJson, packet_class, reason
from smcp_agent.errors import CannotConnect, SmcpError, Unavailable, flat_error
from smcp_proto.catalog import HEADROOM, NAMESPACE
from smcp_proto.errors import ANSWER_TOO_LARGE, CUT_OFF, NOTHING_BEGUN, TooLarge
from smcp_proto.printable import without_login

CUT_OFF_REPLIES: Final = 3
"""So many 503 in a row of a gateway without NATS are more than the moment in which it connects again."""
CLOSE_S: Final = 1.0
"""A closing handshake may take so long; the office was left before."""

logger = logging.getLogger("smcp_agent.transport")
logger.setLevel(logging.ERROR)
"""Below that, python-socketio logs whole packets, with arguments and results of tools."""

Notice = Callable[[str, Mapping[str, Any]], None]


class ConnectionBroken(Exception):
    """The connection ended before the ack came. `sent` is False if the request was surely not begun."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        super().__init__(reason)
        self.reason = reason
        self.sent = sent


class Connection:
    """Made by `connect`; ends with `close` or when `lost` is set."""

    def __init__(self, url: str, options: ConnectionOptions, on_notice: Notice) -> None:
        self.url = url
        self.lost = asyncio.Event()
        self.reason = ""
        self.silent = False
        self.moving = False
        """Whether the gateway closed it to move the client; as a rule its seat is kept."""
        self.doubted = asyncio.Event()
        """Set after several answers in a row that the gateway has lost NATS, and when the connection is lost."""
        self._cut_off = 0
        self._options = options
        self._on_notice = on_notice
        self._waiting: set[asyncio.Future[tuple[Any, ...] | None]] = set()
        """Requests that wait for their ack; None: there will be none."""
        self._begun = True
        self._refusal: object = None
        self._http = HttpSession(options.read_turns)
        self._look: asyncio.TimerHandle | None = None
        self._json = WireJson(options.max_request)
        sio: Any = socketio.AsyncClient(  # type: ignore[no-untyped-call]
            reconnection=False,
            handle_sigint=False,
            logger=logger,
            engineio_logger=logger,
            serializer=packet_class(self._json),
            http_session=self._http.session,
            websocket_extra_options={"max_msg_size": options.max_message + HEADROOM},
        )
        self._sio = sio
        self._sio.on("disconnect", self._on_disconnect, namespace=NAMESPACE)
        self._sio.on("connect_error", self._on_connect_error, namespace=NAMESPACE)
        on_event = self._on_event if options.answer is None else self._on_request
        self._sio.on("*", on_event, namespace=NAMESPACE)

    async def request(self, event: str, data: Mapping[str, Any], *, timeout: float) -> Any:
        """Send an event and return its ack: the one argument, or the list of them. Raises ConnectionBroken;
        TimeoutError; Malformed, TooLarge: it cannot be sent at all."""
        ack: asyncio.Future[tuple[Any, ...] | None] = asyncio.get_running_loop().create_future()

        def settle(*args: Any) -> None:  # python-socketio keeps it until the ack comes or the connection ends
            if not ack.done():
                ack.set_result(args)

        if self.lost.is_set():
            raise ConnectionBroken(self.reason, sent=False)
        self._waiting.add(ack)
        try:
            async with asyncio.timeout(timeout):
                await self._sio.emit(event, dict(data), namespace=NAMESPACE, callback=settle)
                args = await ack
        except BadNamespaceError:
            self.give_up("the server closed the namespace")
            raise ConnectionBroken(self.reason, sent=False) from None
        finally:
            self._waiting.discard(ack)
            ack.cancel()
        if args is None:
            raise ConnectionBroken(self.reason, sent=self._begun)
        error = flat_error(args[0]) if args else None
        is_cut_off = isinstance(error, Unavailable) and error.details.get(CUT_OFF) is True
        self._cut_off = self._cut_off + 1 if is_cut_off else 0
        if self._cut_off >= CUT_OFF_REPLIES:
            self.doubted.set()
        return args[0] if len(args) == 1 else list(args) or None

    async def tell(self, event: str, data: Mapping[str, Any]) -> None:
        if not self.lost.is_set():
            with suppress(BadNamespaceError):
                await self._sio.emit(event, dict(data), namespace=NAMESPACE)

    def give_up(self, reason: str, *, begun: bool = True) -> None:
        """Count the connection as lost; it still has to be closed. `begun`: what was sent last may have been begun."""
        if self.lost.is_set():
            return
        self.reason, self._begun = reason, begun
        self.lost.set()
        self.doubted.set()
        for ack in self._waiting:
            if not ack.done():
                ack.set_result(None)

    async def close(self) -> None:
        self.give_up("closed")
        if self._look is not None:
            self._look.cancel()
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    await self._sio.disconnect()
        finally:
            await self._http.close()
            with suppress(TimeoutError):
                async with asyncio.timeout(CLOSE_S):
                    # the tasks of python-engineio (`pyproject.toml` names what we use beyond the documentation)
                    await asyncio.gather(self._sio.eio.wait(), return_exceptions=True)

    async def open(self) -> None:
        """Raises CannotConnect; SmcpError: the server refused."""
        limits = self._options.model_dump(include={"max_message", "max_values"}, exclude_none=True)
        try:
            async with asyncio.timeout(self._options.connect_timeout):
                await self._sio.connect(
                    self.url,
                    headers=dict(self._options.headers),
                    auth={**self._options.auth, **limits, "flat_errors": True},
                    transports=["websocket"],
                    namespaces=[NAMESPACE],
                    socketio_path=f"{urlsplit(self.url).path.strip('/')}/socket.io".lstrip("/"),
                    wait_timeout=self._options.connect_timeout,
                )
        except SocketIOConnectionError as error:
            raise self._refused() or self._cannot(error) from error
        except (TimeoutError, aiohttp.ClientError, OSError, ValueError, LookupError, TypeError) as error:
            raise self._cannot(error) from error  # the last two: the open packet lacks a field
        if self._http.max_payload is not None:
            self._json.limit(self._http.max_payload)
        # python-socketio calls itself connected also when the socket broke after the namespace's ack
        if self._http.socket is not None and self._http.socket.closed:
            raise self._cannot(ConnectionResetError("the connection broke at once"))
        self._look_for_silence()

    def _look_for_silence(self) -> None:
        """Give the connection up once nothing came for as long as the server promised."""
        if self.lost.is_set():
            return
        loop = asyncio.get_running_loop()
        left = self._http.heard_at + self._http.heartbeat_s - loop.time()
        if left > 0:
            self._look = loop.call_later(left, self._look_for_silence)
        else:
            self.silent = True
            self.give_up(f"nothing was heard for {self._http.heartbeat_s:g} s")

    def _refused(self) -> SmcpError | None:
        data = self._refusal.get("data") if isinstance(self._refusal, dict) else None
        return flat_error(self._refusal) or flat_error(data) or flat_error(self._http.refusal)

    def _cannot(self, error: BaseException) -> CannotConnect:
        within, url = self._options.connect_timeout, without_login(self.url)
        why = f"no answer within {within:g} s" if isinstance(error, TimeoutError) else reason(error)
        return CannotConnect(f"cannot connect to {url}: {why}", details={"urls": {url: why}})

    def _on_connect_error(self, *args: Any) -> None:
        self._refusal = args[0] if args else None

    def _on_disconnect(self, reason: str = "") -> None:
        self.moving = self._http.socket is not None and self._http.socket.close_code == NOTHING_BEGUN
        reason = "the gateway closed the connection to move this client" if self.moving else reason or "connection lost"
        self.give_up(reason, begun=not self.moving)

    def _on_event(self, event: str, *args: Any) -> None:
        self._on_notice(event, args[0] if args and isinstance(args[0], dict) else {})

    async def _on_request(self, event: str, *args: Any) -> JsonText | None:
        """Each runs in a task of its own; notifications are passed on before anything else is heard."""
        answer = self._options.answer
        if answer is None or not event.startswith("client:"):
            self._on_event(event, *args)
            return None
        text = JsonText((await answer(event, args[0] if args else None)).decode())
        try:
            self._json.dumps([text])
        except TooLarge as error:
            refused = TooLarge(ANSWER_TOO_LARGE, details=error.details)
            return JsonText(json.dumps(refused.body().model_dump()))
        return text


async def connect(url: str, options: ConnectionOptions, on_notice: Notice) -> Connection:
    """Open a connection; `on_notice` gets every event the server sends, in order. Raises as `Connection.open`."""
    connection = Connection(url, options, on_notice)
    try:
        await connection.open()
    except BaseException:
        await connection.close()
        raise
    return connection
