"""Real nats-servers with the permissions that `smcp nats-config` generates, and credentials for clients.

Gateways, registries and Computers of the tests log in as they do in a system that is spread over hosts. Who comes
without a credential is the test itself, and may do everything: it looks on, and plays parts that nobody has in a sound
system.

A `GuardedNats` belongs to one test, which may stop or suspend it. Other tests have an account of their own on one
server (`nats_accounts`).
"""

import secrets
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from smcp_bus.nats.config import Credentials, load_credentials
from smcp_standalone.nats_config_file import NatsModel
from smcp_standalone.nats_server import PING_S, Written, write
from smcp_testing.nats_process import NatsServer

Kind = Literal["gateway", "registry"]

BYSTANDER: Final = "bystander"
_USERS: Final = '  "users": [\n'
_PINGS: Final = f'ping_interval: "{PING_S}s"'


class GuardedUrl(str):
    """The address of a nats-server, and who gives credentials for it."""

    __slots__ = ("nats",)
    nats: "Guard"

    def __new__(cls, address: str, nats: "Guard") -> Self:
        url = super().__new__(cls, address)
        url.nats = nats
        return url


class Guard(ABC):
    """Gives credentials. Those of two registries and four gateways are there from the start."""

    def __init__(self, more: Mapping[str, Any]) -> None:
        """`more` is what else the file of `smcp nats-config` says."""
        self._given: dict[str, Any] = {
            "offices": ["office"],
            "registries": [f"registry-{number}" for number in (1, 2)],
            "gateways": [f"gateway-{number}" for number in (1, 2, 3, 4)],
            "computers": [],
            **more,
        }
        self._taken = Counter[Kind]()

    @property
    def model(self) -> NatsModel:
        return NatsModel.model_validate(self._given)

    async def service(self, kind: Kind) -> Credentials:
        """The credential of one more gateway or registry."""
        self._taken[kind] += 1
        name = f"{kind}-{self._taken[kind]}"
        given = self._given[{"gateway": "gateways", "registry": "registries"}[kind]]
        if name not in given:
            given.append(name)
            await self.allow()
        return self.credentials(name)

    async def computer(self, office: str, name: str) -> Credentials:
        """The credential of one more host, with one Computer."""
        hosts = self._given["computers"]
        credential = f"host-{len(hosts) + 1}"
        hosts.append({"credential": credential, "office": office, "names": [name]})
        if office not in self._given["offices"]:
            self._given["offices"].append(office)
        await self.allow()
        return self.credentials(credential)

    @abstractmethod
    def credentials(self, name: str) -> Credentials: ...

    @abstractmethod
    async def allow(self) -> None:
        """Write the server's file anew, and wait until the server has read it, if it runs."""


class GuardedNats(NatsServer, Guard):
    """A server with the file that `smcp nats-config` writes; for further credentials it reads the file again."""

    ping_s = 60
    """Between pings to its clients; two are waited for. A process of tests may compute for many seconds."""

    def __init__(
        self, directory: Path, *, options: Sequence[str] = (), more: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """`more` is what else the file of `smcp nats-config` says."""
        Guard.__init__(self, {"jetstream": {"store_dir": str((directory / "jetstream").absolute())}, **more})
        self._out = directory / "config"
        self._bystander = secrets.token_urlsafe(32)
        self._written = self._write()
        NatsServer.__init__(
            self,
            directory,
            config=self._written.conf,
            jetstream=False,
            options=options,  # the file has it
        )

    @property
    def url(self) -> GuardedUrl:
        return GuardedUrl(super().url, self)

    def credentials(self, name: str) -> Credentials:
        return load_credentials(self._written.credentials[name])

    async def allow(self) -> None:
        self._written = self._write()
        await self.read_again()

    def _write(self) -> Written:
        written = write(self.model, self._out)
        text = written.conf.read_text(encoding="utf-8")
        user = f'    {{"user": "{BYSTANDER}", "password": "{self._bystander}"}},\n'
        assert text.count(_USERS) == 1
        text = text.replace(_USERS, _USERS + user)
        assert text.count(_PINGS) == 1
        text = text.replace(_PINGS, f'ping_interval: "{self.ping_s}s"')
        written.conf.write_text(f"{text}no_auth_user: {BYSTANDER}\n", encoding="utf-8")
        return written
