"""When an MCP server is asked again for what it did not agree to tell of."""

from typing import Final

from smcp_bus.backoff import Backoff

CALM_S: Final = 5.0
"""The least time between two tries, however often the list of the server changes (seconds)."""


class Retries:
    """Pauses that grow for as long as something fails. Times are loop times, in seconds.

    Args:
        first_s, longest_s: see `Backoff`.
    """

    def __init__(self, *, first_s: float, longest_s: float) -> None:
        self._backoff = Backoff(first_s=first_s, longest_s=longest_s)
        self._calm = 0.0
        self.due: float | None = None
        """When the next try is; None: there is none."""

    def plan(self, now: float, *, failed: bool, asking: bool, soon: bool = False) -> None:
        """Args:
        failed: whether there is something to try again.
        asking: whether the answer to a try may still be missing: then nothing is said of the pauses.
        soon: there is a reason to hope for another answer.
        """
        if failed:
            if self.due is None:
                self.due = now + self._backoff.next()
            if soon:
                self.due = min(self.due, max(now, self._calm))
        elif not asking:
            self._backoff.reset()
            self.due = None

    def take(self, now: float) -> bool:
        """Whether the try is now; the next one has to be planned."""
        if self.due is None or self.due > now:
            return False
        self.due, self._calm = None, now + CALM_S
        return True
