import pytest

from smcp_agent.connecting.connection import Acked, Broken, PendingAcks


async def test_an_ack_settles_its_entry_and_the_table_is_empty_afterwards() -> None:
    acks = PendingAcks()
    with acks.open() as pending:
        assert len(acks) == 1
        pending.settle("reply")
        assert await pending.future == Acked(("reply",))
    assert len(acks) == 0


async def test_an_entry_goes_whatever_ends_the_wait() -> None:
    acks = PendingAcks()
    with pytest.raises(RuntimeError), acks.open():
        raise RuntimeError
    assert len(acks) == 0


async def test_a_broken_connection_settles_all_entries_present_and_to_come() -> None:
    acks = PendingAcks()
    with acks.open() as one, acks.open() as other:
        acks.break_off("gone")
        assert await one.future == Broken("gone")
        assert await other.future == Broken("gone")
    with acks.open() as late:
        assert await late.future == Broken("gone")
    assert len(acks) == 0


async def test_only_the_first_outcome_counts_and_a_late_ack_is_harmless() -> None:
    acks = PendingAcks()
    with acks.open() as pending:
        pending.settle(1)
        pending.settle(2)
        pending.break_off(Broken("gone"))
        assert await pending.future == Acked((1,))
    pending.settle(3)
