"""One page of the catalog as JSON, within the bytes that its asker takes. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from smcp_bus import exact_json
from smcp_computer.fitting import giving_way

NAMING: Final = ("doc_ref", "uri")
TELLING: Final = ("title", "file_type", "page_count", "last_modified")
LONGEST: Final = 256
"""Characters of what is told beside the names."""

Summary = Mapping[str, Any]


def fitting(summaries: Sequence[Summary], room: int) -> tuple[list[bytes], frozenset[int]]:
    """The documents of a page as JSON, and the numbers of those that are shortened so that all have room.

    They are shortened and not left out, since who turns the pages counts them.

    Args:
        room: bytes that they may have, commas included.
    """
    whole = [exact_json.written(summary) for summary in summaries]
    if sum(map(len, whole)) + len(whole) <= room:
        return whole, frozenset()
    short = [exact_json.written(shortened(summary)) for summary in summaries]
    sizes = [len(text) for text in whole]
    giving = giving_way(sizes, [max(0, size - len(text)) for size, text in zip(sizes, short, strict=True)], room)
    return [short[number] if number in giving else text for number, text in enumerate(whole)], giving


def shortened(summary: Summary) -> dict[str, Any]:
    """What names a document, and what says shortly what it is."""
    told = {name: summary[name] for name in TELLING if name in summary and len(str(summary[name])) <= LONGEST}
    return {name: summary[name] for name in NAMING if name in summary} | told
