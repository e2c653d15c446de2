"""Requests of the gateway over a connection, and what is acknowledged to them: what a Computer is asked."""

import json
from collections.abc import Awaitable, Callable
from typing import Final

from smcp_agent.connecting.wire_json import JsonText, WireJson
from smcp_proto.errors import TooLarge

ASKED: Final = "client:"
"""What the names of such events begin with; all others are notifications."""

Answer = Callable[[str, object], Awaitable[bytes]]
"""Event and its argument in, the JSON of the acknowledgement's argument out. It must not raise."""


async def acknowledged(answer: Answer, event: str, argument: object, wire_json: WireJson) -> JsonText:
    """What a request is acknowledged with; a flat error 413 where that is more than the gateway takes in a message."""
    text = JsonText((await answer(event, argument)).decode())
    try:
        wire_json.dumps([text])
    except TooLarge as error:
        refusal = TooLarge("the answer is too large", details=error.details)
        return JsonText(json.dumps(refusal.body().model_dump()))
    return text
