"""Members that come, switch and go at the same moment, while gateways, registries and connections are hurt."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import HealthCheck, example, given, settings

from smcp_testing.profiles import scaled
from smcp_testing.tcp_proxy import open_line
from tests.e2e.rooms.bucket import MembersBucket, members_bucket
from tests.e2e.rooms.native import place_of
from tests.e2e.rooms.plan import CAST, GATEWAYS, OFFICES, Plan, Round, Step, plans
from tests.e2e.rooms.play import play
from tests.e2e.rooms.stage import Stage
from tests.e2e.worlds.processes import open_processes
from tests.e2e.worlds.world import lease_s

pytestmark = pytest.mark.alone

PLANS = scaled(ci=1, soak=30)
ROUNDS = scaled(ci=3, soak=6)
MOST_PLANS = PLANS + 100
"""With the examples, and those that a failure is made smaller by: their offices are known beforehand."""

ALL = tuple(
    Step(who, "joins", office)
    for office, group in enumerate(
        (
            ("computer 0", "computer 2", "computer 4", "agent 0", "agent 2", "native 0"),
            ("computer 1", "computer 3", "computer 5", "agent 1", "agent 3", "native 1"),
        )
    )
    for who in group
)
SWITCHES = (
    *(Step(f"computer {number}", "joins", 1 - number % 2) for number in range(6)),
    Step("native 1", "joins"),
)

EVERYTHING: Plan = (
    Round((*ALL, Step("the crowd", "joins"))),
    Round(SWITCHES, "a gateway is killed", 0, (*ALL, Step("the crowd", "joins", 1), Step("agent 1", "leaves"))),
    Round((*ALL, Step("the crowd", "joins")), "a registry is killed", 0, SWITCHES),
    Round(
        (*ALL, *SWITCHES),
        "a gateway stands still past the lease",
        1,
        (Step("agent 0", "joins"), Step("the crowd", "joins")),
    ),
    Round(ALL, "a gateway is parted from NATS past the lease", 0, (*SWITCHES, Step("the crowd", "joins", 1))),
    Round(
        (Step("the crowd", "says goodbye"), *ALL),
        "a gateway's connection to NATS is cut",
        1,
        (Step("the crowd", "joins"),),
    ),
    Round(SWITCHES, "a gateway's clients are cut off", 0, (*ALL, Step("the crowd", "leaves"))),
    Round(
        (*ALL, Step("the crowd", "joins", 1)),
        "a registry stands still past the lease",
        1,
        (Step("computer 2", "leaves"), *SWITCHES),
    ),
)

LEASE_S = lease_s(4)
TRIES = 5
"""How often it is cut again where no cut was short, as on a machine that has too much to do."""

A_SHORT_CUT: Plan = (Round((Step("computer 0", "joins"),), "a gateway's connection to NATS is cut", 0),)
"""After it the watchers are where they were."""


class Theatre:
    """One world for all plans: each has offices of its own, and heals what it hurts."""

    def __init__(self, runner: asyncio.Runner, stage: Stage, bucket: MembersBucket) -> None:
        self._runner = runner
        self._stage = stage
        self._bucket = bucket
        self.short_cuts = 0
        """How often a gateway was parted from NATS so shortly that the watchers there had to keep their places."""

    def play(self, plan: Plan) -> None:
        self.short_cuts += self._runner.run(play(plan, self._stage, self._bucket))


async def _opened(stack: AsyncExitStack, directory: Path) -> tuple[Stage, MembersBucket]:
    nats = [await stack.enter_async_context(open_line(0)) for _ in range(GATEWAYS)]
    over = {f"gateway-{number + 1}": line for number, line in enumerate(nats)}
    offices = [[f"office {number} of plan {plan}" for number in range(OFFICES)] for plan in range(MOST_PLANS)]
    natives = {part.name for part in CAST.values() if part.native}
    known = [place_of(office, name) for each in offices for office in each for name in natives]
    world = await stack.enter_async_context(open_processes(directory, lease_s=LEASE_S, over=over, known=known))
    stack.enter_context(world.telling())
    ports = [urlsplit(gateway.url).port or 0 for gateway in world.gateways]
    clients = [await stack.enter_async_context(open_line(port)) for port in ports]
    return Stage(world, clients, nats, iter(offices)), await stack.enter_async_context(members_bucket(world))


@pytest.mark.rule("answers.rooms.refused.hears-nothing", "answers.rooms.alternate")
@pytest.mark.timeout(scaled(ci=900, soak=7200))
def test_rooms_are_linearizable_under_concurrency_and_faults(tmp_path: Path) -> None:
    with asyncio.Runner() as runner:
        stack = AsyncExitStack()
        theatre = Theatre(runner, *runner.run(_opened(stack, tmp_path)))

        # A failure is made smaller for some minutes at most; each plan that fails stands on standard error, too.
        @settings(max_examples=PLANS, report_multiple_bugs=False, suppress_health_check=list(HealthCheck))
        @example(EVERYTHING)
        @example(A_SHORT_CUT)
        @given(plans(rounds=ROUNDS))
        def any_plan(plan: Plan) -> None:
            theatre.play(plan)

        try:
            any_plan()
            for _ in range(TRIES):
                if theatre.short_cuts:
                    break
                theatre.play(A_SHORT_CUT)
            assert theatre.short_cuts, "no cut was short: nothing was seen of what may not happen then"
        finally:
            runner.run(stack.aclose())
