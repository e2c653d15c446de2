"""How an operator's commands reach NATS: by `SMCP_NATS_URL` and `SMCP_NATS_CREDS`, or beside a `smcp up` of this user.

`smcp up` leaves a file for each run, with its NATS and the credential of an operator, which may only read.
"""

import json
import os
import shlex
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel

from smcp_bus.bus import ERROR, BusError, NoResponder, RequestTimedOut, describe
from smcp_bus.nats.bus import NatsBus, open_bus
from smcp_bus.nats.config import BusConfig, configured_credentials, load_credentials
from smcp_bus.subjects import operators
from smcp_computer.settings import states_directory
from smcp_proto.errors import ErrorBody
from smcp_service.lifecycle import Failure
from smcp_service.settings import ServiceSettings, SettingsError, load_settings

CONNECT_S: Final = 5.0
"""A command says soon that nothing answers (seconds)."""
TRY_S: Final = 3.0
"""How long one registry may take to answer (seconds); then NATS chooses one anew, `TRIES` times in all."""
TRIES: Final = 3

Model = TypeVar("Model", bound=BaseModel)


def advertise_run(url: str, credentials: Path, agents_url: str) -> AbstractContextManager[None]:
    """Let commands of this user find this run while the body runs. Raises OSError: the file cannot be written."""
    from smcp_agent.connecting.options import private_file  # noqa: PLC0415 -- Socket.IO takes half a second to load

    said = {"url": url, "credentials": str(credentials.absolute()), "agents_url": agents_url}
    return private_file(_directory() / f"{os.getpid()}.json", json.dumps(said))


@asynccontextmanager
async def operator_bus() -> AsyncIterator[NatsBus]:
    """A bus with the credential of an operator.

    Raises:
        SettingsError: the environment says something wrong.
        Failure: NATS cannot be reached.
    """
    settings = load_settings(ServiceSettings)
    credentials = configured_credentials(settings.nats_creds, kind="operator")
    url = settings.nats_url
    if credentials is None and not os.environ.get("SMCP_NATS_URL") and (beside := _find_local_run()) is not None:
        url, credentials = beside["url"], load_credentials(Path(beside["credentials"]))
    config = BusConfig(
        url=url,
        credentials=credentials,
        ca=settings.nats_ca,
        name="smcp-operator",
        connect_timeout=CONNECT_S,
        patient=False,
    )
    try:
        async with open_bus(config) as bus:
            yield bus
    except BusError as error:
        raise Failure(f"{describe(error)} (SMCP_NATS_URL, SMCP_NATS_CREDS)") from None


async def ask(bus: NatsBus, verb: str, question: BaseModel, answer: type[Model]) -> Model:
    """Ask the registries. Raises Failure."""
    subject, body = operators(bus.credential, verb), question.model_dump_json().encode()
    for left in reversed(range(TRIES)):
        try:
            reply = await bus.request(subject, body, timeout=TRY_S)
        except RequestTimedOut:
            if left:
                continue
            raise Failure("no registry answers in time") from None
        except NoResponder:
            why = "none runs, it is an older one, or NATS does not permit it"
            raise Failure(f"no registry answers: {why}") from None
        except BusError as error:
            raise Failure(str(error)) from None
        if ERROR in reply.headers:
            raise Failure(f"the registry refused: {ErrorBody.model_validate_json(reply.body).message}")
        return answer.model_validate_json(reply.body)
    raise AssertionError


def _find_local_run() -> dict[str, str] | None:
    """The `smcp up` of this user that runs. Raises SettingsError: there are several."""
    found = []
    for path in _directory().glob("*.json"):
        with suppress(OSError, ValueError, KeyError, TypeError):
            os.kill(int(path.stem), 0)
            said = json.loads(path.read_text(encoding="utf-8"))
            if Path(said["credentials"]).is_file():
                found.append({"agents_url": "", **said})
    if len(found) > 1:
        each = "".join(
            f"\n  SMCP_NATS_URL={run['url']} SMCP_NATS_CREDS={shlex.quote(run['credentials'])}  # {run['agents_url']}"
            for run in found
        )
        raise SettingsError(
            f"SMCP_NATS_URL: {len(found)} `smcp up` processes are running; set the variables of one:{each}"
        )
    return found[0] if found else None


def _directory() -> Path:
    return states_directory() / "runs"
