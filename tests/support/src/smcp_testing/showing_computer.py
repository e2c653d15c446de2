"""A Computer that has something beside tools to show."""

from base64 import b64encode

from smcp_testing.context_computer import ContextComputer, page_shelf
from smcp_testing.fake_gateway import FakeGateway

PICTURE = "file:///p.png"
BYTES = b"\x89PNG\x1b[2J\x00\xff"


def computer_at(gateway: FakeGateway) -> ContextComputer:
    red = ContextComputer(
        "red", shelf=page_shelf(), desktops=["window://a/1\n\none \x1b[31m[red]\n\ntwo", "window://b"]
    )
    red.shelf.put(PICTURE, {"mimeType": "image/png"}, [{"uri": PICTURE, "blob": b64encode(BYTES).decode()}])
    red.shelf.put("file:///t", {"title": "Bells"}, [{"uri": "file:///t", "text": "ding\x07\r\n[b]深"}])
    red.enter(gateway)
    return red
