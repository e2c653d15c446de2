"""What can go wrong with an MCP server, named by what the caller of a tool may conclude.

The messages name the server and go to the Agent as the text of a failed tool call: they never hold the text of an
exception.
"""


class ServerError(Exception):
    """Base of them all.

    Attributes:
        server: the MCP server's name.
    """

    def __init__(self, server: str, what: str) -> None:
        super().__init__(f"MCP server {server!r} {what}")
        self.server = server


class ServerNotRunning(ServerError):
    """It has not started, or died and is being started again. The tool was not run."""


class ServerDied(ServerError):
    """It went away while the tool ran. The tool may have run."""


class CallRefused(ServerError):
    """It answered with an error of the MCP protocol."""


class BadAnswer(ServerError):
    """Its answer is no valid result."""


class StartFailed(Exception):
    """A server cannot be started. The message is for the log of this host."""


class Lost(Exception):
    """The server's side of the connection is gone."""
