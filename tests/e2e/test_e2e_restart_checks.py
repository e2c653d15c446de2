"""What the check of the restarts finds: calls that are lost, doubled, swapped or cut off."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from tests.e2e.restarts.checker import (
    ARRIVED_S,
    MANY,
    Call,
    Join,
    Observed,
    Sigterm,
    calls_of,
    joins_of,
    lost_of,
    summary,
    wrongs,
)
from tests.e2e.restarts.rates import Rates, reached, too_few
from tests.e2e.restarts.runs import Run

AT = 100.0
SIGTERM = Sigterm("gateway-1", AT)


def call(number: int, client: Any = "sdk", *, sent: float = AT - 3, ended: float | None = AT + 3, **gave: Any) -> Call:
    """In flight at the SIGTERM, and answered with its result."""
    gave = gave or {"text": str(number)}
    return Call(str(number), client, "office", sent, ended, **gave)


def run(number: int, began: float = AT - 2.9) -> Run:
    return Run(str(number), began, 5.0)


def found(calls: list[Call], runs: list[Run], at_least: int = 1) -> list[str]:
    return wrongs(observed(calls, runs), at_least)


def observed(calls: list[Call], runs: list[Run], joins: Sequence[Join] = (Join(AT + 1, "done"),)) -> Observed:
    return Observed(runs, {one.id: one for one in calls}, [SIGTERM], joins)


ERROR: dict[str, Any] = {"error": "503 the gateway is stopping", "code": 503, "may_have_run": True}


@pytest.mark.parametrize("client", ["sdk", "published"])
def test_calls_that_ran_once_and_have_their_results_are_right(client: str) -> None:
    assert found([call(1, client), call(2, client)], [run(1), run(2)]) == []


@pytest.mark.parametrize("client", ["sdk", "published"])
def test_a_call_that_ran_twice_is_found(client: str) -> None:
    (wrong,) = found([call(1, client)], [run(1), run(1, AT + 1)])
    assert wrong.startswith("ran 2 times")


@pytest.mark.parametrize("client", ["sdk", "published"])
def test_a_call_that_failed_and_ran_twice_is_found(client: str) -> None:
    late = call(1, client, sent=AT + 1, ended=AT + 2, **ERROR)
    assert any("ran 2 times" in wrong for wrong in found([late, call(2)], [run(1), run(1), run(2)]))


@pytest.mark.parametrize("client", ["sdk", "published"])
def test_a_result_without_a_run_is_found(client: str) -> None:
    (wrong,) = found([call(1, client), call(2)], [run(2)])
    assert wrong.startswith("has a result and did not run")


@pytest.mark.parametrize("client", ["sdk", "published"])
def test_another_calls_result_is_found(client: str) -> None:
    (wrong,) = found([call(1, client, text="2")], [run(1)])
    assert wrong.startswith("has another's result")


@pytest.mark.parametrize("client", ["sdk", "published"])
def test_a_call_without_any_answer_is_found(client: str) -> None:
    (wrong,) = found([call(1, client, ended=None, text=None)], [run(1)])
    assert wrong.startswith("was never answered")


@pytest.mark.parametrize("runs", [[], [run(1)]], ids=["not run", "run"])
def test_any_error_of_our_sdk_is_found(runs: list[Run]) -> None:
    late = call(1, sent=AT + 1, ended=AT + 2, **ERROR)
    (wrong,) = found([late, call(2)], [*runs, run(2)])
    assert "lost" in wrong


def test_a_published_client_may_have_an_error_for_what_it_sent_after_the_sigterm() -> None:
    late = call(1, "published", sent=AT + 1, ended=AT + 2, **ERROR)
    assert found([late, call(2)], [run(1, AT + 1.5), run(2)]) == []
    assert found([late, call(2)], [run(2)]) == []


@pytest.mark.parametrize("runs", [[], [run(1)]], ids=["not run", "run"])
def test_a_published_clients_call_that_was_in_flight_at_a_sigterm_and_failed_is_found(runs: list[Run]) -> None:
    (wrong,) = found([call(1, "published", **ERROR), call(2)], [*runs, run(2)])
    assert wrong.startswith("cut off by the SIGTERM of gateway-1")


def test_what_is_said_not_to_have_run_and_ran_is_found() -> None:
    refused = call(1, "published", sent=AT + 1, ended=AT + 2, **{**ERROR, "may_have_run": False})
    (wrong,) = found([refused, call(2)], [run(1, AT + 1.5), run(2)])
    assert wrong.startswith("is said not to have run and ran")


def test_a_run_that_nobody_sent_is_found() -> None:
    (wrong,) = found([call(1)], [run(1), run(2)])
    assert wrong == "2 ran and was never sent"


def test_a_sigterm_with_too_little_in_flight_is_found() -> None:
    (wrong,) = found([call(1)], [run(1)], at_least=2)
    assert wrong == "only 1 calls were in flight at the SIGTERM of gateway-1"


@pytest.mark.parametrize("joins", [[], [Join(AT - 1, "done")], [Join(AT + 1, "503 not now")]])
def test_a_sigterm_after_which_nobody_could_join_is_found(joins: list[Join]) -> None:
    (wrong,) = wrongs(observed([call(1)], [run(1)], joins), at_least=1)
    assert wrong == "nobody joined between the SIGTERM of gateway-1 and the next"


@pytest.mark.parametrize("refusal", ["503 not now", "cut off"])
def test_a_rollout_in_which_most_joins_fail_is_found(refusal: str) -> None:
    def joins(done: int, refused: int) -> list[Join]:
        return [*[Join(AT + 1, "done")] * done, *[Join(AT + 2, refusal)] * refused]

    (wrong,) = wrongs(observed([call(1)], [run(1)], joins(1, MANY)), at_least=1)
    assert wrong == f"only 1 of {MANY + 1} joined between the SIGTERM of gateway-1 and the next"
    assert wrongs(observed([call(1)], [run(1)], joins(MANY, MANY)), at_least=1) == []
    assert wrongs(observed([call(1)], [run(1)], joins(1, MANY - 2)), at_least=1) == [], "too few to say"
    beyond = [Join(AT - 1, refusal)] * MANY
    assert wrongs(observed([call(1)], [run(1)], [*joins(1, 0), *beyond]), at_least=1) == []


def test_joins_that_are_refused_throughout_a_rollout_are_too_few() -> None:
    joins = [Join(AT + at / 50, "503 not now" if at % 10 else "done") for at in range(100)]
    seen = replace(observed([call(1)], [run(1)], joins), sigterms=[SIGTERM, Sigterm("registry-1", AT + 2)])
    assert reached(seen).joins == 5.0
    assert too_few(reached(seen), Rates(0, 50), 0.9) == ["only 5.0 joins/s of 50"]


@pytest.mark.parametrize("runs", [[], [run(1)]], ids=["not run", "run"])
def test_a_call_on_a_connection_that_was_lost_after_the_sigterm_was_cut_off(runs: list[Run]) -> None:
    seen = replace(observed([call(1, "published", **ERROR), call(2)], [*runs, run(2)]), lost={"office": [AT + 1]})
    (wrong,) = wrongs(seen, at_least=1)
    assert wrong.startswith("cut off by the SIGTERM of gateway-1")


def test_a_call_on_a_connection_that_was_lost_before_the_sigterm_was_not_in_flight() -> None:
    seen = replace(observed([call(1, "published", **ERROR), call(2)], [run(2)]), lost={"office": [AT - 5, AT - 1]})
    assert wrongs(seen, at_least=1) == []
    assert wrongs(replace(seen, lost={"office": [AT - 5]}), at_least=1) != []


def test_in_flight_is_what_had_arrived_and_was_not_answered() -> None:
    calls = [
        call(1),
        call(2, sent=AT - 0.2),  # its tool runs
        call(3, sent=AT - ARRIVED_S - 0.1),  # its tool waits
        call(4, sent=AT - 0.2),  # it may still be on its way
        call(5, ended=AT - 0.1),
        call(6, sent=AT + 0.1),
    ]
    runs = [run(1), run(2, AT - 0.1), run(3, AT + 1), run(4, AT + 1), run(5), run(6, AT + 1)]
    seen = observed(calls, runs)
    assert [one.id for one in seen.in_flight(AT)] == ["1", "2", "3"]


def test_a_journal_gives_the_calls_and_what_they_gave() -> None:
    sent = {"id": "1", "client": "sdk", "office": "office", "sent": AT - 3}
    gave = {"id": "1", "ended": AT + 3, "text": "1", "error": None, "code": None, "may_have_run": None}
    assert calls_of([sent, {"join": "done", "at": AT}, gave]) == {"1": call(1)}
    assert lost_of([sent, {"lost": AT, "office": "office"}, gave]) == {"office": [AT]}
    assert joins_of([sent, {"join": "done", "at": AT}, gave]) == [Join(AT, "done")]
    assert calls_of([sent]) == {"1": replace(call(1), ended=None, text=None)}


def test_the_summary_counts_what_was_lost_and_doubled() -> None:
    calls = [call(1), call(2), call(3, **ERROR), call(4, "published"), call(5, "published", **ERROR)]
    joins = [Join(AT + 1, answer) for answer in ("done", "cut off", "503 not now")]
    assert summary(observed(calls, [run(1), run(1), run(2), run(4)], joins)).splitlines() == [
        "sdk: 3 calls, 2 answered, errors {'503': 1}, doubled 1, lost 1",
        "published: 2 calls, 1 answered, errors {'503': 1}, doubled 0, lost 0",
        "joins: 3, 1 done, others {'cut off': 1, '503': 1}",
        "in flight at SIGTERM: gateway-1 5",
    ]


def test_the_rates_are_of_what_was_asked_between_the_first_sigterm_and_the_last() -> None:
    calls = [call(number, sent=AT + at) for number, at in enumerate((-0.1, 0.0, 1.0, 1.9, 2.0, 2.1))]
    joins = [Join(AT - 1, "done"), Join(AT + 0.5, "done"), Join(AT + 1.5, "503 not now"), Join(AT + 3, "done")]
    seen = replace(observed(calls, [], joins), sigterms=[SIGTERM, Sigterm("registry-1", AT + 2)])
    assert reached(seen) == Rates(calls=1.5, joins=0.5), "what was refused is no join"
    assert str(Rates(calls=199.6, joins=50.2)) == "200 calls/s, 50 joins/s"


def test_a_load_that_fell_short_is_found() -> None:
    assert too_few(Rates(181, 46), Rates(200, 50), 0.9) == []
    assert too_few(Rates(179, 44), Rates(200, 50), 0.9) == ["only 179.0 calls/s of 200", "only 44.0 joins/s of 50"]
