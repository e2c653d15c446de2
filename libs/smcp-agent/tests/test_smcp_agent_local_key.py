"""The file by which the SDK finds the key of `smcp up`."""

from pathlib import Path

import pytest

from smcp_agent.connecting.options import local_key, shared_key

URL = "http://127.0.0.1:8000"
KEY = "smcp_0a1b2c3d4e5f_" + "x" * 43


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "a2c-smcp" / "keys" / "127.0.0.1-8000"


def test_a_key_is_found_at_its_own_url_only_and_while_it_is_shared_only(file: Path) -> None:
    with shared_key(URL, KEY):
        assert local_key(URL) == local_key(URL + "/prefix") == KEY
        for other in ("http://127.0.0.1:8001", "http://localhost:8000", "http://[::1]:8000", "http://127.0.0.1", ":"):
            assert local_key(other) is None
    assert local_key(URL) is None
    assert not file.exists()


def test_the_key_of_a_run_that_was_killed_is_replaced(file: Path) -> None:
    file.parent.mkdir(parents=True)
    file.write_text("old")
    with shared_key(URL, KEY):
        assert local_key(URL) == KEY


def test_a_file_that_others_may_read_a_link_and_other_text_are_not_used(file: Path, tmp_path: Path) -> None:
    with shared_key(URL, KEY):
        file.chmod(0o640)
        assert local_key(URL) is None
        file.chmod(0o600)
        file.write_text("not a key\n")
        assert local_key(URL) is None
        file.write_text(KEY)
        assert local_key(URL) == KEY
        moved = file.rename(tmp_path / "elsewhere")
        file.symlink_to(moved)
        assert local_key(URL) is None
