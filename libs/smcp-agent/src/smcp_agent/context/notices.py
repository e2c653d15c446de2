"""What the notifications about desktops, documents, resources and capabilities say, typed. Pure."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from smcp_agent.events import (
    CapabilitiesChanged,
    DesktopChanged,
    FinderChanged,
    ResourcesChanged,
    ResourceUpdated,
)
from smcp_agent.models import Model
from smcp_proto.schemas import (
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    UpdateCapabilitiesReq,
    UpdateComputerConfigReq,
)

Told = CapabilitiesChanged | DesktopChanged | FinderChanged | ResourcesChanged | ResourceUpdated


def told(event: str, data: Mapping[str, Any]) -> Told | None:
    """The event that a notification is; None for one that is about something else, or not what it should be."""
    match event:
        case "notify:update_desktop":
            return DesktopChanged(said.computer) if (said := _read(UpdateComputerConfigReq, data)) else None
        case "notify:update_finder":
            return FinderChanged(said.computer) if (said := _read(UpdateComputerConfigReq, data)) else None
        case "notify:update_capabilities":
            can = _read(UpdateCapabilitiesReq, data)
            return CapabilitiesChanged(can.computer, can.capabilities) if can else None
        case "notify:resources/list_changed":
            listed = _read(ResourceListChangedNotification, data)
            return ResourcesChanged(listed.computerId, listed.serverId) if listed and listed.computerId else None
        case "notify:resources/updated":
            updated = _read(ResourceUpdatedNotification, data)
            if updated is None or updated.computerId is None:
                return None
            what = updated.payload.params
            return ResourceUpdated(updated.computerId, what.uri, updated.serverId, what.title)
        case _:
            return None


def _read(model: type[Model], data: Mapping[str, Any]) -> Model | None:
    try:
        return model.model_validate(data)
    except ValidationError:
        return None
