"""Questions to clients have one outcome, and leave nothing behind."""

import asyncio

from smcp_gateway.sockets.session import Asks, Fate, Outcome, settle


async def test_the_first_outcome_of_a_question_counts_and_a_late_answer_is_dropped() -> None:
    asks = Asks()
    answers: list[asyncio.Future[Outcome]] = [asyncio.get_running_loop().create_future() for _ in range(3)]
    numbers = [asks.enter(answer) for answer in answers]
    assert len(set(numbers)) == 3
    asks.acknowledged(numbers[0], b"{}")
    asks.acknowledged(numbers[1], None)
    asks.acknowledged(99, b"{}")
    settle(answers[2], Fate.GONE)
    asks.acknowledged(numbers[2], b"{}")
    assert [answer.result() for answer in answers] == [b"{}", Fate.UNREADABLE, Fate.GONE]
    for number in numbers:
        asks.leave(number)
        asks.leave(number)
    asks.acknowledged(numbers[2], b"{}")
    assert len(asks) == 0
