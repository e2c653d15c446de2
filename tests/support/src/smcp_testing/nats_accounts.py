"""One nats-server for all tests of a worker, on which each test has an account of its own.

An account has its own subjects, connections and JetStream: nothing passes from one to another. Its credentials have the
permissions that `smcp nats-config` generates. For another account the server reads its file again. That took 15 ms of
processor time with one connection and one bucket, a server for each test 48 ms.
"""

import json
import os
import secrets
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from pydantic import TypeAdapter

from smcp_bus.nats.config import Credentials
from smcp_standalone import die_with_parent
from smcp_standalone.nats_server import credential_file, grants, user_entry
from smcp_testing.guarded_nats import Guard, GuardedNats, GuardedUrl
from smcp_testing.nats_process import NatsServer
from smcp_testing.waiting import eventually

_LIMITS: Final = {"max_mem": 64 * 1024**2, "max_file": 512 * 1024**2, "max_streams": 16, "max_consumers": 64}
"""Of an account's JetStream; sizes in bytes. The audit trail reserves 256 MiB."""
_CREDENTIALS: Final = TypeAdapter(Credentials)


class AccountServer(NatsServer):
    """No test may stop, suspend or reconfigure it."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._conf = directory / "nats-server.conf"
        super().__init__(directory, config=self._conf, jetstream=False)  # the file has it
        self._open: list[_Account] = []
        self._closed: list[_Account] = []
        self._count = 0
        self._write()

    @asynccontextmanager
    async def account(self) -> AsyncIterator[GuardedUrl]:
        """The address with which the test itself logs in to an account of its own.

        Raises:
            AssertionError: a connection to the account is left.
        """
        self._count += 1
        account = _Account(self, f"test-{self._count}")
        self._open.append(account)
        await self.read_accounts()
        try:
            yield account.url
        finally:
            self._open.remove(account)
            self._closed.append(account)
        left = "the test left connections to nats-server"
        await eventually(lambda: self._disconnected(account), message=left, pause=0.002)

    async def read_accounts(self) -> None:
        """Let the server read which accounts and credentials there are."""
        self._write()
        await self.read_again()
        for account in self._closed:
            shutil.rmtree(self.directory / "jetstream" / "jetstream" / account.name, ignore_errors=True)
        self._closed.clear()

    def _command(self, ports: Path) -> list[str]:
        """It ends with this worker, however that happens."""
        return [sys.executable, "-I", die_with_parent.__file__, str(os.getpid()), *super()._command(ports)]

    def _write(self) -> None:
        accounts = {
            # not left out at once: the server would keep the streams of an account that its file no longer names
            **{each.name: {"jetstream": "disabled"} for each in self._closed},
            **{each.name: {"jetstream": _LIMITS, "users": each.users()} for each in self._open},
        }
        settings = {
            "ping_interval": f"{GuardedNats.ping_s}s",
            "http": "127.0.0.1:-1",
            "jetstream": {
                "store_dir": str((self.directory / "jetstream").absolute()),
                "max_file_store": 16 * 1024**3,  # above what the accounts reserve; else it follows from the free space
                "max_memory_store": 1024**3,
            },
            "accounts": accounts,
        }
        self._conf.write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in settings.items()), "utf-8")

    def _disconnected(self, account: "_Account") -> bool:
        with closing(HTTPConnection(urlsplit(self.monitoring_url).netloc, timeout=10)) as monitoring:
            monitoring.request("GET", f"/connz?acc={account.name}&auth=1")
            left = json.load(monitoring.getresponse())["connections"]
        assert left == [], left
        return True


class _Account(Guard):
    def __init__(self, server: AccountServer, name: str) -> None:
        super().__init__({})
        self.name = name
        self._server = server
        self._secret = secrets.token_urlsafe(32)

    @property
    def url(self) -> GuardedUrl:
        return GuardedUrl(self._server.url.replace("://", f"://{self.name}:{self._secret}@"), self)

    def credentials(self, name: str) -> Credentials:
        file = credential_file(name, self._secret)
        return replace(_CREDENTIALS.validate_json(file), user=self._login(name))

    async def allow(self) -> None:
        await self._server.read_accounts()

    def users(self) -> list[dict[str, Any]]:
        """The test itself, which may do everything, and all credentials."""
        granted = [user_entry(self._login(name), self._secret, grant) for name, grant in grants(self.model).items()]
        return [{"user": self.name, "password": self._secret}, *granted]

    def _login(self, name: str) -> str:
        """The user of a credential: a server has no two of the same name."""
        return f"{self.name}.{name}"
