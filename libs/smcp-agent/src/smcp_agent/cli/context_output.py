"""How desktops, documents and resources are printed for people."""

from collections.abc import Sequence

import typer

from smcp_agent.cli.output import plain, print_hint, print_table
from smcp_agent.desktop import Desktop, windows
from smcp_agent.finder import DocumentSummary
from smcp_agent.resource_lists import Resource


def print_desktop(desktop: Desktop, why_empty: str) -> None:
    """Each window's URI and its text, an empty line between windows; without any `why_empty`."""
    shown = windows(desktop)
    for number, window in enumerate(shown):
        if number:
            typer.echo()
        typer.secho(plain(window.uri), bold=True)
        if window.text:
            typer.echo(plain(window.text))
    if not shown:
        print_hint(why_empty)


def print_documents(documents: Sequence[DocumentSummary]) -> None:
    if not documents:
        print_hint("No documents.")
        return
    rows = [
        (
            each["uri"],
            each.get("title", ""),
            each.get("file_type", ""),
            str(each.get("page_count", "")),
            each.get("last_modified", ""),
        )
        for each in documents
    ]
    print_table("Document", {"Title": 20, "Type": 4, "Pages": 5, "Modified": 20}, rows)


def print_resources(resources: Sequence[Resource]) -> None:
    if not resources:
        print_hint("No resources.")
        return
    rows = [(each["uri"], each.get("title") or each["name"], each.get("mimeType", "")) for each in resources]
    print_table("Resource", {"Name": 20, "Type": 12}, rows)
