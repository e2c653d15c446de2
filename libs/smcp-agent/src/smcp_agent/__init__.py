"""The Agent SDK of A2C-SMCP: `SmcpAgent` and what it gives and raises."""

from smcp_agent.client import SmcpAgent as SmcpAgent
from smcp_agent.resources import Window as Window, prompt_text as prompt_text, windows as windows
from smcp_agent.llm import (
    auto_apply as auto_apply,
    result_text as result_text,
    tags as tags,
    tool_meta as tool_meta,
)
from smcp_agent.office import Subscription as Subscription
from smcp_agent.errors import (
    CannotConnect as CannotConnect,
    Closed as Closed,
    ConnectionLost as ConnectionLost,
    JoinRefused as JoinRefused,
    McpError as McpError,
    NoAnswer as NoAnswer,
    NotAllowed as NotAllowed,
    NotAuthenticated as NotAuthenticated,
    NotFound as NotFound,
    RateLimited as RateLimited,
    SmcpError as SmcpError,
    TimedOut as TimedOut,
    TokenUnavailable as TokenUnavailable,
    TooLarge as TooLarge,
    Unavailable as Unavailable,
    may_have_run as may_have_run,
)
from smcp_agent.events import (
    CapabilitiesChanged as CapabilitiesChanged,
    ComputerEntered as ComputerEntered,
    ComputerEvent as ComputerEvent,
    ComputerLeft as ComputerLeft,
    ConfigChanged as ConfigChanged,
    DesktopChanged as DesktopChanged,
    Disconnected as Disconnected,
    Event as Event,
    EventsDropped as EventsDropped,
    EventStream as EventStream,
    FinderChanged as FinderChanged,
    Notified as Notified,
    Reconnected as Reconnected,
    RejoinRefused as RejoinRefused,
    ResourcesChanged as ResourcesChanged,
    ResourceUpdated as ResourceUpdated,
    ToolsChanged as ToolsChanged,
)
from smcp_agent.results import (
    AudioContent as AudioContent,
    CallResult as CallResult,
    Content as Content,
    ImageContent as ImageContent,
    InputAnswer as InputAnswer,
    InputRequest as InputRequest,
    LinkContent as LinkContent,
    OnInput as OnInput,
    OtherContent as OtherContent,
    ResourceContent as ResourceContent,
    ResourceContents as ResourceContents,
    TextContent as TextContent,
)
from smcp_proto.schemas import ToolProgress as ToolProgress
