"""The messages between an agent and its server, and their limits: JSON on the control socket, bytes on a channel.

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
"""The version of the protocol: raised when an older agent could not talk to a newer server. A server accepts its own
version and the one before."""

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
"""The most bytes of a message that a channel accepts."""
MOST_RANKS = 1024
"""The most ranks of a node that the server keeps, and of one process that an agent reports; more are left out."""
MOST_JOBS, MOST_GPUS = 512, 64
"""The most processes and GPUs of a node that one heartbeat reports; more are left out."""
MOST_CHANNELS = 64
"""The most channels that are open to one agent at once."""

REPLACED, REVOKED, TOO_OLD, ELSEWHERE = 4001, 4002, 4003, 4004
"""Codes with which the server closes a control socket, after a message that says why."""

STDOUT, STDERR = b"o", b"e"
"""The first byte of each binary message from an agent on a channel. A text message on a channel is an order to the
agent, or tells the end of the program."""

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
    """A GPU of a node. `used` is the share of the time that it works, in per cent; memory is in MiB. None stands for a
    value that nvidia-smi does not tell."""

    index: Count
    name: Word = ""
    used: Part | None = None
    memory_used: Part | None = None
    memory: Part | None = None


class JobProcess(msgspec.Struct, frozen=True):
    """A kept process of a job. `state` is as its keeper wrote it, or `gone` when the process has not ended by its
    journal and yet no longer lives."""

    job: Word
    attempt: Count
    name: Word
    ranks: Annotated[list[Count], Meta(max_length=MOST_RANKS)]
    pid: Pid | None = None
    state: Literal["waiting", "running", "stopping", "ended", "gone"] = "running"
    code: ExitCode | None = None
    step: Word | None = None
    step_age_s: Part | None = None


class AgentHello(msgspec.Struct, frozen=True, tag="hello", tag_field="say"):
    """An agent's first message. `incarnation` is drawn at random when the agent starts; `machine` differs on another
    host with a copy of the agent's files."""

    protocol: Count
    version: Word
    incarnation: Hex
    hostname: Word
    machine: Word
    user: Word = ""


class Heartbeat(msgspec.Struct, frozen=True, tag="beat", tag_field="say"):
    """What an agent reports of its node every BEAT_S seconds."""

    number: Count
    draining: bool = False
    load: Annotated[list[Part], Meta(max_length=3)] = []
    cpus: Count = 0
    gpus: Annotated[list[GpuLoad], Meta(max_length=MOST_GPUS)] = []
    jobs: Annotated[list[JobProcess], Meta(max_length=MOST_JOBS)] = []


class ChannelRefused(msgspec.Struct, frozen=True, tag="refused", tag_field="say"):
    """An agent's answer when it does not open a channel, and why."""

    channel: Hex
    why: Line


class Leaving(msgspec.Struct, frozen=True, tag="leaving", tag_field="say"):
    """An agent's last message when it was told to end."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="say"):
    """The server accepts the agent: the node's name, and the server's version."""

    name: Word
    version: Word


class Heard(msgspec.Struct, frozen=True, tag="heard", tag_field="say"):
    """The answer to a heartbeat."""

    number: Count


class Open(msgspec.Struct, frozen=True, tag="open", tag_field="say"):
    """An order to start a supervisor and to dial the channel `channel` for it. `command` is for /bin/sh. `person` is
    who wants the stream, by the server's word; `workdir` is the node's, where jobs will be."""

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
# Made at import: msgspec crashes when two threads make decoders of a new type at the same time.
_FROM_AGENT: msgspec.json.Decoder[FromAgent] = msgspec.json.Decoder(FromAgent)
_FROM_SERVER: msgspec.json.Decoder[FromServer] = msgspec.json.Decoder(FromServer)
_ENDED: msgspec.json.Decoder[Ended] = msgspec.json.Decoder(Ended)


def said(message: FromAgent | FromServer | Ended) -> str:
    """The message as JSON."""
    return _ENCODER.encode(message).decode()


def from_agent(text: object) -> FromAgent:
    """The message of an agent on the control socket. Raises ProtocolError."""
    return _decoded(_FROM_AGENT, text)


def from_server(text: object) -> FromServer:
    """The message of a server on the control socket. Raises ProtocolError."""
    return _decoded(_FROM_SERVER, text)


def ended(text: object) -> Ended:
    """The last message on a channel. Raises ProtocolError."""
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
    """The content of an enrolment string: the server's URL, the hash of its certificate, and a secret that can be used
    once."""

    url: str
    certificate: str | None
    """SHA-256 of the certificate (DER) in hex; None for a server that speaks plain HTTP."""
    secret: str

    @property
    def local(self) -> bool:
        """Whether the URL has a loopback address, which on any other host would mean that host itself."""
        host = urlsplit(self.url).hostname or ""
        return host in ("localhost", "::1") or host.startswith("127.")

    def __str__(self) -> str:
        text = msgspec.json.encode([self.url, self.certificate or "", self.secret])
        return _PREFIX + base64.urlsafe_b64encode(text).decode().rstrip("=")

    @classmethod
    def of(cls, text: str) -> Enrolment:
        """The content of the string that a user pasted. Raises ProtocolError with a sentence for that user."""
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
