"""`lease`: a process says that it lives."""

from smcp_bus.door.types import Call
from smcp_bus.registry_contract import LeaseRenewal, LeaseState
from smcp_proto.errors import Malformed
from smcp_registry.claims import check_process
from smcp_registry.leases import Leases


async def lease(request: LeaseRenewal, call: Call, *, leases: Leases) -> LeaseState:
    """Renew the lease of the process that the subject names.

    Raises:
        Malformed: the subject names no process.
        Unavailable: no quorum.
    """
    credential, process = host(call)
    return await leases.renew(credential, process, request)


def host(call: Call) -> tuple[str, str]:
    """Credential and process from the subject."""
    credential, process = call.caller.name, call.caller.session
    if credential is None:
        raise Malformed("the subject names no credential")
    check_process(credential, process)
    return credential, process
