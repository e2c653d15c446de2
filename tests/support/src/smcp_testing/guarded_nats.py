"""A real nats-server with the permissions that `smcp nats-config` generates, and credentials for clients.

Gateways, registries and Computers of the tests log in as they do in a system that is spread over hosts. Who comes
without a credential is the test itself, and may do everything: it looks on, and plays parts that nobody has in a sound
system.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Literal, Self

from smcp_bus.nats.config import Credentials, load_credentials
from smcp_standalone.nats_config_file import NatsModel
from smcp_standalone.nats_server_conf import PING_S, Written, new_secret, write
from smcp_testing.nats_process import NatsServer

Kind = Literal["gateway", "registry"]

BYSTANDER: Final = "bystander"
_USERS: Final = '  "users": [\n'
_PINGS: Final = f'ping_interval: "{PING_S}s"'


class GuardedUrl(str):
    """The address of a `GuardedNats`, and who gives credentials for it."""

    __slots__ = ("nats",)
    nats: "GuardedNats"

    def __new__(cls, address: str, nats: "GuardedNats") -> Self:
        url = super().__new__(cls, address)
        url.nats = nats
        return url


class GuardedNats(NatsServer):
    """Credentials of two registries and four gateways are there from the start; for others it reads its file again."""

    ping_s = 60
    """Between pings to its clients; two are waited for. A process of tests may compute for many seconds."""

    def __init__(
        self, directory: Path, *, options: Sequence[str] = (), more: Mapping[str, Any] = MappingProxyType({})
    ) -> None:
        """`more` is what else the file of `smcp nats-config` says."""
        self._model: dict[str, Any] = {
            "offices": ["office"],
            "registries": 2,
            "gateways": 4,
            "computers": [],
            "jetstream": {"store_dir": str((directory / "jetstream").absolute())},
            **more,
        }
        self._taken = Counter[Kind]()
        self._out = directory / "config"
        self._bystander = new_secret()
        self._written = self._write()
        super().__init__(directory, config=self._written.conf, jetstream=False, options=options)  # the file has it

    @property
    def url(self) -> GuardedUrl:
        return GuardedUrl(super().url, self)

    async def service(self, kind: Kind) -> Credentials:
        """The credential of one more gateway or registry."""
        self._taken[kind] += 1
        count = self._taken[kind]
        field = {"gateway": "gateways", "registry": "registries"}[kind]
        if count > self._model[field]:
            self._model[field] = count
            await self._allow()
        return self._read(f"{kind}-{count}")

    async def computer(self, office: str, name: str) -> Credentials:
        """The credential of one more host, with one Computer."""
        hosts = self._model["computers"]
        credential = f"host-{len(hosts) + 1}"
        hosts.append({"credential": credential, "office": office, "names": [name]})
        if office not in self._model["offices"]:
            self._model["offices"].append(office)
        await self._allow()
        return self._read(credential)

    def _read(self, credential: str) -> Credentials:
        return load_credentials(self._written.credentials[credential])

    async def _allow(self) -> None:
        """Write the file anew, and wait until the server has read it; one that does not run reads it when it starts."""
        self._written = self._write()
        await self.read_again()

    def _write(self) -> Written:
        written = write(NatsModel.model_validate(self._model), self._out)
        text = written.conf.read_text(encoding="utf-8")
        user = f'    {{"user": "{BYSTANDER}", "password": "{self._bystander}"}},\n'
        assert text.count(_USERS) == 1
        text = text.replace(_USERS, _USERS + user)
        assert text.count(_PINGS) == 1
        text = text.replace(_PINGS, f'ping_interval: "{self.ping_s}s"')
        written.conf.write_text(f"{text}no_auth_user: {BYSTANDER}\n", encoding="utf-8")
        return written
