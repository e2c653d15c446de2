"""How desktops, documents and resources are printed for people."""

import sys
from collections.abc import Sequence

import typer

from smcp_agent.cli.output import plain, print_hint, print_table
from smcp_agent.cli.readable import print_readable
from smcp_agent.context.contents import ResourceContents
from smcp_agent.context.desktop import Desktop, windows
from smcp_agent.context.finder import DocumentSummary
from smcp_agent.context.resource_lists import Resource


def print_desktop(desktop: Desktop, why_empty: str) -> None:
    """Each window's URI and its text, an empty line between windows; without any `why_empty`."""
    shown = windows(desktop)
    for number, window in enumerate(shown):
        if number:
            typer.echo()
        typer.secho(plain(window.uri), bold=True)
        if window.text:
            print_readable(window.text)
    if not shown:
        print_hint(why_empty)


def print_documents(documents: Sequence[DocumentSummary]) -> None:
    """A table of documents, or a hint where there are none."""
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
    """A table of resources, or a hint where there are none; whose they are where the Computers say it."""
    if not resources:
        print_hint("No resources.")
        return
    rows = [
        (each["uri"], each.get("title") or each["name"], each.get("mimeType", ""), str(each.get("serverId", "")))
        for each in resources
    ]
    columns = {"Name": 20, "Type": 12, "Server": 10}
    if not any(row[-1] for row in rows):  # not every Computer says whose they are
        del columns["Server"]
    print_table("Resource", columns, [row[: len(columns) + 1] for row in rows])


def print_contents(contents: ResourceContents) -> None:
    """The texts of a resource: to the byte for who reads it from a pipe or a file, readable at a terminal."""
    if sys.stdout.isatty():
        for each in contents.contents:
            if each.text is not None:
                print_readable(each.text, each.mime_type)
    else:
        sys.stdout.buffer.write(contents.text.encode(errors="replace"))
        sys.stdout.buffer.flush()
