"""`client:get_config`: the configuration, without what is secret in it."""

from smcp_bus.dispatch import Call
from smcp_proto.schemas.config import GetComputerConfigReq, GetComputerConfigRet


async def get_config(request: GetComputerConfigReq, call: Call, *, shown: GetComputerConfigRet) -> GetComputerConfigRet:
    """Answer with `shown`, which the redaction has been through (data-structures.txt, GetComputerConfigRet)."""
    return shown
