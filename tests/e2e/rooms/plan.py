"""What is to happen, as data: rounds of steps of the members, and of what is hurt meanwhile."""

from dataclasses import dataclass
from typing import Final, Literal

from hypothesis import strategies as st

from smcp_proto.member_names import Role

OFFICES: Final = 2
GATEWAYS: Final = 2
NOWHERE: Final = GATEWAYS
"""In place of a gateway's number: nothing that befalls a gateway concerns it."""
CROWD: Final = 20

What = Literal["joins", "leaves", "says goodbye"]
Hurt = Literal[
    "a gateway is killed",
    "a gateway stands still past the lease",
    "a gateway is parted from NATS past the lease",
    "a gateway's connection to NATS is cut",
    "a gateway's clients are cut off",
    "a registry is killed",
    "a registry stands still past the lease",
]
HURTS: Final[tuple[Hurt, ...]] = Hurt.__args__  # type: ignore[attr-defined]


@dataclass(frozen=True)
class Part:
    """One of the cast: what it is called and by which gateway it comes, always."""

    role: Role
    name: str
    gateway: int

    @property
    def native(self) -> bool:
        """Whether it is a Computer that speaks NATS itself."""
        return self.gateway == NOWHERE


CAST: Final[dict[str, Part]] = {
    **{f"computer {number}": Part("computer", f"name {number // 2}", number % GATEWAYS) for number in range(6)},
    **{f"agent {number}": Part("agent", f"agent {number // 2}", number % GATEWAYS) for number in range(4)},
    "native 0": Part("computer", "name 0", NOWHERE),
    "native 1": Part("computer", "native", NOWHERE),
    **{f"of the crowd, {number}": Part("computer", "wanted", number % GATEWAYS) for number in range(CROWD)},
}
"""Each name of a Computer by both gateways, and each of an Agent; native Computers, of which one has a name of the
others; twenty that want one name."""

GROUPS: Final[dict[str, tuple[str, ...]]] = {
    **{who: (who,) for who in CAST if not who.startswith("of the crowd")},
    "the crowd": tuple(who for who in CAST if who.startswith("of the crowd")),
}


@dataclass(frozen=True)
class Step:
    """`office` counts for a join alone. Who is in another office switches; who is in that one already joins again."""

    who: str
    what: What
    office: int = 0


@dataclass(frozen=True)
class Round:
    """Steps at the same moment, and something is hurt just then; more steps before it is healed."""

    steps: tuple[Step, ...] = ()
    hurt: Hurt | None = None
    number: int = 0
    """Of the gateway or registry that is hurt."""
    meanwhile: tuple[Step, ...] = ()


Plan = tuple[Round, ...]


def plans(*, rounds: int) -> st.SearchStrategy[Plan]:
    """Plans of up to so many rounds."""
    joins = st.builds(Step, st.sampled_from(sorted(GROUPS)), st.just("joins"), st.integers(0, OFFICES - 1))
    others = st.builds(Step, st.sampled_from(sorted(GROUPS)), st.sampled_from(["leaves", "says goodbye"]))
    steps = st.lists(joins | joins | others, max_size=8).map(tuple)
    hurt = st.none() | st.sampled_from(HURTS)
    one = st.builds(Round, steps, hurt, st.integers(0, 1), steps)
    return st.lists(one, min_size=1, max_size=rounds).map(tuple)
