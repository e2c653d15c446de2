"""The commands `smcp-computer secrets …`: they change values in `config.secret_store`, even of a running Computer."""

import os
import sys
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from smcp_computer.config.file import parse_config
from smcp_computer.config.lint import ConfigError
from smcp_computer.config.secret_store import SecretsError, SecretStore, is_sealed, unseal_file, write_private
from smcp_computer.control_commands import Json, Name, Office, RunningComputer, find, plain, print_json
from smcp_computer.settings import ComputerSettings, state_path
from smcp_service.lifecycle import Failure
from smcp_service.settings import SettingsError, did_you_mean, load_settings

app = typer.Typer(
    no_args_is_help=True, help="Keep values of inputs encrypted on this host, and encrypt whole configurations."
)

_USED: Final = "a running Computer uses it after: smcp-computer servers restart SERVER"


def store_of(settings: ComputerSettings) -> SecretStore:
    return SecretStore(state_path(settings), settings.secret_key_file)


def _settings(office: str | None, name: str | None) -> ComputerSettings:
    """The settings of the named Computer. If office or name is missing, those of the running Computer that matches."""
    if not ((office or "SMCP_OFFICE" in os.environ) and (name or "SMCP_NAME" in os.environ)):
        with suppress(Failure):  # `load_settings` reports what is missing
            here = find(office, name)
            office, name = here.office, here.name
    # its configuration file does not matter here
    return load_settings(ComputerSettings, config=Path(), office=office, name=name)


def kept_secrets(office: str | None, name: str | None) -> SecretStore:
    return store_of(_settings(office, name))


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
    settings = _settings(office, name)
    if sys.stdin.isatty():
        value = str(typer.prompt(f"The value of {input_id!r} (not shown)", hide_input=True, err=True))
    else:
        value = sys.stdin.read().removesuffix("\n").removesuffix("\r")
    if not value:
        raise Failure("nothing is kept: the value is empty")
    _or_failure(store_of(settings).put, input_id, value)
    computer = RunningComputer(state_path(settings), settings.office, settings.name)
    with suppress(Failure):  # the Computer does not run
        known = [each["id"] for each in computer.ask("GET", "inputs")["inputs"]]
        if input_id not in known:
            typer.echo(
                f"warning: no input of the Computer has the id {input_id!r}{did_you_mean(input_id, known)}", err=True
            )
    _report("kept", input_id, f"kept {input_id!r}; {_USED}", as_json)


@app.command("list")
def list_names(office: Office = None, name: Name = None, as_json: Json = False) -> None:
    """Print the ids of the inputs whose values are kept; the values are never shown."""
    names = sorted(_or_failure(kept_secrets(office, name).read))
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
    store = kept_secrets(office, name)
    missing = [each for each in input_ids if not _or_failure(store.remove, each)]
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
    vault = kept_secrets(office, name).vault
    raw = _content(file)
    if is_sealed(raw):
        raise Failure(f"{file} is encrypted already")
    try:
        parse_config(raw)
    except ConfigError as error:
        raise SettingsError(f"{file} is not encrypted, since it has mistakes: {error}") from None
    _or_failure(write_private, file, _or_failure(vault.seal_file, raw))
    _report("encrypted", str(file), f"{file} is encrypted", as_json)


@app.command()
def decrypt(
    file: Annotated[Path, typer.Argument(help="An encrypted configuration file; it is replaced")], as_json: Json = False
) -> None:
    """Write a configuration file as plain text again, to change it."""
    raw = _content(file)
    if not is_sealed(raw):
        raise Failure(f"{file} is not encrypted")
    _or_failure(write_private, file, _or_failure(unseal_file, raw))
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


def _or_failure(action: Any, *arguments: Any) -> Any:
    try:
        return action(*arguments)
    except SecretsError as error:
        raise Failure(str(error)) from None
