"""What an agent and its server say to each other, and how much of it: JSON on the control socket, bytes on a channel.

Either end may be broken or controlled by an attacker. A message that does not fit raises `ProtocolError`, and ends that
connection only.
"""

from __future__ import annotations

import base64
import re
from dataclasses import dataclass
from typing import Annotated, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec
from msgspec import Meta

from runbook.transport.frames import Line, Pid

PROTOCOL = 1
"""Changes when an older agent could not talk to a newer server. A server takes its own and the one before."""

BEAT_S = 5.0
SUSPECT_S, LOST_S = 15.0, 60.0
"""After this long without a heartbeat an agent is SUSPECT, and then LOST. Neither affects what runs on its node."""

WATCHDOG_S = 15.0
"""After this long without a message from the server an agent dials again."""

DIAL_S = 10.0
LONGEST_MESSAGE = 256 << 10
"""Bytes of one message on the control socket."""

CHUNK = 64 << 10
"""Bytes to or from a supervisor in one message of a channel."""

LONGEST_PIECE = 1 << 20
MOST_RANKS = 1024
"""Of a node that are reported; more are left out."""
MOST_CHANNELS = 64
"""Open at once to one agent."""

REPLACED, REVOKED, TOO_OLD, ELSEWHERE = 4001, 4002, 4003, 4004
"""Codes with which the server closes a control socket, and says why before."""

STDOUT, STDERR = b"o", b"e"
"""First byte of what an agent sends on a channel. Text on a channel is an order to the agent, or the end of the
program."""

END, KILL = "end", "kill"
"""Orders on a channel: close the program's stdin; kill it."""

NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,62}\Z")
"""A node's name, as an inventory and a file's name may hold it."""

_PREFIX = "runbook-agent-1-"
_HEX = re.compile(r"[0-9a-f]{64}\Z")

T = TypeVar("T")

Word = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
Part = Annotated[float, Meta(ge=0, le=1e9)]
ExitCode = Annotated[int, Meta(ge=-(1 << 31), le=1 << 32)]
Hex = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class ProtocolError(ValueError):
    """A message that neither program sends."""


class GpuLoad(msgspec.Struct, frozen=True):
    """One GPU of a node. `used` of the time in per cent, memory in MiB; None where nvidia-smi does not tell."""

    index: Count
    name: Word = ""
    used: Part | None = None
    memory_used: Part | None = None
    memory: Part | None = None


class JobProcess(msgspec.Struct, frozen=True):
    """One kept process of a job. `state` as its keeper wrote it, or `gone` where that says running and no such process
    lives."""

    job: Word
    attempt: Count
    name: Word
    ranks: Annotated[list[Count], Meta(max_length=1024)]
    pid: Pid | None = None
    state: Literal["waiting", "running", "stopping", "ended", "gone"] = "running"
    code: ExitCode | None = None
    step: Word | None = None
    step_age_s: Part | None = None


class AgentHello(msgspec.Struct, frozen=True, tag="hello", tag_field="say"):
    """An agent's first message. `incarnation` is drawn when it starts; `machine` shows a copy of its files on another
    host."""

    protocol: Count
    version: Word
    incarnation: Hex
    hostname: Word
    machine: Word
    user: Word = ""


class Heartbeat(msgspec.Struct, frozen=True, tag="beat", tag_field="say"):
    """Every BEAT_S seconds."""

    number: Count
    draining: bool = False
    load: Annotated[list[Part], Meta(max_length=3)] = []
    cpus: Count = 0
    gpus: Annotated[list[GpuLoad], Meta(max_length=64)] = []
    jobs: Annotated[list[JobProcess], Meta(max_length=512)] = []


class ChannelRefused(msgspec.Struct, frozen=True, tag="refused", tag_field="say"):
    """The agent does not open a channel."""

    channel: Hex
    why: Line


class Leaving(msgspec.Struct, frozen=True, tag="leaving", tag_field="say"):
    """The agent ends on request."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="say"):
    name: Word
    version: Word


class Heard(msgspec.Struct, frozen=True, tag="heard", tag_field="say"):
    """The answer to a heartbeat."""

    number: Count


class Open(msgspec.Struct, frozen=True, tag="open", tag_field="say"):
    """Start a supervisor and dial the channel of this number. `command` is for /bin/sh. `person`: who wants it, as the
    server knows. `workdir` is the node's, in which jobs will lie."""

    channel: Hex
    command: Annotated[str, Meta(max_length=16 << 10)]
    python: Line
    workdir: Line
    person: Word = ""


class Denied(msgspec.Struct, frozen=True, tag="denied", tag_field="say"):
    """The last message of a server that refuses this agent. `fix` is a sentence with a command."""

    code: Count
    why: Line
    fix: Line


class Ended(msgspec.Struct, frozen=True, tag="ended", tag_field="say"):
    """The last message on a channel: how the program ended."""

    code: ExitCode


FromAgent = AgentHello | Heartbeat | ChannelRefused | Leaving
FromServer = Welcome | Heard | Open | Denied

_ENCODER = msgspec.json.Encoder()
# Made here: msgspec crashes where two threads make decoders of one type for the first time at once.
_FROM_AGENT: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
_FROM_SERVER: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)
_ENDED: msgspec.json.Decoder[Ended] = msgspec.json.Decoder(Ended)


def said(message: FromAgent | FromServer | Ended) -> str:
    return _ENCODER.encode(message).decode()


def from_agent(text: object) -> FromAgent:
    """Raises ProtocolError."""
    return _decoded(_FROM_AGENT, text)


def from_server(text: object) -> FromServer:
    """Raises ProtocolError."""
    return _decoded(_FROM_SERVER, text)


def ended(text: object) -> Ended:
    """Raises ProtocolError."""
    return _decoded(_ENDED, text)


def _decoded(decoder: msgspec.json.Decoder[T], text: object) -> T:
    if not isinstance(text, str) or len(text) > LONGEST_MESSAGE:
        raise ProtocolError("not text, or too long")
    try:
        return decoder.decode(text)
    except (ValueError, RecursionError, TypeError) as error:
        raise ProtocolError(str(error)[:200]) from None


@dataclass(frozen=True, slots=True)
class Enrolment:
    """The enrolment string for a new agent: where the server is, what its certificate hashes to, and a secret for one
    use."""

    url: str
    certificate: str | None
    """SHA-256 of the certificate (DER) in hex; None where the server speaks plain HTTP."""
    secret: str

    @property
    def local(self) -> bool:
        """Whether the server is called by a loopback address: on any other host that is the host itself."""
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    def __str__(self) -> str:
        text = msgspec.json.encode([self.url, self.certificate or "", self.secret])
        return _PREFIX + base64.urlsafe_b64encode(text).decode().rstrip("=")

    @classmethod
    def of(cls, text: str) -> Enrolment:
        """Raises ProtocolError with a sentence for the user who pasted it."""
        text = "".join(text.split())
        if not text.startswith(_PREFIX) or len(text) > 4096:
            raise ProtocolError(
                f"an enrolment string begins with {_PREFIX}; `runbook serve enrol` on the server prints one"
            )
        body = text.removeprefix(_PREFIX)
        try:
            url, certificate, secret = msgspec.json.decode(
                base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=tuple[str, str, str]
            )
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise ProtocolError("the enrolment string is not whole: was it cut when it was copied?") from None
        if not sound or (parts.scheme == "https") != bool(certificate) or (certificate and not _HEX.match(certificate)):
            raise ProtocolError("the enrolment string names no server that could be trusted")
        return cls(url.rstrip("/"), certificate or None, secret)
