"""Changes of the configuration file are noticed, however it is changed; and SIGHUP."""

import asyncio
import os
import signal
from collections.abc import Callable
from contextlib import aclosing
from pathlib import Path

import pytest

from smcp_computer.config.file import file_changes
from smcp_computer.terminal import hangups
from smcp_testing.waiting import eventually, within

NOTICED_S = 3.0
"""Less than the file is looked at anyway."""


def saved_in_place(file: Path) -> None:
    file.write_text("new")


def replaced(file: Path) -> None:
    beside = file.with_name("beside")
    beside.write_text("new")
    beside.rename(file)


def removed(file: Path) -> None:
    file.unlink()


def link_swapped(file: Path) -> None:
    """As the kubelet does it for a ConfigMap: `FILE -> ..data/FILE`, and `..data` is a link that is replaced."""
    newer = file.with_name("..newer")
    newer.mkdir()
    (newer / file.name).write_text("new")
    link = file.with_name("..data_tmp")
    link.symlink_to(newer.name)
    link.rename(file.with_name("..data"))


def target_changed(file: Path) -> None:
    file.resolve().write_text("new")


@pytest.mark.rule("computer.reload.watch")
@pytest.mark.parametrize("change", [saved_in_place, replaced, removed, link_swapped, target_changed])
async def test_a_changed_file_is_noticed(tmp_path: Path, change: Callable[[Path], None]) -> None:
    file = tmp_path / "computer.json"
    if change in (link_swapped, target_changed):
        (tmp_path / "..older").mkdir()
        (tmp_path / "..older" / file.name).write_text("old")
        (tmp_path / "..data").symlink_to("..older")
        file.symlink_to(Path("..data") / file.name)
    else:
        file.write_text("old")
    async with aclosing(file_changes(lambda: [file])) as changes:
        await anext(changes)
        noticed = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0)
        change(file)
        async with within(NOTICED_S):
            await noticed


async def test_a_file_that_a_changed_one_names_is_followed_from_then_on(tmp_path: Path) -> None:
    file, named = tmp_path / "computer.json", tmp_path / "elsewhere" / "box.env"
    named.parent.mkdir()
    files = [file]
    async with aclosing(file_changes(lambda: files)) as changes:
        await anext(changes)
        files.append(named)
        for changed in (file, named):
            noticed = asyncio.ensure_future(anext(changes))
            await asyncio.sleep(0)
            changed.write_text("new")
            async with within(NOTICED_S):
                await noticed


async def test_a_file_that_changed_since_it_was_read_is_noticed_at_once(tmp_path: Path) -> None:
    async with aclosing(file_changes(lambda: [tmp_path / "computer.json"])) as changes:
        (tmp_path / "computer.json").write_text("new")
        await anext(changes)


async def test_the_signal_reloads_while_the_file_is_followed_and_does_nothing_afterwards() -> None:
    reloads: list[None] = []
    with hangups(lambda: reloads.append(None)):
        os.kill(os.getpid(), signal.SIGHUP)
        await eventually(lambda: len(reloads) == 1)
    os.kill(os.getpid(), signal.SIGHUP)
    await asyncio.sleep(0)
    assert len(reloads) == 1
