"""`/livez` (the process runs), `/readyz` (it can do its work), `/metrics`, `/statz` (what it holds; `SMCP_STATS`)."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

from smcp_service.http_limits import EdgeRules
from smcp_service.http_server import Listener, listening
from smcp_service.metrics import Metrics
from smcp_service.settings import ServiceSettings, is_loopback

Check = Callable[[], str | None]
"""Asked at every request, so cheap and without waiting: None when all is well, else what is not."""


class Readiness:
    """Whether this process can do its work: all checks are well, and it does not stop. Without checks it starts."""

    def __init__(self) -> None:
        self._checks: dict[str, Check] = {}
        self._starting: dict[str, Check] = {}
        self._notes: dict[str, Check] = {}
        self.draining = False

    def add(self, name: str, check: Check) -> None:
        self._checks[name] = check

    def starting(self, name: str, check: Check) -> None:
        """A check for as long as the process starts: what it waits for. The first that is added takes its place."""
        self._starting[name] = check

    def note(self, name: str, check: Check) -> None:
        """What is to be seen in the report, and does not keep the process from its work."""
        self._notes[name] = check

    def problems(self) -> dict[str, str]:
        checks = self._checks or self._starting
        problems = {name: problem for name, check in checks.items() if (problem := check()) is not None}
        if self.draining:
            problems["process"] = "stopping"
        elif not self._checks:
            problems["process"] = "starting"
        return problems

    def report(self) -> tuple[bool, dict[str, str]]:
        problems = self.problems()
        notes = {name: check() or "ok" for name, check in self._notes.items()}
        return not problems, dict.fromkeys(self._checks or self._starting, "ok") | notes | problems


Stats = dict[str, Callable[[], Mapping[str, int]]]
"""Asked at every request, so cheap and without waiting: how many, by what they are."""


def health_routes(
    readiness: Readiness, stats: Stats | None = None, metrics: Metrics | None = None
) -> list[web.RouteDef]:
    """`GET /livez` (always 200) and `GET /readyz` (200 or 503); with them `/statz` and `/metrics`."""

    async def livez(request: web.Request) -> web.Response:
        return _json(200, {"status": "ok"})

    async def readyz(request: web.Request) -> web.Response:
        ready, checks = readiness.report()
        return _json(200 if ready else 503, {"status": "ok" if ready else "not ready", "checks": checks})

    async def statz(request: web.Request) -> web.Response:
        held = {name: dict(source()) for name, source in (stats or {}).items()}
        return _json(200, {"process": {"tasks": len(asyncio.all_tasks())}, **held})

    async def scraped(request: web.Request) -> web.Response:
        assert metrics is not None
        body, content_type = metrics.scraped(request.headers.get("Accept", ""))
        return web.Response(body=body, headers={"Content-Type": content_type, "Cache-Control": "no-store"})

    asked = [web.get("/livez", livez), web.get("/readyz", readyz)]
    if stats is not None:
        asked.append(web.get("/statz", statz))
    if metrics is not None:
        asked.append(web.get("/metrics", scraped))
    return asked


@asynccontextmanager
async def serve_health(
    settings: ServiceSettings, readiness: Readiness, metrics: Metrics | None = None, stats: Stats | None = None
) -> AsyncIterator[Listener]:
    """Answer where the settings say while the body runs; `stats` if they say so. Raises Failure: see `listening`."""
    app, host = web.Application(), settings.health_host
    app.add_routes(health_routes(readiness, stats if settings.stats else None, metrics))
    rules = EdgeRules(hosts=() if is_loopback(host) else None)
    async with listening(app, host, settings.health_port, rules, choose="SMCP_HEALTH_PORT") as server:
        yield server


def _json(status: int, body: dict[str, object]) -> web.Response:
    return web.json_response(body, status=status, headers={"Cache-Control": "no-store"})
