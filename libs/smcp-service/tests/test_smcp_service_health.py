"""`/livez`, `/readyz` and `/statz`, over HTTP."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from smcp_service.health import Readiness, Stats, health_routes, serve_health
from smcp_service.http_limits import EdgeRules, UnauthenticatedConnections
from smcp_service.http_server import Listener
from smcp_service.lifecycle import Failure
from smcp_service.metrics import Metrics
from smcp_service.settings import ServiceSettings


@asynccontextmanager
async def serving(readiness: Readiness, stats: Stats | None = None) -> AsyncIterator["Probe"]:
    settings = ServiceSettings(health_port=0, stats=stats is not None)
    async with serve_health(settings, readiness, stats=stats) as server, aiohttp.ClientSession() as http:
        yield Probe(server, http)


class Probe:
    def __init__(self, server: Listener, http: aiohttp.ClientSession) -> None:
        self._server = server
        self._http = http

    async def __call__(self, path: str) -> tuple[int, Any]:
        async with self._http.get(f"{self._server.url}{path}") as response:
            return response.status, await response.json()


async def test_a_process_without_checks_is_live_and_not_ready() -> None:
    async with serving(Readiness()) as probe:
        assert await probe("/livez") == (200, {"status": "ok"})
        status, answer = await probe("/readyz")
        assert (status, answer["checks"]) == (503, {"process": "starting"})


async def test_a_starting_process_reports_what_it_waits_for() -> None:
    readiness, problems = Readiness(), ["the credential is refused"]
    readiness.starting("nats", lambda: problems[0] if problems else None)
    async with serving(readiness) as probe:
        status, answer = await probe("/readyz")
        assert (status, answer["checks"]) == (503, {"nats": "the credential is refused", "process": "starting"})
        problems.clear()
        status, answer = await probe("/readyz")
        assert (status, answer["checks"]) == (503, {"nats": "ok", "process": "starting"})
        readiness.add("office", lambda: None)
        assert await probe("/readyz") == (200, {"status": "ok", "checks": {"office": "ok"}})


async def test_readiness_follows_its_checks_and_names_what_is_wrong() -> None:
    readiness = Readiness()
    problems: list[str] = []
    readiness.add("nats", lambda: problems[0] if problems else None)
    readiness.add("office", lambda: None)
    async with serving(readiness) as probe:
        assert await probe("/readyz") == (200, {"status": "ok", "checks": {"nats": "ok", "office": "ok"}})
        problems.append("no connection")

        checks = {"nats": "no connection", "office": "ok"}
        assert await probe("/readyz") == (503, {"status": "not ready", "checks": checks})
        assert (await probe("/livez"))[0] == 200
        problems.clear()

        assert (await probe("/readyz"))[0] == 200


async def test_a_draining_process_lives_and_is_not_ready() -> None:
    readiness = Readiness()
    async with serving(readiness) as probe:
        readiness.draining = True

        assert await probe("/readyz") == (503, {"status": "not ready", "checks": {"process": "stopping"}})
        assert (await probe("/livez"))[0] == 200


async def test_statz_reports_the_current_counts() -> None:
    stats, calls = Stats(), [1, 2]
    stats["things"] = lambda: {"calls": len(calls)}
    async with serving(Readiness(), stats) as probe:
        status, first = await probe("/statz")
        calls.clear()
        _, second = await probe("/statz")
        assert status == 200
        assert first["things"] == {"calls": 2}
        assert second["things"] == {"calls": 0}
        assert first["process"]["tasks"] > 0


async def test_statz_is_off_by_default() -> None:
    async with serve_health(ServiceSettings(), Readiness(), stats=Stats()) as server, aiohttp.ClientSession() as http:
        async with http.get(f"{server.url}/statz") as response:
            assert response.status == 404


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
async def test_a_request_of_a_page_of_another_origin_is_refused_by_health_ports(host: str) -> None:
    settings, page = ServiceSettings(health_host=host), {"Host": "evil.example", "Origin": "http://evil.example"}
    async with serve_health(settings, Readiness(), Metrics()) as server, aiohttp.ClientSession() as http:
        url = f"http://127.0.0.1:{server.port}"
        for headers, status in ((page, 403), (page | {"Origin": "null"}, 403), ({}, 200)):
            async with http.get(f"{url}/metrics", headers=headers) as response:
                assert response.status == status
        async with http.get(f"{url}/readyz", headers=page) as response:
            assert response.status == 503


async def test_a_port_that_is_taken_is_a_failure_that_names_it() -> None:
    async with serve_health(ServiceSettings(), Readiness()) as first:
        with pytest.raises(Failure, match=f"port {first.port} of 127.0.0.1 is taken"):
            async with serve_health(ServiceSettings(health_port=first.port), Readiness()):
                pass


async def test_an_application_can_answer_them_on_its_own_port() -> None:
    app = web.Application()
    app.add_routes(health_routes(Readiness()))
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/livez") as response:
            assert response.status == 200
            assert response.headers["Cache-Control"] == "no-store"
    finally:
        await runner.cleanup()


def test_the_address_of_ipv6_is_a_url() -> None:
    assert Listener("::1", 80, UnauthenticatedConnections(EdgeRules())).url == "http://[::1]:80"
