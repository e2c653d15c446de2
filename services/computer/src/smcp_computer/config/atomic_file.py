"""Writes a file as a whole: whoever reads it meanwhile, or after a crash, finds the old content or the new one."""

import os
import shutil
import tempfile
from pathlib import Path


def replace_file(path: Path, content: bytes, *, keep_mode: bool = False) -> None:
    """Write or replace a file; behind a link it is the link's target. Raises OSError: it is as before then.

    Its user alone can read it, except that `keep_mode` keeps the mode of one that is there.
    """
    path = path.resolve()
    descriptor, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # of mode 0600
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if keep_mode and path.exists():
            shutil.copymode(path, temporary)
        Path(temporary).replace(path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
