"""How long an owner may take over what it was asked. Pure."""


def time_limit(timeout: float, left: float) -> float:
    """Seconds after which the Computer's side answers for what still runs: sooner than who waits for it gives up.

    Args:
        timeout: what the asker gave the whole request.
        left: what is left of it here.
    """
    return max(min(timeout, left) - min(0.5, timeout / 10), 0.0)
