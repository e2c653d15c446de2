"""Policies: each takes the rendered manifests and returns a sentence for each thing that is wrong.

They hold the manifests against the code: its settings, arguments, ports, networks and secrets. For good style in any
manifest use kube-linter, and `kubectl apply --dry-run=server` for what Kubernetes itself refuses.
"""

from collections.abc import Callable, Mapping

from tests.deploy.objects import Manifests
from tests.deploy.policies.addresses import addresses
from tests.deploy.policies.arguments import arguments
from tests.deploy.policies.grace import grace
from tests.deploy.policies.nats import nats
from tests.deploy.policies.network import network
from tests.deploy.policies.outside import outside
from tests.deploy.policies.ports import ports
from tests.deploy.policies.references import references
from tests.deploy.policies.scaling import scaling
from tests.deploy.policies.secrets import secrets
from tests.deploy.policies.servers import servers
from tests.deploy.policies.settings import settings

Policy = Callable[[Manifests], list[str]]

POLICIES: Mapping[str, Policy] = {
    policy.__name__: policy
    for policy in (
        addresses, arguments, grace, nats, network, outside, ports, references, scaling, secrets, servers, settings,
    )
}  # fmt: skip
