"""The two URI schemes of the protocol: `window://` (desktop) and `dpe://` (documents)."""

from smcp_proto.uris.dpe import DPE as DPE
from smcp_proto.uris.dpe import DpeDepth as DpeDepth
from smcp_proto.uris.dpe import DpeFormat as DpeFormat
from smcp_proto.uris.dpe import DpeUri as DpeUri
from smcp_proto.uris.dpe import Level as Level
from smcp_proto.uris.dpe import parse_dpe_uri as parse_dpe_uri
from smcp_proto.uris.window import WINDOW as WINDOW
from smcp_proto.uris.window import ParsedWindow as ParsedWindow
from smcp_proto.uris.window import WindowUri as WindowUri
from smcp_proto.uris.window import parse_window_uri as parse_window_uri
