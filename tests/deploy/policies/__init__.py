"""What every rendering has to keep: a policy takes the manifests, and gives a sentence for each thing that is wrong."""

from collections.abc import Callable, Mapping

from tests.deploy.objects import Manifests
from tests.deploy.policies.canonical import canonical
from tests.deploy.policies.grace import grace
from tests.deploy.policies.images import images
from tests.deploy.policies.names import names
from tests.deploy.policies.network import network
from tests.deploy.policies.ports import ports
from tests.deploy.policies.references import references
from tests.deploy.policies.replicas import replicas
from tests.deploy.policies.resources import resources
from tests.deploy.policies.security import security
from tests.deploy.policies.selectors import selectors
from tests.deploy.policies.settings import settings

Policy = Callable[[Manifests], list[str]]

POLICIES: Mapping[str, Policy] = {
    policy.__name__: policy
    for policy in (
        canonical, grace, images, names, network, ports, references, replicas, resources, security, selectors, settings,
    )
}  # fmt: skip
