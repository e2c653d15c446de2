"""Questions to clients by the ids of their packets."""

from smcp_gateway.sockets.session import Asks


def test_an_acknowledgement_reaches_who_asked_and_a_late_one_is_dropped() -> None:
    asks, answers = Asks(), list[tuple[str, bytes | None]]()
    numbers = [asks.enter(lambda argument, name=name: answers.append((name, argument))) for name in "ab"]  # type: ignore[misc]
    assert len(set(numbers)) == len(asks) == 2
    asks.acknowledged(numbers[0], b"{}")
    asks.acknowledged(numbers[1], None)
    asks.acknowledged(99, b"{}")
    assert answers == [("a", b"{}"), ("b", None)]
    for number in numbers:
        asks.leave(number)
        asks.leave(number)
    asks.acknowledged(numbers[0], b"{}")
    assert (len(answers), len(asks)) == (2, 0)
