"""A small disk in memory, for what JetStream keeps in world `containers`."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from docker.models.containers import Container

from tests.e2e.worlds.engine import engine, told


@dataclass(frozen=True)
class Disk:
    """Attributes:
    volume: the engine's, to be mounted.
    """

    volume: str
    _holder: Container

    def fill(self) -> None:
        """Write a file until no page is free; what is in a file's last page may still grow to its end."""
        self._run("sh", "-c", "cat /dev/zero > /disk/filler || true")
        free = self._run("df", "--output=avail", "/disk").split()[-1]
        assert free == "0", f"{free} KiB are free"

    def make_room(self) -> None:
        """Remove it."""
        self._run("rm", "--force", "/disk/filler")

    def _run(self, *command: str) -> str:
        with told():
            code, printed = self._holder.exec_run(list(command))
        assert isinstance(printed, bytes)
        assert code == 0, printed
        return printed.decode()


@contextmanager
def open_disk(name: str, size: str, *, user: int, image: str, labels: Mapping[str, str]) -> Iterator[Disk]:
    """A container holds the disk: what is in it would be gone otherwise while NATS is restarted.

    Args:
        size: as mount(8) takes it (`8m`).
        user: whose it is.
        image: any that has coreutils.
        labels: of what the engine makes.
    """
    options = {"type": "tmpfs", "device": "tmpfs", "o": f"size={size},uid={user}"}
    with engine() as asked, told():
        volume = asked.client.volumes.create(name, driver_opts=options, labels=dict(labels))
        try:
            holder = asked.run(
                image,
                ["infinity"],
                detach=True,
                labels=dict(labels),
                entrypoint="sleep",
                network="none",
                read_only=True,
                cap_drop=["ALL"],
                security_opt=["no-new-privileges:true"],
                user=str(user),
                volumes={name: {"bind": "/disk", "mode": "rw"}},
            )
            try:
                yield Disk(name, holder)
            finally:
                holder.remove(force=True)
        finally:
            volume.remove()
