"""The claim that a session makes to a place, and whether one that failed may have been granted all the same."""

import uuid
from hashlib import blake2b

import orjson

from smcp_bus.errors import ConnectionLost, TransferFailed
from smcp_bus.registry.client import RegistryClient
from smcp_bus.registry_contract import Claim
from smcp_gateway.sockets.session import Session
from smcp_proto.errors import SmcpError, Unavailable
from smcp_proto.schemas import EnterOfficeReq


def claim_for(registry: RegistryClient, session: Session, request: EnterOfficeReq, *, announce: bool) -> Claim:
    """A new claim, with an incarnation of its own."""
    capabilities = request.capabilities
    return Claim(
        session=session.id,
        credential=registry.credential,
        process=registry.process,
        incarnation=uuid.uuid4().hex,
        identity=identity_of(session, request),
        a2c_version=session.a2c_version,
        announce=announce,
        capabilities=capabilities.model_dump(exclude_unset=True) if capabilities is not None else None,
    )


def renewed(claim: Claim) -> Claim:
    """The same claim made anew: what was asked by the old one is not asked by this one."""
    return claim.model_copy(update={"incarnation": uuid.uuid4().hex})


def identity_of(session: Session, request: EnterOfficeReq) -> str:
    """By which the registry knows whose place it is: the token's subject, where there is a token."""
    return unauthenticated_identity(request) if session.principal is None else session.principal.identity


def unauthenticated_identity(request: EnterOfficeReq) -> str:
    """Who a client is that nobody has authenticated: its office, role and name."""
    return blake2b(orjson.dumps([request.office_id, request.role, request.name]), digest_size=16).hexdigest()


def may_have_run(error: BaseException) -> bool:
    """Whether the registry may have done what failed with this error."""
    match error:
        case Unavailable(details=details):
            return bool(details.get("may_have_run", True))  # who does not say that it was not done may have done it
        case SmcpError(details=details):
            return bool(details.get("may_have_run", False))
        case ConnectionLost() | TransferFailed():
            return True
        case Exception():
            return False
        case _:
            return True  # cancelled in the middle
