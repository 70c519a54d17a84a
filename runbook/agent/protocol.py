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

from runbook.transport.frames import Pid, ShortText

PROTOCOL_VERSION = 1
"""The version of the protocol: raised when an older agent could not talk to a newer server. A server accepts its own
version and the one before."""

HEARTBEAT_INTERVAL_S = 5.0
AGENT_SUSPECT_TIMEOUT_S, AGENT_LOST_TIMEOUT_S = 15.0, 60.0
"""After this long without a heartbeat an agent is SUSPECT, and then LOST. Neither affects what runs on its node."""

SERVER_WATCHDOG_TIMEOUT_S = 15.0
"""After this long without a message from the server an agent dials again."""

SERVER_DIAL_TIMEOUT_S = 10.0
MAX_CONTROL_MESSAGE_BYTES = 256 << 10
"""Bytes of one message on the control socket."""

CHANNEL_CHUNK_BYTES = 64 << 10
"""Bytes to or from a supervisor in one message of a channel."""

MAX_CHANNEL_MESSAGE_BYTES = 1 << 20
"""The most bytes of a message that a channel accepts."""
MAX_REPORTED_RANKS = 1024
"""The most ranks of a node that the server keeps, and of one process that an agent reports; more are left out."""
MAX_REPORTED_PROCESSES, MAX_REPORTED_GPUS = 512, 64
"""The most processes and GPUs of a node that one heartbeat reports; more are left out."""
MAX_AGENT_CHANNELS = 64
"""The most channels that are open to one agent at once."""

REPLACED_CLOSE_CODE, REVOKED_CLOSE_CODE, TOO_OLD_CLOSE_CODE, ELSEWHERE_CLOSE_CODE = 4001, 4002, 4003, 4004
"""Codes with which the server closes a control socket, after a message that says why."""

STDOUT_TAG, STDERR_TAG = b"o", b"e"
"""The first byte of each binary message from an agent on a channel. A text message on a channel is an order to the
agent, or tells the end of the program."""

END_ORDER, KILL_ORDER = "end", "kill"
"""Orders on a channel: close the program's stdin; kill it."""

_ENROLMENT_PREFIX = "runbook-agent-1-"
_CERTIFICATE_HASH = re.compile(r"[0-9a-f]{64}\Z")

T = TypeVar("T")

ShortWord = Annotated[str, Meta(max_length=200)]
Count = Annotated[int, Meta(ge=0, le=1 << 53)]
NonNegativeFloat = Annotated[float, Meta(ge=0, le=1e9)]
ExitCode = Annotated[int, Meta(ge=-(1 << 31), le=1 << 32)]
HexId = Annotated[str, Meta(pattern=r"\A[0-9a-f]{32}\Z")]


class ProtocolError(ValueError):
    """A message that neither program sends."""


class GpuLoad(msgspec.Struct, frozen=True):
    """A GPU of a node. `used` is the share of the time that it works, in per cent; memory is in MiB. None stands for a
    value that nvidia-smi does not tell."""

    index: Count
    name: ShortWord = ""
    used: NonNegativeFloat | None = None
    memory_used: NonNegativeFloat | None = None
    memory: NonNegativeFloat | None = None


class JobProcess(msgspec.Struct, frozen=True):
    """A kept process of a job. `state` is as its keeper wrote it, or `gone` when the process has not ended by its
    journal and yet no longer lives."""

    job: ShortWord
    attempt: Count
    name: ShortWord
    ranks: Annotated[list[Count], Meta(max_length=MAX_REPORTED_RANKS)]
    pid: Pid | None = None
    state: Literal["waiting", "running", "stopping", "ended", "gone"] = "running"
    code: ExitCode | None = None
    step: ShortWord | None = None
    step_age_s: NonNegativeFloat | None = None


class AgentHello(msgspec.Struct, frozen=True, tag="hello", tag_field="say"):
    """An agent's first message. `incarnation` is drawn at random when the agent starts; `machine` differs on another
    host with a copy of the agent's files."""

    protocol: Count
    version: ShortWord
    incarnation: HexId
    hostname: ShortWord
    machine: ShortWord
    user: ShortWord = ""


