"""What a process shows at `/metrics`."""

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]
"""Values by name, and labels with their values in order of their names."""


async def scraped(url: str) -> Samples:
    """`url` is that of the process, without a path."""
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/plain"
        text = await answer.text()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
