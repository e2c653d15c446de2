"""What is said when an address cannot be listened on."""

import errno

from smcp_service.failure import Failure


def cannot_listen(error: OSError, host: str, port: int, *, choose: str) -> Failure:
    """The sentence that ends the process.

    Args:
        choose: the option and the variable that say the port.
    """
    if error.errno == errno.EADDRINUSE:
        return Failure(f"port {port} of {host} is taken; choose another with {choose}")
    return Failure(f"cannot listen on {host}:{port} ({choose}): {error.strerror or error}")
