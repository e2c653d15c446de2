"""Files that are replaced as a whole."""

import stat
from pathlib import Path

import pytest

from smcp_service.files import replace_files


def test_a_write_that_fails_changes_nothing_and_leaves_nothing_behind(tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("old")
    (tmp_path / "taken").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_files({kept: b"new", tmp_path / "taken": b"new"})
    with pytest.raises(FileNotFoundError):
        replace_files({kept: b"new", tmp_path / "missing" / "file": b"new"})
    assert kept.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["kept", "taken"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    target, link = tmp_path / "real" / "file", tmp_path / "link"
    target.parent.mkdir()
    target.write_text("old")
    link.symlink_to(target)
    replace_files({link: b"new"})
    assert link.is_symlink()
    assert target.read_text() == "new"


def test_a_link_that_leads_to_itself_is_replaced(tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(link)
    replace_files({link: b"new"})
    assert (link.read_bytes(), link.is_symlink()) == (b"new", False)


def test_a_file_is_for_its_user_alone_unless_its_access_is_kept(tmp_path: Path) -> None:
    private, shared = tmp_path / "private", tmp_path / "shared"
    for file in (private, shared):
        file.write_text("old")
        file.chmod(0o640)
    replace_files({private: b"new"})
    replace_files({shared: b"new"}, keep_access=True)
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    assert stat.S_IMODE(shared.stat().st_mode) == 0o640
