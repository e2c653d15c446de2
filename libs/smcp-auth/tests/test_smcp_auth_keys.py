"""API keys and their file."""

import json
import os
import stat
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from smcp_auth import api_keys as key_file
from smcp_auth.api_keys import KeyEntry, WatchedKeys, new_key
from smcp_service.files import UnusableFile


def some_key(subject: str | None = None, **more: Any) -> tuple[str, KeyEntry]:
    return new_key(subject=subject, offices=["lab"], roles=["agent"], names=["*"], **more)


def halves(key: str) -> tuple[str, str]:
    """What names it, and its secret, in which an underscore may stand, too."""
    prefix, key_id, secret = key.split("_", 2)
    return f"{prefix}_{key_id}", secret


def test_only_the_whole_key_finds_its_entry(tmp_path: Path) -> None:
    (key, entry), (other, _) = some_key(), some_key()
    key_file.add(tmp_path / "keys.json", entry)
    watched = WatchedKeys(tmp_path / "keys.json")
    assert watched.find(key) == entry
    head, secret = halves(key)
    for wrong in (
        other,
        key[:-1],
        key + "x",
        f"{head}_",
        head,
        secret,
        entry.hash,
        f"smcp_{entry.id}_{entry.hash}",
        "",
    ):
        assert watched.find(wrong) is None, wrong


def test_the_key_file_is_private_and_holds_only_hashes(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    made = [some_key(f"holder {number}") for number in range(3)]
    for _, entry in made:
        key_file.add(path, entry)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert key_file.read(path) == tuple(entry for _, entry in made)
    text = path.read_text()
    for key, entry in made:
        assert key not in text
        assert halves(key)[1] not in text
        assert entry.hash in text
    assert [
        each.name for each in tmp_path.iterdir() if each.name.startswith(".keys.json.") and "lock" not in each.name
    ] == []


def test_keys_are_removed_by_id_or_by_subject(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    entries = [some_key(subject)[1] for subject in ("rack", "rack", "rack", "other")]
    for entry in entries:
        key_file.add(path, entry)
    assert key_file.remove(path, entries[0].id) == (entries[0],)
    assert key_file.remove(path, "rack") == tuple(entries[1:3])
    assert key_file.remove(path, "rack") == ()
    assert key_file.read(path) == (entries[3],)


def test_a_changed_key_file_keeps_its_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    kept, gone = some_key("kept")[1], some_key("gone")[1]
    key_file.add(path, kept)
    path.chmod(0o640)
    if os.geteuid() == 0:  # as root does it for a gateway that is not
        os.chown(path, 10001, 10002)
    before = path.stat()
    key_file.add(path, gone)
    key_file.remove(path, gone.id)
    after = path.stat()
    assert (after.st_uid, after.st_gid, after.st_mode) == (before.st_uid, before.st_gid, before.st_mode)


def test_a_key_file_is_read_after_a_temporary_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "keys.json"
    (key, entry), other = some_key(), some_key()[1]
    key_file.add(path, entry)
    key_file.add(path, other)
    watched = WatchedKeys(path)
    key_file.remove(path, entry.id)
    with monkeypatch.context() as patch:
        patch.setattr(key_file, "read", _unreadable)
        with pytest.raises(UnusableFile):
            watched.refresh()
        assert not watched.refresh(), "it is said once"
    assert watched.find(key) == entry
    assert watched.refresh(), "though nothing has changed since"
    assert watched.find(key) is None


def _unreadable(path: Path) -> NoReturn:
    raise UnusableFile(f"{path}: cannot be read: Too many open files")


def test_concurrent_additions_keep_all_keys(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    entries = [some_key()[1] for _ in range(16)]
    threads = [threading.Thread(target=key_file.add, args=(path, entry)) for entry in entries]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert {entry.id for entry in key_file.read(path)} == {entry.id for entry in entries}


def test_a_symbolic_link_to_the_key_file_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link, real = tmp_path / "keys.json", tmp_path / "real" / "keys.json"
    real.write_text('{"keys": []}')
    link.symlink_to(real)
    key_file.add(link, some_key()[1])
    assert link.is_symlink()
    assert len(key_file.read(real)) == 1


GOOD = some_key("anna")[1].model_dump(mode="json")


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("", "JSON"),
        ("[]", "object"),
        ({"keys": 5}, "keys"),
        ({"keys": [], "more": 1}, "more"),
        ({"keys": [GOOD, GOOD]}, "twice"),
        *(({"keys": [{**GOOD, name: value}]}, f"keys.0.{name}") for name, value in (
            ("id", "a b"), ("subject", ""), ("subject", 5), ("hash", "secret"), ("hash", "sha256:00"), ("offices", []),
            ("roles", ["root"]), ("names", ["a\\"]), ("expires", "2027-01-01T00:00:00"), ("unknown", 1),
        )),
        ({"keys": [{name: value for name, value in GOOD.items() if name != "offices"}]}, "keys.0.offices"),
    ],
)  # fmt: skip
def test_an_invalid_key_file_is_refused_naming_file_and_field(tmp_path: Path, content: Any, named: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises(UnusableFile) as refused:
        key_file.read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert named in str(refused.value)
    assert GOOD["hash"] not in str(refused.value)


def test_a_failed_change_leaves_the_key_file_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    path.write_text('{"keys": [{}]}')
    with pytest.raises(UnusableFile):
        key_file.add(path, some_key()[1])
    assert path.read_text() == '{"keys": [{}]}'
    with pytest.raises(UnusableFile, match="cannot be read"):
        key_file.remove(tmp_path / "none.json", "x")
    with pytest.raises(UnusableFile, match="cannot be written"):
        key_file.add(tmp_path / "no" / "where.json", some_key()[1])


def test_a_changed_key_file_is_read_again_unless_it_is_invalid(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    (first, entry), (second, added) = some_key(), some_key()
    key_file.add(path, entry)
    watched = WatchedKeys(path)
    assert not watched.refresh()
    key_file.add(path, added)
    assert watched.refresh()
    assert watched.find(second) == added
    path.write_text("{")
    with pytest.raises(UnusableFile):
        watched.refresh()
    assert not watched.refresh()  # said once
    assert watched.find(first) == entry
    path.unlink()
    with pytest.raises(UnusableFile):
        watched.refresh()
    assert watched.find(second) == added
    key_file.add(path, added)
    os.utime(path)
    assert watched.refresh()
    assert watched.find(first) is None


def test_a_key_has_its_expiry_time() -> None:
    until = datetime.now(UTC) + timedelta(days=1)
    assert some_key(expires=until)[1].expires_at == until.timestamp()
    assert some_key()[1].expires_at is None


@pytest.mark.parametrize("mode", [0o660, 0o602, 0o666, 0o777])
def test_a_file_that_others_may_write_is_refused_and_changes_nothing(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "keys.json"
    key, entry = some_key()
    key_file.add(path, entry)
    watched = WatchedKeys(path)
    path.chmod(mode)
    for use in (lambda: key_file.read(path), lambda: key_file.add(path, some_key()[1]), watched.refresh):
        with pytest.raises(UnusableFile, match=f"its group or others may write it.*{mode:04o}"):
            use()
    assert watched.find(key) == entry
    path.chmod(0o640)
    assert key_file.read(path) == (entry,)
