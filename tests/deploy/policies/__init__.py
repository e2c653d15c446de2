"""What every rendering has to keep: a policy takes the manifests, and gives a sentence for each thing that is wrong."""

from collections.abc import Callable, Mapping

from tests.deploy.objects import Manifests
from tests.deploy.policies.addresses import addresses
from tests.deploy.policies.affinity import affinity
from tests.deploy.policies.arguments import arguments
from tests.deploy.policies.canonical import canonical
from tests.deploy.policies.grace import grace
from tests.deploy.policies.images import images
from tests.deploy.policies.ingress import ingress
from tests.deploy.policies.merging import merging
from tests.deploy.policies.names import names
from tests.deploy.policies.nats import nats
from tests.deploy.policies.network import network
from tests.deploy.policies.outside import outside
from tests.deploy.policies.peers import peers
from tests.deploy.policies.ports import ports
from tests.deploy.policies.references import references
from tests.deploy.policies.replicas import replicas
from tests.deploy.policies.resources import resources
from tests.deploy.policies.scaling import scaling
from tests.deploy.policies.secrets import secrets
from tests.deploy.policies.security import security
from tests.deploy.policies.selectors import selectors
from tests.deploy.policies.servers import servers
from tests.deploy.policies.settings import settings
from tests.deploy.policies.spread import spread

Policy = Callable[[Manifests], list[str]]

POLICIES: Mapping[str, Policy] = {
    policy.__name__: policy
    for policy in (
        addresses, affinity, arguments, canonical, grace, images, ingress, merging, names, nats, network, outside,
        peers, ports, references, replicas, resources, scaling, secrets, security, selectors, servers, settings, spread,
    )
}  # fmt: skip
