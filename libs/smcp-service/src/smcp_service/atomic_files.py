"""Writes files as a whole: whoever reads one meanwhile, or after a crash, finds the old content or the new one."""

import errno
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path


def replace_files(contents: Mapping[Path, bytes], *, keep_access: bool = False) -> None:
    """Write or replace files, none before all are written; behind a link it is the link's target.

    Their user alone can read them, except that `keep_access` keeps the owner and mode of one that is there.
    Raises OSError: none is changed, unless the system refuses to rename.
    """
    written: dict[Path, Path] = {}
    try:
        for path, content in contents.items():
            target = path.resolve()
            if target.is_dir():  # told before others are replaced
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
            handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")  # of mode 0600
            written[target] = Path(name)
            with os.fdopen(handle, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(handle)
                if keep_access and target.exists():
                    before = target.stat()
                    os.fchown(handle, before.st_uid, before.st_gid)
                    os.fchmod(handle, stat.S_IMODE(before.st_mode))
        for target, temporary in written.items():
            temporary.replace(target)
    finally:
        for temporary in written.values():
            temporary.unlink(missing_ok=True)
