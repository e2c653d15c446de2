"""The containers that a world is made of: their images, settings, credentials and ports."""

import json
import os
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Final

from smcp_standalone.nats_config_file import NatsModel
from smcp_standalone.nats_server import Written
from smcp_testing.ports import Ports
from tests.e2e.worlds import clocks, nats_nodes
from tests.e2e.worlds.container import USER, Container, Made, hand_over, in_image
from tests.e2e.worlds.disk import Disk, open_disk
from tests.e2e.worlds.engine import image, nats_image
from tests.e2e.worlds.layout import Place, connected
from tests.e2e.worlds.nats_nodes import CLIENTS, MONITORING
from tests.e2e.worlds.network import CutNetwork
from tests.e2e.worlds.world import MARK, Collector, ComputerHost, Gateway, World, instance

LABEL: Final = "smcp.e2e"
"""Of all containers and networks of the tests: `docker ps --filter label=smcp.e2e` finds what a killed run left."""
_HEALTH, _CLIENTS, _OTLP = 8080, 8000, 4318


@dataclass(kw_only=True)
class ContainerParts:
    """See `open_containers` for what is not said here. Nothing runs before `running` starts it.

    Args:
        stack: removes the containers.
        mark: of everything that is made.
        network: that all of them are on.
        places: all Computers.
    """

    stack: ExitStack
    directory: Path
    mark: str
    network: CutNetwork
    lease_s: float
    gateways: int
    registries: int
    environment: Mapping[str, str]
    of_their_own: Mapping[str, Mapping[str, str]]
    places: Sequence[Place]
    shown: Sequence[Path]
    tag: str
    nodes: int
    store: str | None
    ahead: Mapping[str, int]
    offices: Sequence[str]
    rebalance_s: float
    health_s: float | None
    collector: bool
    _ports: Ports = field(default_factory=Ports)

    def world(self) -> World:
        """All of them, each made once."""
        return World(
            name="containers",
            nats=self._node(self._node_names[0], self._nats_port, self._monitoring),
            more_nats=[self._node(name, self._ports.take(), self._ports.take()) for name in self._node_names[1:]],
            nats_url=f"nats://127.0.0.1:{self._nats_port}",
            nats_model=self._model,
            credentials=self._written.conf.parent / "creds",
            registries=[self._registry(name) for name in self._model.registries],
            gateways=[self._gateway(name) for name in self._model.gateways],
            computers=[self._computer(place) for place in self.places],
            lease_s=self.lease_s,
            spread=True,
            mark=self.mark,
            disk=self._disk,
            collector=self._collector() if self.collector else None,
        )

    @cached_property
    def _nats_port(self) -> int:
        return self._ports.take()

    @cached_property
    def _monitoring(self) -> int:
        return self._ports.take()

    @property
    def _node_names(self) -> list[str]:
        return ["nats", *(f"nats-{number}" for number in range(2, self.nodes + 1))]

    @cached_property
    def _model(self) -> NatsModel:
        return NatsModel.model_validate(
            {
                "offices": sorted({*self.offices, *(place.office for place in self.places)}),
                "registries": [f"registry-{number}" for number in range(1, self.registries + 1)],
                "gateways": [f"gateway-{number}" for number in range(1, self.gateways + 1)],
                "operators": ["operator"],
                "computers": [
                    {"credential": place.credential, "office": place.office, "names": [place.name]}
                    for place in self.places
                ],
                "listen": f"127.0.0.1:{self._nats_port}",
                "http": f"127.0.0.1:{self._monitoring}",
            }
        )

    @cached_property
    def _written(self) -> Written:
        return nats_nodes.write(self._model, self.directory, self._node_names)

    @cached_property
    def _disk(self) -> Disk | None:
        if self.store is None:
            return None
        user = USER if os.getuid() == 0 else os.getuid()
        labels = {LABEL: self.mark}
        any_image = image("smcp-registry", self.tag)
        return self.stack.enter_context(
            open_disk(f"smcp-e2e-{self.mark}", self.store, user=user, image=any_image, labels=labels)
        )

    def _collector(self) -> Collector:
        """The receiver of the tests, as no collector's image is built here. It takes no mark: it outlives the parts."""
        url = f"http://127.0.0.1:{(port := self._ports.take())}"
        made = Made(
            image("smcp-computer-testing", self.tag),
            ("0.0.0.0", str(_OTLP)),
            {},
            self.network,
            publish={_OTLP: port},
            mounts=[],
            alias="collector",
            labels={LABEL: self.mark},
            entrypoint=("/opt/testing/bin/python", "-m", "smcp_testing.otlp_receiver"),
        )
        return Collector(url, self._container("collector", made, ready=f"{url}/api/services"))

    def _node(self, name: str, port: int, monitoring: int) -> Container:
        home, conf = self.directory / name, self._written.conf
        hand_over(home)
        disk = self._disk
        return self._container(
            name,
            Made(
                nats_image(),
                ("-c", str(home / conf.name)),
                {MARK: self.mark},
                self.network,
                publish={CLIENTS: port, MONITORING: monitoring},
                mounts=[home],
                alias=name,
                labels={LABEL: self.mark},
                volumes={} if disk is None else {disk.volume: conf.parent / self._model.jetstream.store_dir},
            ),
            ready=f"http://127.0.0.1:{monitoring}/healthz",
        )

    def _registry(self, credential: str) -> Container:
        return self._service("smcp-registry", credential, _HEALTH, SMCP_KV_REPLICAS=str(min(self.nodes, 3)))

    def _gateway(self, credential: str) -> Gateway:
        container = self._service("smcp-gateway", credential, _CLIENTS, SMCP_REBALANCE_S=f"{self.rebalance_s:g}")
        return Gateway(container.ready_url.removesuffix("/readyz"), container)

    def _computer(self, place: Place) -> ComputerHost:
        home = self.directory / place.credential
        home.mkdir()
        config = _config(place, home)
        hand_over(home)
        arguments = ("run", "--config", str(config), "--office", place.office, "--name", place.name)
        url = place.gateway and f"http://{place.gateway}:{_CLIENTS}"
        host = self._service(
            "smcp-computer-testing", place.credential, _HEALTH, *arguments, mounts=[home], over_gateway=url
        )
        return ComputerHost(place.office, place.name, host, place.ran(home))

    def _service(
        self,
        kind: str,
        credential: str,
        port_inside: int,
        *arguments: str,
        mounts: Sequence[Path] = (),
        over_gateway: str | None = None,
        **own: str,
    ) -> Container:
        port, creds, tagged, clock = (
            self._ports.take(),
            self._written.credentials[credential],
            image(kind, self.tag),
            {},
        )
        health = port if port_inside == _HEALTH else self._ports.take()
        if credential in self.ahead:
            tagged, clock = clocks.with_faketime(tagged), clocks.ahead(self.ahead[credential])
        settings = {
            MARK: self.mark,
            **connected(",".join(f"nats://{name}:{CLIENTS}" for name in self._node_names), creds, over_gateway),
            "SMCP_LEASE_S": str(self.lease_s),
            "SMCP_STATS": "1",
            "SMCP_INSECURE": "1",  # clients of these scenarios have no tokens, and a container's loopback is its own
            "SMCP_LOG_FORMAT": "json",
            **instance(credential),
        }
        if self.collector:
            settings["OTEL_EXPORTER_OTLP_ENDPOINT"] = f"http://collector:{_OTLP}"
        told = {**self.environment, **self.of_their_own.get(credential, {})}
        return self._container(
            credential,
            Made(
                tagged,
                arguments,
                {**settings, **told, **clock, **own},
                self.network,
                publish={port_inside: port, _HEALTH: health},
                mounts=[creds, *mounts],
                shown=self.shown if kind.startswith("smcp-computer") else (),
                alias=credential,
                labels={LABEL: self.mark},
                health_s=self.health_s,
            ),
            ready=f"http://127.0.0.1:{port}/readyz",
            health=f"http://127.0.0.1:{health}",
        )

    def _container(self, name: str, made: Made, *, ready: str, health: str | None = None) -> Container:
        container = Container(name, made, self.directory, ready, health)
        self.stack.callback(container.remove)
        return container


def _config(place: Place, home: Path) -> Path:
    """The Computer's configuration, with the MCP servers that are in the image."""
    path = place.config(home)
    told = json.loads(path.read_text(encoding="utf-8"))
    servers = {name: in_image(server) for name, server in told["servers"].items()}
    path.write_text(json.dumps({**told, "servers": servers}), encoding="utf-8")
    return path
