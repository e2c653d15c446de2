"""A Computer with files and a document, and an Agent in its office."""

from smcp_agent import SmcpAgent
from smcp_testing.context_computer import ContextComputer, agent_beside
from smcp_testing.fake_gateway import FakeGateway
from smcp_testing.mcp_servers.shelf import document

FILE = "file:///notes.txt"


def at(gateway: FakeGateway) -> tuple[SmcpAgent, ContextComputer]:
    """An Agent, and a Computer with files and a document in its office."""
    red = ContextComputer("red")
    for number in range(5):
        red.shelf.put(f"file:///{number}")
    red.shelf.put(FILE, contents=[{"uri": FILE, "mimeType": "text/plain", "text": "notes"}])
    red.shelf.put_document(document("doc"))
    return agent_beside(red, gateway), red
