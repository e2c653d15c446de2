"""Every structure of the wire, under the name that the protocol pages give it."""

from smcp_proto.schemas.base import *
from smcp_proto.schemas.config import *
from smcp_proto.schemas.finder import *
from smcp_proto.schemas.resources import *
from smcp_proto.schemas.rooms import *
from smcp_proto.schemas.tools import *
