"""`smcp nats-config`: writes what `nats_server_conf` says, and keeps the secrets that are there.

OUT/nats-server.conf          0600
OUT/creds/<credential>.json   0600, the name encoded as in subjects; for SMCP_NATS_CREDS
OUT/former/<credential>.json  0600, the secret of before, while that is taken, too
OUT/cluster-secret            0600, where there is a cluster
"""

import json
import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from smcp_proto.member_names import encode_name
from smcp_service.atomic_files import replace_files
from smcp_service.settings import did_you_mean
from smcp_standalone import nats_server_conf
from smcp_standalone.nats_config_file import NatsConfigError, NatsModel, parse_model
from smcp_standalone.nats_server_conf import Login


@dataclass(frozen=True, slots=True)
class Written:
    conf: Path
    credentials: dict[str, Path]
    forgotten: tuple[Path, ...]
    """Files of credentials that no longer belong to anyone."""
    former: tuple[str, ...] = ()
    """The credentials whose former secret is taken, too."""


def read_model(path: Path) -> NatsModel:
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
    return out / "creds" / f"{encode_name(name)}.json"


def write(model: NatsModel, out: Path, *, renew: Collection[str] = (), retire: bool = False) -> Written:
    """Write the configuration and the credentials into `out`; a second run changes only what the model changed.

    The credentials in `renew` get a new secret, and nats-server takes the former one, too, until `retire`.
    Raises `NatsConfigError` where a file cannot be read or written: nothing is changed then.
    """
    conf, grants = out / "nats-server.conf", nats_server_conf.grants(model)
    files = {name: credential_path(out, name) for name in grants}
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
    logins = {name: login or nats_server_conf.new_login(name, former.get(name)) for name, login in now.items()}
    taken = {name: [login, *(kept for kept in (former.get(name),) if kept)] for name, login in logins.items()}
    cluster_secret = None if model.cluster is None else _kept_cluster_secret(out) or nats_server_conf.new_secret()
    store = str((out / model.jetstream.store_dir).absolute())
    placed = model.model_copy(update={"jetstream": model.jetstream.model_copy(update={"store_dir": store})})
    # The former ones first: whatever is written when this ends in the middle, the next run takes them, too.
    texts = {
        _former_path(out, name): nats_server_conf.credential_file(name, login, {}) for name, login in former.items()
    }
    for name, grant in grants.items():
        texts[files[name]] = nats_server_conf.credential_file(name, logins[name], grant.purpose)
    if cluster_secret is not None:
        texts[out / "cluster-secret"] = cluster_secret + "\n"
    texts[conf] = nats_server_conf.render(placed, taken, cluster_secret)
    try:
        out.mkdir(parents=True, exist_ok=True)
        for directory in {path.parent for path in texts} - {out}:
            directory.mkdir(mode=0o700, exist_ok=True)
        replace_files({path: text.encode() for path, text in texts.items()})
        for path in set((out / "former").glob("*.json")) - set(texts):
            path.unlink()
        forgotten = tuple(sorted(set((out / "creds").glob("*.json")) - set(files.values())))
    except OSError as error:
        raise NatsConfigError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from error
    return Written(conf=conf, credentials=files, forgotten=forgotten, former=tuple(former))


def _former_path(out: Path, name: str) -> Path:
    return out / "former" / f"{encode_name(name)}.json"


def _kept_login(name: str, path: Path) -> Login | None:
    try:
        text = _kept(path)
        if text is None:
            return None
        content = json.loads(text)
    except ValueError as error:
        raise NatsConfigError(f"{path}: not a credential file ({error}); remove it for a new secret") from error
    known = content if isinstance(content, dict) and content.get("name") == name else {}
    user, secret = known.get("user", name), known.get("secret")
    if not isinstance(secret, str) or not secret or user not in nats_server_conf.users(name):
        raise NatsConfigError(f"{path}: not the credential of {name!r}; remove it for a new secret")
    return Login(user, secret)


def _kept_cluster_secret(out: Path) -> str | None:
    path = out / "cluster-secret"
    try:
        secret = _kept(path)
    except UnicodeDecodeError:
        secret = ""
    if secret is not None and not re.fullmatch(r"[A-Za-z0-9_-]+\s*", secret):
        raise NatsConfigError(f"{path}: not the secret of a cluster; remove it for a new one")
    return None if secret is None else secret.strip()


def _kept(path: Path) -> str | None:
    """The text of an existing file; None where there is none."""
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise NatsConfigError(f"{path}: cannot be read: {error.strerror or error}") from None
