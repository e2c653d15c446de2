"""`smcp nats-config`: writes what `nats_config` says, and keeps the secrets that are there.

OUT/nats-server.conf          0600
OUT/creds/<credential>.json   0600, the name encoded as in subjects; for SMCP_NATS_CREDS
OUT/cluster-secret            0600, where there is a cluster
"""

import json
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

from smcp_proto.names import encode_name
from smcp_standalone import nats_config
from smcp_standalone.nats_model import NatsConfigError, NatsModel, parse_model

_PRIVATE = 0o600
_PRIVATE_DIR = 0o700


@dataclass(frozen=True, slots=True)
class Written:
    """Where things are now, and which files of credentials no longer belong to anyone."""

    conf: Path
    credentials: dict[str, Path]
    forgotten: tuple[Path, ...]


def read_model(path: Path) -> NatsModel:
    """Read the YAML file. Raises NatsConfigError, naming file and field."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise NatsConfigError(f"{path}: cannot be read: {error}") from error
    try:
        return parse_model(text)
    except NatsConfigError as error:
        raise NatsConfigError("\n".join(f"{path}: {line}" for line in str(error).splitlines())) from error


def credential_path(out: Path, name: str) -> Path:
    """Where `write` puts the credential `name`."""
    return out / "creds" / f"{encode_name(name)}.json"


def write(model: NatsModel, out: Path) -> Written:
    """Write the configuration and the credentials into `out`; a second run changes only what the model changed.

    Raises:
        NatsConfigError: a file that is there cannot be read, or nothing can be written.
    """
    creds = out / "creds"
    try:
        out.mkdir(parents=True, exist_ok=True)
        creds.mkdir(mode=_PRIVATE_DIR, exist_ok=True)
        files = {name: credential_path(out, name) for name in nats_config.grants(model)}
        known = {name: _kept_secret(name, path) or nats_config.new_secret() for name, path in files.items()}
        for name, purpose in nats_config.purposes(model).items():
            _write_private(files[name], nats_config.credential_file(name, known[name], purpose))
        conf = out / "nats-server.conf"
        store = str((out / model.jetstream.store_dir).absolute())
        placed = model.model_copy(update={"jetstream": model.jetstream.model_copy(update={"store_dir": store})})
        _write_private(conf, nats_config.render(placed, known, _cluster_secret(model, out)))
        forgotten = tuple(sorted(set(creds.glob("*.json")) - set(files.values())))
    except OSError as error:
        raise NatsConfigError(f"{out}: cannot be written: {error}") from error
    return Written(conf=conf, credentials=files, forgotten=forgotten)


def _kept_secret(name: str, path: Path) -> str | None:
    """The secret of a credential that was written before; None where there is none yet."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise NatsConfigError(f"{path}: not a credential file ({error}); remove it for a new secret") from error
    secret = content.get("secret") if isinstance(content, dict) else None
    if not isinstance(secret, str) or not secret or content.get("name") != name:
        raise NatsConfigError(f"{path}: not the credential of {name!r}; remove it for a new secret")
    return secret


def _cluster_secret(model: NatsModel, out: Path) -> str | None:
    if model.cluster is None:
        return None
    path = out / "cluster-secret"
    if path.exists():
        return path.read_text(encoding="ascii").strip()
    secret = nats_config.new_secret()
    _write_private(path, secret + "\n")
    return secret


def _write_private(path: Path, text: str) -> None:
    """Replace the file at once, so that a reader sees the old or the new one; nobody else may read it."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        Path(temporary).chmod(_PRIVATE)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
