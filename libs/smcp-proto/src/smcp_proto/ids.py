"""Identifiers as types of their own, so that one cannot stand where another is meant."""

from typing import Literal, NewType

Role = Literal["computer", "agent"]
"""What a member of an office is (events.txt, EnterOfficeReq)."""

OfficeId = NewType("OfficeId", str)
"""An office's (room's) name: user text, see `smcp_proto.names`."""

ComputerName = NewType("ComputerName", str)
AgentName = NewType("AgentName", str)

ReqId = NewType("ReqId", str)
"""What the caller named its request; unique per (office, agent)."""

SessionId = NewType("SessionId", str)
"""One membership's connection: opaque, of no use to anyone but its owner."""

ProcessId = NewType("ProcessId", str)
"""One run of one process, 32 hex digits: a restarted process has another."""

CredentialName = NewType("CredentialName", str)
"""Under which NATS credential a process connected; the second part of `smcp.hosts.v1.<credential>.<process>`."""

Revision = NewType("Revision", int)
"""A revision of the `members` bucket: totally ordered over all offices."""
