"""Words that several services say."""


def counted(number: int, noun: str) -> str:
    """`1 call`, `2 calls`: for nouns whose plural ends with an s."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def waiting_for_calls(number: int, within_s: float) -> str:
    """What a service says that has been told to stop, and lets the calls end that run."""
    return f"waiting for {counted(number, 'call')} (up to {within_s:g} s); ctrl-C again stops at once"
