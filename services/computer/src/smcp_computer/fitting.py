"""Which items of an answer give way where it would be too large. Pure."""

from collections.abc import Sequence


def giving_way(sizes: Sequence[int], saved: Sequence[int], room: int) -> frozenset[int]:
    """The largest ones, as few as can be; of those of one size the last go first.

    Args:
        sizes: of the items of a JSON array, in bytes.
        saved: bytes that are saved where an item gives way: of one that goes its size, and its comma.
        room: bytes between the brackets.

    Returns:
        Their numbers. All of them where the room does not do even then.
    """
    needed = sum(sizes) + len(sizes) - 1
    giving = set()
    for number in sorted(range(len(sizes)), key=lambda number: (-sizes[number], -number)):
        if needed <= room:
            break
        giving.add(number)
        needed -= saved[number]
    return frozenset(giving)
