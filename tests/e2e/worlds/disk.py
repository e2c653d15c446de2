"""A small disk in memory, for what JetStream keeps in world `containers`."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tests.e2e.worlds.engine import docker


@dataclass(frozen=True)
class Disk:
    """Attributes:
    volume: the engine's, to be mounted.
    """

    volume: str
    _holder: str

    def fill(self) -> None:
        """Write a file until no page is free; what is in a file's last page may still grow to its end."""
        docker("exec", self._holder, "sh", "-c", "cat /dev/zero > /disk/filler || true")
        free = docker("exec", self._holder, "df", "--output=avail", "/disk").split()[-1]
        assert free == "0", f"{free} KiB are free"

    def make_room(self) -> None:
        """Remove it."""
        docker("exec", self._holder, "rm", "--force", "/disk/filler")


@contextmanager
def open_disk(name: str, size: str, *, user: int, image: str, labels: Sequence[str]) -> Iterator[Disk]:
    """A container holds the disk: what is in it would be gone otherwise while NATS is restarted.

    Args:
        size: as mount(8) takes it (`8m`).
        user: whose it is.
        image: any that has coreutils.
        labels: `--label` of what the engine makes.
    """
    options = ("type=tmpfs", "device=tmpfs", f"o=size={size},uid={user}")
    docker("volume", "create", *labels, *(word for option in options for word in ("--opt", option)), name)
    try:
        holder = docker(
            "run", "--detach", *labels, "--network", "none", "--read-only", "--cap-drop", "ALL",
            "--security-opt", "no-new-privileges:true", "--user", str(user), "--volume", f"{name}:/disk",
            "--entrypoint", "sleep", image, "infinity",
        )  # fmt: skip
        try:
            yield Disk(name, holder)
        finally:
            docker("rm", "--force", holder)
    finally:
        docker("volume", "rm", name)
