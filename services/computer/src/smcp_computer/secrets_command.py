"""The commands `smcp-computer secrets …`: they change values in `config.secret_store`, even of a running Computer."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import typer

from smcp_computer.config.secret_store import SecretStore, is_sealed, unseal_file, write_private
from smcp_computer.control_commands import Json, Name, Office, find, plain, print_json, warn
from smcp_computer.settings import ComputerSettings, state_path
from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError, did_you_mean, load_settings

app = typer.Typer(
    no_args_is_help=True, help="Keep values of inputs encrypted on this host, and encrypt whole configurations."
)

_USED: Final = "a running Computer uses it after: smcp-computer servers restart SERVER"


def _kept_secrets(office: str | None, name: str | None) -> SecretStore:
    """Those of the named Computer. If office or name is missing, of the running Computer that matches."""
    if not ((office or "SMCP_OFFICE" in os.environ) and (name or "SMCP_NAME" in os.environ)):
        with suppress(Failure):  # `load_settings` reports what is missing
            here = find(office, name)
            office, name = here.office, here.name
    # its configuration file does not matter here
    settings = load_settings(ComputerSettings, config=Path(), office=office, name=name)
    return SecretStore(state_path(settings), settings.secret_key_file)


@app.command("set")
def set_value(
    input_id: Annotated[str, typer.Argument(metavar="ID", help="The id of the input")],
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Keep the value of an input. The command asks for it, or reads it from standard input.

    There is no option for the value: others could see it in `ps`.
    """
    if sys.stdin.isatty():
        value = str(typer.prompt(f"The value of {input_id!r} (not shown)", hide_input=True, err=True))
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise Failure("nothing is kept: the value is empty")
    _kept_secrets(office, name).put(input_id, value)
    with suppress(Failure):  # no Computer runs whose inputs are known
        known = [each["id"] for each in find(office, name).ask("GET", "inputs")["inputs"]]
        if input_id not in known:
            warn(f"the configuration has no input {input_id!r}{did_you_mean(input_id, known)}")
    _report("kept", input_id, f"kept {input_id!r}; {_USED}", as_json)


@app.command("list")
def list_names(office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """Print the ids of the inputs whose values are kept; the values are never shown."""
    names = sorted(_kept_secrets(office, name).read())
    if as_json:
        print_json(names)
    else:
        typer.echo("\n".join(names) or "No secrets.", err=not names)


@app.command("rm")
def remove(
    input_ids: Annotated[list[str], typer.Argument(metavar="ID...", help="The ids of the inputs")],
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Forget values."""
    store = _kept_secrets(office, name)
    missing = [each for each in input_ids if not store.remove(each)]
    if missing:
        raise Failure(f"no value is kept for {', '.join(map(repr, missing))}")
    _report("removed", input_ids, f"the values of {', '.join(map(repr, input_ids))} are removed", as_json)


@app.command()
def encrypt(
    file: Annotated[Path, typer.Argument(help="A configuration file; it is replaced")],
    office: Office = None,
    name: Name = None,
    as_json: Json = False,
) -> None:
    """Encrypt a whole configuration file. The commands read it as before."""
    vault = _kept_secrets(office, name).vault
    raw = _content(file)
    if is_sealed(raw):
        raise Failure(f"{file} is encrypted already")
    write_private(file, vault.seal_file(raw))
    _report("encrypted", str(file), f"{file} is encrypted", as_json)


@app.command()
def decrypt(
    file: Annotated[Path, typer.Argument(help="An encrypted configuration file; it is replaced")], as_json: Json = False
) -> None:
    """Write a configuration file as plain text again, to change it."""
    raw = _content(file)
    if not is_sealed(raw):
        raise Failure(f"{file} is not encrypted")
    write_private(file, unseal_file(raw))
    _report("decrypted", str(file), f"{file} is plain text again, which its user alone can read", as_json)


def _report(what: str, changed: str | list[str], sentence: str, as_json: bool) -> None:
    if as_json:
        print_json({what: changed})
    else:
        typer.echo(plain(sentence), err=True)


def _content(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SettingsError(f"{file} cannot be read: {error.strerror}") from None