class Heartbeat(msgspec.Struct, frozen=True, tag="beat", tag_field="say"):
    """What an agent reports of its node every HEARTBEAT_INTERVAL_S seconds."""

    number: Count
    draining: bool = False
    load: Annotated[list[NonNegativeFloat], Meta(max_length=3)] = []
    cpus: Count = 0
    gpus: Annotated[list[GpuLoad], Meta(max_length=MAX_REPORTED_GPUS)] = []
    jobs: Annotated[list[JobProcess], Meta(max_length=MAX_REPORTED_PROCESSES)] = []


class ChannelRefused(msgspec.Struct, frozen=True, tag="refused", tag_field="say"):
    """An agent's answer when it does not open a channel, and why."""

    channel: HexId
    why: ShortText


class Leaving(msgspec.Struct, frozen=True, tag="leaving", tag_field="say"):
    """An agent's last message when it was told to end."""


class Welcome(msgspec.Struct, frozen=True, tag="welcome", tag_field="say"):
    """The server accepts the agent: the node's name, and the server's version."""

    name: ShortWord
    version: ShortWord


class Heard(msgspec.Struct, frozen=True, tag="heard", tag_field="say"):
    """The answer to a heartbeat."""

    number: Count


class Open(msgspec.Struct, frozen=True, tag="open", tag_field="say"):
    """An order to start a supervisor and to dial the channel `channel` for it. `command` is for /bin/sh. `person` is
    who wants the stream, by the server's word; `workdir` is the node's, where jobs will be."""

    channel: HexId
    command: Annotated[str, Meta(max_length=16 << 10)]
    python: ShortText
    workdir: ShortText
    person: ShortWord = ""


class Denied(msgspec.Struct, frozen=True, tag="denied", tag_field="say"):
    """The last message of a server that refuses this agent. `fix` is a sentence with a command."""

    code: Count
    why: ShortText
    fix: ShortText


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


def message_json(message: FromAgent | FromServer | Ended) -> str:
    """The message as JSON."""
    return _ENCODER.encode(message).decode()


def parse_agent_message(text: object) -> FromAgent:
    """The message of an agent on the control socket. Raises ProtocolError."""
    return _decode_message(_FROM_AGENT, text)


def parse_server_message(text: object) -> FromServer:
    """The message of a server on the control socket. Raises ProtocolError."""
    return _decode_message(_FROM_SERVER, text)


def parse_end_message(text: object) -> Ended:
    """The last message on a channel. Raises ProtocolError."""
    return _decode_message(_ENDED, text)


def _decode_message(decoder: msgspec.json.Decoder[T], text: object) -> T:
    if not isinstance(text, str) or len(text) > MAX_CONTROL_MESSAGE_BYTES:
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
        return _ENROLMENT_PREFIX + base64.urlsafe_b64encode(text).decode().rstrip("=")

    @classmethod
    def of(cls, text: str) -> Enrolment:
        """The content of the string that a user pasted. Raises ProtocolError with a sentence for that user."""
        text = "".join(text.split())
        if not text.startswith(_ENROLMENT_PREFIX) or len(text) > 4096:
            raise ProtocolError(
                f"an enrolment string begins with {_ENROLMENT_PREFIX}; `runbook serve enrol` on the server prints one"
            )
        body = text.removeprefix(_ENROLMENT_PREFIX)
        try:
            url, certificate, secret = msgspec.json.decode(
                base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)), type=tuple[str, str, str]
            )
            parts = urlsplit(url)
            sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            raise ProtocolError("the enrolment string is not whole: was it cut when it was copied?") from None
        if (
            not sound
            or (parts.scheme == "https") != bool(certificate)
            or (certificate and not _CERTIFICATE_HASH.match(certificate))
        ):
            raise ProtocolError("the enrolment string names no server that could be trusted")
        return cls(url.rstrip("/"), certificate or None, secret)
