"""`smcp nats-config`: writes what `nats_config` says, and keeps the secrets that are there.

OUT/nats-server.conf          0600
OUT/creds/<credential>.json   0600, the name encoded as in subjects; for SMCP_NATS_CREDS
OUT/former/<credential>.json  0600, the secret of before, while that is taken, too
OUT/cluster-secret            0600, where there is a cluster
"""

import errno
import json
import os
import re
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from smcp_proto.member_names import encode_name
from smcp_service.settings import did_you_mean
from smcp_standalone import nats_config
from smcp_standalone.nats_config import Login
from smcp_standalone.nats_model import NatsConfigError, NatsModel, parse_model

_PRIVATE = 0o600
_PRIVATE_DIR = 0o700
_FORMER = "former"


@dataclass(frozen=True, slots=True)
class Written:
    """Where things are now, and which files of credentials no longer belong to anyone."""

    conf: Path
    credentials: dict[str, Path]
    forgotten: tuple[Path, ...]
    former: tuple[str, ...] = ()
    """The credentials whose former secret is taken, too."""


def read_model(path: Path) -> NatsModel:
    """Read the YAML file. Raises NatsConfigError, naming file and field."""
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise NatsConfigError(f"{path}: is no UTF-8 text") from None
    except OSError as error:
        raise NatsConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    try:
        return parse_model(text)
    except NatsConfigError as error:
        raise NatsConfigError(*(f"{path}: {problem}" for problem in error.problems)) from None


def credential_path(out: Path, name: str) -> Path:
    """Where `write` puts the credential `name`."""
    return out / "creds" / f"{encode_name(name)}.json"


def write(model: NatsModel, out: Path, *, renew: Collection[str] = (), retire: bool = False) -> Written:
    """Write the configuration and the credentials into `out`; a second run changes only what the model changed.

    Args:
        renew: credentials that get a new secret; nats-server takes the former one, too.
        retire: it takes former ones no more.

    Raises:
        NatsConfigError: a file that is there cannot be read, one to renew is not there, or not everything can
            be written: nothing is changed then.
    """
    creds, conf = out / "creds", out / "nats-server.conf"
    files = {name: credential_path(out, name) for name in nats_config.grants(model)}
    now = {name: _kept_login(name, path) for name, path in files.items()}
    before = {} if retire else {name: _kept_login(name, _former_path(out, name)) for name in files}
    for name in renew:
        if name not in files:
            hint = did_you_mean(name, files)
            raise NatsConfigError(f"--renew {name}: there is no such credential in the file{hint}")
        if before.get(name) is not None:
            raise NatsConfigError(f"--renew {name}: its former secret is taken still; --retire that first")
        before[name], now[name] = now[name], None
    former = {name: login for name, login in before.items() if login is not None}
    logins = {name: login or nats_config.new_login(name, former.get(name)) for name, login in now.items()}
    taken = {name: [login, *(kept for kept in (former.get(name),) if kept)] for name, login in logins.items()}
    cluster_secret = None if model.cluster is None else _kept_cluster_secret(out) or nats_config.new_secret()
    store = str((out / model.jetstream.store_dir).absolute())
    placed = model.model_copy(update={"jetstream": model.jetstream.model_copy(update={"store_dir": store})})
    # The former ones first: whatever is written when this ends in the middle, the next run takes them, too.
    texts = {_former_path(out, name): nats_config.credential_file(name, login, {}) for name, login in former.items()}
    for name, purpose in nats_config.purposes(model).items():
        texts[files[name]] = nats_config.credential_file(name, logins[name], purpose)
    if cluster_secret is not None:
        texts[_cluster_path(out)] = cluster_secret + "\n"
    texts[conf] = nats_config.render(placed, taken, cluster_secret)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for directory in {path.parent for path in texts} - {out}:
            directory.mkdir(mode=_PRIVATE_DIR, exist_ok=True)
        _write_private(texts)
        for path in set((out / _FORMER).glob("*.json")) - set(texts):
            path.unlink()
        forgotten = tuple(sorted(set(creds.glob("*.json")) - set(files.values())))
    except OSError as error:
        raise NatsConfigError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from error
    return Written(conf=conf, credentials=files, forgotten=forgotten, former=tuple(former))


def _former_path(out: Path, name: str) -> Path:
    return out / _FORMER / f"{encode_name(name)}.json"


def _kept_login(name: str, path: Path) -> Login | None:
    """What stands in a credential's file that was written before; None where there is none yet."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NatsConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except ValueError as error:
        raise NatsConfigError(f"{path}: not a credential file ({error}); remove it for a new secret") from error
    known = content if isinstance(content, dict) and content.get("name") == name else {}
    user, secret = known.get("user", name), known.get("secret")
    if not isinstance(secret, str) or not secret or user not in nats_config.users(name):
        raise NatsConfigError(f"{path}: not the credential of {name!r}; remove it for a new secret")
    return Login(user, secret)


def _cluster_path(out: Path) -> Path:
    return out / "cluster-secret"


def _kept_cluster_secret(out: Path) -> str | None:
    """As `_kept_login`, for what the nodes of a cluster tell each other."""
    path = _cluster_path(out)
    try:
        secret = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NatsConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        secret = ""
    if not re.fullmatch(r"[A-Za-z0-9_-]+", secret):
        raise NatsConfigError(f"{path}: not the secret of a cluster; remove it for a new one")
    return secret


def _write_private(texts: Mapping[Path, str]) -> None:
    """Replace the files when all of them are written, each at once: a reader sees the old one or the new one.

    Nobody else may read them.
    """
    written: dict[Path, Path] = {}
    try:
        for path, text in texts.items():
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
            written[path] = Path(name)
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
            written[path].chmod(_PRIVATE)
        for path, temporary in written.items():
            temporary.replace(path)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)
