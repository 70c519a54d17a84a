"""What the programs of `runbook/node/` may answer, as one type an answer: everything from a node is checked here.

Every field has a type, a range or a length; names follow what the kernel allows. Fields that no type names are dropped.
`answer` also checks that an answer fits the question. What a field means is said in the docstring of its program.
"""

from __future__ import annotations

import ipaddress
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Generic, Literal, TypeVar

from msgspec import Meta

from runbook.files.address import is_ip
from runbook.model.inventory import MAX_GPUS_PER_NODE
from runbook.model.units import first_items_text
from runbook.node import journal
from runbook.node.proc import MAX_RANK
from runbook.node.tools import MAX_SENT_CHARACTERS
from runbook.transport.frames import (
    MAX_INTEGER,
    Count,
    ExitCode,
    Integer,
    LongText,
    Milliseconds,
    Pid,
    Seconds,
    ShortText,
    UnexpectedAnswer,
    UnixTime,
    decode_json,
)
from runbook.transport.frames import Failure as Failure  # which the supervisor says as well

if sys.version_info >= (3, 11):
    from typing import NotRequired, Required, TypedDict
else:
    from typing_extensions import NotRequired, Required, TypedDict

AnswerType = TypeVar("AnswerType")
"""The type of a program's answer."""

Port = Annotated[int, Meta(ge=0, le=65535)]
Number = Annotated[float, Meta(ge=-1e300, le=1e300)]
Rank = Annotated[int, Meta(ge=0, le=MAX_RANK)]
Mtu = Annotated[int, Meta(ge=0, le=1 << 31)]
Digits = Annotated[str, Meta(pattern=r"\A[0-9]{1,10}\Z")]
Variable = Annotated[str, Meta(pattern=r"\A[A-Z_][A-Z0-9_]{0,99}\Z")]
Version = Annotated[str, Meta(pattern=r"\A[0-9]{1,4}\.[0-9]{1,4}\.[0-9]{1,4}\Z")]
Interface = Annotated[str, Meta(pattern=r"\A[^\s/\x00-\x1f\x7f]{1,128}\Z")]
"""The name of a network interface: the kernel allows every byte in it but white space and the slash."""

ErrnoName = Annotated[str, Meta(max_length=256)]
FileName = Annotated[str, Meta(pattern=r"\A(?!\.{1,2}\Z)[^/\\\x00-\x1f\x7f]{1,255}\Z")]
"""The name of a file in a folder that both sides know: never a path."""

FilePath = Annotated[str, Meta(max_length=4096, pattern=r"\A[^\x00-\x1f\x7f]+\Z")]
"""A path without control characters, so that it can be typed and written into files of ours."""

AttemptFolder = Annotated[str, Meta(pattern=rf"\A{journal.ATTEMPT_FOLDER.pattern}")]
Word = Annotated[str, Meta(pattern=r"\A[A-Za-z0-9_.:@+-]{1,128}\Z")]
Output = Annotated[str, Meta(max_length=MAX_SENT_CHARACTERS)]
"""The output of one tool about the devices of one machine."""

_ADDRESS = re.compile(r"[0-9A-Fa-f:.]{2,45}(?:%[A-Za-z0-9_.-]{1,64})?(?P<length>/[0-9]{1,3})?\Z")
"""An IP address. Commands that people paste hold addresses unquoted, so its zone has no character that a shell
reads."""


def _match_ip_address(value: object) -> re.Match[str]:
    if not isinstance(value, str):
        raise ValueError("Expected `str`")
    found = _ADDRESS.match(value)
    if not found:
        raise ValueError("Expected an IP address")
    return found


if TYPE_CHECKING:
    # A node sends texts; msgspec makes instances of the classes below of them.
    Address = str
    Prefix = str
else:

    class Address(str):
        """An IP address in digits, perhaps with an IPv6 zone."""

        __slots__ = ()

        def __new__(cls, value: object) -> Address:
            ipaddress.ip_address(_match_ip_address(value)[0])
            return super().__new__(cls, value)

    class Prefix(str):
        """An IP address with the length of its network: 10.0.0.1/24."""

        __slots__ = ()

        def __new__(cls, value: object) -> Prefix:
            ipaddress.ip_interface(_match_ip_address(value)[0])
            return super().__new__(cls, value)


# The supervisor's first frame.


class WorkdirFacts(TypedDict):
    """Where a node's `workdir` lies: how much of its path is `there`, its owner, and its file system."""

    workdir: ShortText
    home: ShortText
    user: ShortText
    owner: ShortText | None
    mode: Annotated[str, Meta(pattern=r"\A[0-7]{1,6}\Z")] | None
    link: ShortText | None
    there: ShortText
    folder: bool
    full_of_files: NotRequired[bool]
    free_bytes: NotRequired[Count]
    mount: NotRequired[ShortText]


class Hello(TypedDict):
    """The supervisor's first frame. `rejected` are the exit codes of interpreters that did not start; `folder` is the
    run's folder, or `folder_error` says why there is none; `place` describes the workdir."""

    python: Version
    executable: ShortText
    rejected: list[Annotated[str, Meta(pattern=r"\A[0-9]{1,3}\Z")]]
    hostname: ShortText
    pid: Pid
    machine: ShortText
    folder: NotRequired[FilePath]
    free_bytes: NotRequired[Count]
    free_files: NotRequired[Count | None]
    noexec: NotRequired[bool]
    folder_error: NotRequired[Failure]
    place: NotRequired[WorkdirFacts]


# Programs that are called: one answer each.


class ToolEnd(TypedDict, total=False):
    """How a tool of the node ended, or that it is missing or has not ended."""

    missing: bool
    timed_out: bool
    state: Annotated[str, Meta(max_length=1)]
    code: ExitCode | None


class Ran(ToolEnd, total=False):
    """How a tool ended and what it printed, or that its output was too long to be sent."""

    too_long: bool
    out: Output
    err: Output
    fields: list[Word]


class InterfaceFacts(TypedDict):
    """A network interface of a node."""

    mtu: Mtu | None
    state: Word | None
    flags: list[Word]
    addresses: list[Address]
    ipv6_off: NotRequired[bool]
    carrier_changes: NotRequired[Count | None]


class Limits(TypedDict, total=False):
    """The resource limits of the login; null stands for unlimited."""

    memlock_bytes: Count | None
    memlock_hard_bytes: Count | None
    may_lock: bool
    open_files: Count | None
    address_space_bytes: Count | None
    cpu_seconds: Count | None


class SharedMemory(TypedDict):
    """The size of /dev/shm."""

    bytes: Count
    free_bytes: Count


class HostFacts(TypedDict):
    """The answer of `host_facts`. `asks_ecn`: the kernel asks for explicit congestion notification when it dials."""

    hostname: ShortText
    interfaces: dict[Interface, InterfaceFacts]
    limits: Limits
    shm: SharedMemory | None
    port_range: ShortText | None
    asks_ecn: NotRequired[bool]
    own: NotRequired[bool | None]


class Looked(TypedDict):
    """How the node resolved a name; null without an answer. `in_hosts` are the lines of /etc/hosts that have it."""

    addresses: list[Address] | None
    seconds: Seconds
    in_hosts: list[tuple[Count, ShortText]]


class RouteEntry(TypedDict, total=False):
    """The fields of a route in `ip -j route` that are judged."""

    type: Word
    dst: Required[ShortText]
    gateway: ShortText
    metric: Count
    table: ShortText | Count


RuleSelector = Annotated[dict[Word, ShortText | Integer | bool | list[ShortText] | None], Meta(max_length=64)]
"""A rule of `ip -j rule`. All its keys are kept: an unknown key selects packets in an unknown way."""


class Route(TypedDict, total=False):
    """The way that the node's kernel takes to an address."""

    error: ShortText | None
    dev: Interface | None
    src: Address | None
    via: Address | None
    mtu: Mtu | None
    local: bool
    rules: list[RuleSelector]
    routes: list[RouteEntry]


class Pinged(ToolEnd, total=False):
    """What became of a series of ICMP echoes."""

    out: ShortText
    err: ShortText
    raw: ShortText
    sent: Count
    received: Count
    ms: Milliseconds


class Neighbour(TypedDict, total=False):
    """The kernel's neighbour entry (ARP or NDP) of an address."""

    lladdr: ShortText
    state: list[Word]


class Gateway(TypedDict):
    """The gateway on the way to a peer that does not answer."""

    neighbour: Neighbour | None
    routes: list[RouteEntry]


class PingTarget(TypedDict):
    """The answer of `ping` about one peer."""

    peer: ShortText
    address: ShortText
    resolved: list[Address] | None
    route: Route | None
    small: Pinged | None
    full: Pinged | None
    spare_answers: bool
    neighbour: Neighbour | None
    spare: NotRequired[ShortText | None]
    again: NotRequired[Pinged]
    gateway: NotRequired[Gateway]


class NetworkInterface(TypedDict):
    """A network interface, as `ping` reports it."""

    mac: ShortText | None
    mtu: Mtu | None
    rp_filter: Integer
    carrier_changes: NotRequired[Count | None]
    prefixes: list[Prefix]


class AwakeFacts(TypedDict):
    """How late a node program ran, in seconds, and the CPU `pressure` in per cent; `shut_out` counts connections that
    it had no descriptor for, `overflows` those that its kernel had no room for."""

    seconds: Seconds
    late_s: Seconds
    latest_s: Seconds
    pressure: Seconds | None
    shut_out: NotRequired[Count]
    overflows: NotRequired[Count]


class PingAnswer(TypedDict):
    """The answer of `ping`."""

    names: dict[ShortText, Looked]
    hostname: ShortText
    own: Looked | None
    nameservers: list[ShortText]
    name_sources: ShortText | None
    hosts_unreadable: ShortText | None
    reverse_late: bool
    interfaces: dict[Interface, NetworkInterface]
    rp_filtered: Integer | None
    neighbours_refused: Integer | None
    awake: AwakeFacts
    targets: list[PingTarget]


class OwnAddress(TypedDict):
    """What the rendezvous address resolves to, and whether it is an address of the node."""

    resolved: list[Address] | None
    local: bool
    error: NotRequired[ShortText]


class Holder(TypedDict):
    """The process that holds a port. `listens` and `peer` are ADDRESS:PORT."""

    uid: Count | None
    user: ShortText | None
    pid: Pid | None
    command: ShortText | None
    run_id: ShortText | None
    listens: ShortText | None
    peer: ShortText | None
    left_behind: NotRequired[bool]
    ours: NotRequired[bool]


class PortState(TypedDict):
    """Whether a port can be bound; if it cannot, the error and the process that holds it."""

    free: bool
    errno: NotRequired[ErrnoName]
    holder: NotRequired[Holder | None]


class PortAnswer(TypedDict):
    """The answer of `port`."""

    address: OwnAddress | None
    ports: dict[Digits, PortState]
    unprivileged: Port | None


class SocketHolder(TypedDict):
    """A process, or only a user, that holds sockets on ephemeral ports; `sockets` counts them."""

    pid: Pid | None
    command: ShortText | None
    user: ShortText | None
    sockets: Count


class EphemeralPorts(TypedDict):
    """The answer of `ephemeral_ports`. When the kernel does not tell its range, only `low` and `high` are there, as
    null."""

    low: Port | None
    high: Port | None
    reserved: NotRequired[Count]
    taken: NotRequired[Count]
    ours: NotRequired[Count]
    listening: NotRequired[Count]
    connected: NotRequired[Count]
    waiting: NotRequired[Count]
    holders: NotRequired[list[SocketHolder]]


class GpuProcess(TypedDict, total=False):
    """A process on a GPU: all fields, or none when the node cannot see the process."""

    user: ShortText
    command: ShortText
    ours: bool


class GpusAnswer(TypedDict):
    """The answer of `gpus`: `processes` by pid."""

    pci: Count | None
    amd: ShortText | None
    gpu: NotRequired[Ran]
    apps: NotRequired[Ran]
    links: NotRequired[Ran]
    all: NotRequired[Ran]
    dmesg: NotRequired[list[LongText] | None]
    journal: NotRequired[list[LongText] | None]
    processes: dict[Digits, GpuProcess]
    uptime_s: Seconds


class IbPort(TypedDict):
    """A port of an HCA, as sysfs describes it."""

    state: ShortText | None
    phys_state: ShortText | None
    rate: ShortText | None
    link_layer: ShortText | None


class Gid(TypedDict):
    """A GID of an HCA's port: an address on InfiniBand or RoCE."""

    gid: ShortText
    type: ShortText | None
    ndev: ShortText | None


class IbstatAnswer(TypedDict):
    """The answer of `ibstat`: the tool's output, and the ports in sysfs by HCA and port number."""

    ibstat: Ran
    sysfs: dict[Word, dict[Digits, IbPort]] | None
    gids: dict[Word, dict[Digits, Gid]]
    cards: Count | None


class AdapterFacts(TypedDict):
    """The speed of a network interface: of its physical devices (`hardware`), and as limited by `tc`."""

    hardware: list[Interface]
    mbit: Count | None
    duplex: list[ShortText | None]
    counters: dict[Word, Integer | None]
    tc: dict[Word, LongText] | None


class Adapters(TypedDict):
    """The answer of `adapters`."""

    interfaces: dict[Interface, AdapterFacts]


class Segments(TypedDict):
    """The kernel's counts of TCP segments: all that were sent, and those that were sent again."""

    OutSegs: Count
    RetransSegs: Count


class Counters(TypedDict):
    """The answer of `counters`."""

    clock: Seconds
    interfaces: dict[Interface, dict[Word, Integer | None]]
    tcp: Segments | None
    ports: dict[Word, dict[Word, Integer | None]]
    machine: dict[Word, Count | None]
    gpus: Ran | None
    xids: list[LongText] | None


class SurveyAnswer(TypedDict):
    """The answer of `survey`."""

    login: tuple[ShortText, Port] | None
    speeds: dict[Interface, Count]
    nvidia_smi: Ran
    nvidia_devices: Annotated[int, Meta(ge=0, le=MAX_GPUS_PER_NODE)] | None


class PythonFacts(TypedDict):
    """A Python on a node; `torch`, `cuda` and `hip` are versions, null without them."""

    path: FilePath
    version: Version
    prefix: ShortText
    torch: ShortText | None
    cuda: NotRequired[ShortText | None]
    hip: NotRequired[ShortText | None]


class Pythons(TypedDict):
    """The answer of `pythons`."""

    pythons: list[PythonFacts]
    unfinished: Count


class RouteTarget(TypedDict):
    """The answer of `route` about one peer."""

    peer: ShortText
    address: ShortText
    port: Port
    source: Address | None
    interface: Interface | None
    answer: ShortText


class Routes(TypedDict):
    """The answer of `route`."""

    targets: list[RouteTarget]


class TcpConnection(TypedDict):
    """A TCP connection of a rank's process; `open` is false while the dial has no answer."""

    local: Address
    local_port: Port
    remote: Address
    remote_port: Port
    pid: Pid
    rank: Count | None
    open: bool
    unacked: Count
    unread: Count
    resent: Count


class Listener(TypedDict):
    """A port on which a rank's process listens."""

    port: Port
    rank: Count | None


class RankConnections(TypedDict):
    """The answer of `rank_connections`."""

    connections: list[TcpConnection]
    listening: list[Listener]
    settings: NotRequired[dict[Digits, dict[Variable, ShortText]]]


class ProcessFacts(TypedDict):
    """A process of a rank's session, as `rank_processes` describes it."""

    pid: Pid
    state: Annotated[str, Meta(pattern=r"\A[A-Za-z]\Z")]
    comm: ShortText
    wchan: ShortText
    rank: Count | None
    cpu: Number
    waited: Number | None
    copied: Integer
    stays: bool
    ending: bool


class BusyProcess(TypedDict):
    """A process that is no rank's and uses much of the CPU; `cpu` is its share of one CPU."""

    pid: Pid
    user: ShortText
    command: ShortText
    cpu: Number


class RankSeen(TypedDict):
    """What the kernel knows of one rank's processes, as `rank_processes` describes it."""

    processes: list[ProcessFacts]
    works: bool
    connections: Count | None
    moved: Integer | None
    queued: Integer
    stack: LongText | None
    own_stacks: dict[Digits, LongText]
    throttled: Number | None


class RankProcesses(TypedDict):
    """The answer of `rank_processes`: `ranks` by rank."""

    ranks: dict[Digits, RankSeen]
    busy: list[BusyProcess]
    carried: Integer | None
    kernel_kills: Count | None
    kernel_says: list[ShortText]
    gpu_use: dict[Digits, Count] | None
    settings: NotRequired[dict[Digits, dict[Variable, ShortText]]]
    seconds: Seconds


class RankSamples(TypedDict):
    """Samples of one rank: a state letter and a stack for each look."""

    states: Annotated[str, Meta(pattern=r"\A[A-Za-z]{0,1000}\Z")]
    stacks: Annotated[list[LongText], Meta(max_length=1000)]
    waited: Number | None


class SentTo(TypedDict):
    """The bytes that a node's ranks sent to one address, and the seconds for which some of them were under way."""

    bytes: Count
    busy_s: Seconds


class StackSamples(TypedDict):
    """The answer of `stack_samples`: `ranks` by rank, `sent` by address."""

    ranks: dict[Digits, RankSamples]
    busy: list[BusyProcess]
    sent: dict[ShortText, SentTo] | None
    seconds: Seconds


class CollectedAnswer(TypedDict):
    """The output of one tool, or one file, for `collect`. `left_out` counts bytes; `code` is null when no program
    ended."""

    name: ShortText
    command: ShortText
    status: Literal["ok", "missing", "denied", "timeout", "failed"]
    code: ExitCode | None
    seconds: Seconds
    out: LongText
    err: LongText
    left_out: Count


class Collected(TypedDict):
    """The answer of `collect`. `users` has the login name, home folder and full name of each account."""

    answers: Annotated[list[CollectedAnswer], Meta(max_length=400)]
    user: ShortText
    users: Annotated[list[tuple[ShortText, ShortText, ShortText]], Meta(max_length=25_000)]
    hostnames: Annotated[list[ShortText], Meta(max_length=100_000)]
    seconds: Seconds


# Jobs: what keepers write into journals, and what a node reports of them.


class Tabled(dict[str, Any]):
    """A mapping that is checked by a table of `runbook/node/journal.py`, since nodes use the same table: it has the
    fields in `kinds` only, and all in `needed`. Raises ValueError."""

    __slots__ = ()
    kinds: ClassVar[Mapping[str, journal.FieldKind]]
    needed: ClassVar[tuple[str, ...]]

    def __init__(self, said: object) -> None:
        super().__init__(journal.checked_fields(said, self.kinds, self.needed))


if TYPE_CHECKING:
    # The type checker sees the plain mapping that the same table gives on a node.
    JournalFacts = journal.DocumentFields
    LivingJournal = journal.DocumentFields
    Damaged = journal.DocumentFields
    About = journal.DocumentFields
else:

    class JournalFacts(Tabled):
        """A journal: what a keeper wrote about its process, and, if the node has looked, which processes live now."""

        __slots__ = ()
        kinds: ClassVar[Mapping[str, journal.FieldKind]] = {**journal.JOURNAL_FIELDS, **journal.PRESENT_STATE_FIELDS}
        needed: ClassVar[tuple[str, ...]] = journal.REQUIRED_JOURNAL_FIELDS

    class LivingJournal(JournalFacts):
        """A journal whose processes the node has looked for: it has `lives` and `keeper_lives`."""

        __slots__ = ()
        needed = (*journal.REQUIRED_JOURNAL_FIELDS, "lives", "keeper_lives")

    class Damaged(Tabled):
        """A job's file that its node cannot read, and the living processes that the file may be about."""

        __slots__ = ()
        kinds = journal.DAMAGED_FILE_FIELDS
        needed = tuple(journal.DAMAGED_FILE_FIELDS)

    class About(Tabled):
        """The content of `job.json`, which a launch writes on each of its nodes."""

        __slots__ = ()
        kinds = journal.JOB_FIELDS
        needed = ("job", "node")


class Prepared(TypedDict):
    """The answer of `job_control prepare`: processes that still live, and the hashes of files."""

    alive: list[LivingJournal]
    gpus: list[LivingJournal]
    sha256: dict[ShortText, Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None]
    beside: NotRequired[dict[ShortText, Annotated[str, Meta(pattern=r"\A[0-9a-f]{64}\Z")] | None]]


class Watched(TypedDict):
    """The answer of `job_control watch`: the journals of an attempt, and pieces of its logs."""

    kept: list[JournalFacts]
    read: dict[FileName, bytes]
    size: dict[FileName, Count]
    steps: dict[FileName, ShortText]
    seen: list[tuple[ShortText, Count, Integer]]
    time: UnixTime


class KeptAnswer(TypedDict):
    """The answer of `job_control stop` and `job_control kill`: the journals of the attempt."""

    kept: list[LivingJournal]


class ListedJob(TypedDict):
    """A job in a node's workdir, with its journals by attempt."""

    about: About
    folder: Annotated[str, Meta(max_length=4096, pattern=r"\A/[^\x00-\x1f\x7f]*\Z")]
    attempts: Annotated[dict[AttemptFolder, list[LivingJournal]], Meta(max_length=1000)]
    damaged: NotRequired[list[Damaged]]


class Listed(TypedDict):
    """The answer of `job_control list`."""

    jobs: list[ListedJob]
    time: UnixTime


class CleanAnswer(TypedDict):
    """The answer of `job_control clean`: whether the job's folder was removed, or the names of what lives there."""

    removed: bool
    alive: list[ShortText]


ANSWER_TYPES: dict[str, Any] = {
    "job_control prepare": Prepared,
    "job_control watch": Watched,
    "job_control stop": KeptAnswer,
    "job_control kill": KeptAnswer,
    "job_control list": Listed,
    "job_control clean": CleanAnswer,
}
"""The type of each answer, by the program's name; for a program with several orders, by its name and the order."""


class Asked(str, Generic[AnswerType]):
    """The name of a node program that knows the type of the program's answer, so that a call by it is typed."""

    def __new__(cls, name: str, answer: type[AnswerType]) -> Asked[AnswerType]:
        ANSWER_TYPES[name] = answer
        return super().__new__(cls, name)


ADAPTERS_PROGRAM = Asked("adapters", Adapters)
COLLECT_PROGRAM = Asked("collect", Collected)
COUNTERS_PROGRAM = Asked("counters", Counters)
EPHEMERAL_PORTS_PROGRAM = Asked("ephemeral_ports", EphemeralPorts)
GPUS_PROGRAM = Asked("gpus", GpusAnswer)
HOST_FACTS_PROGRAM = Asked("host_facts", HostFacts)
IBSTAT_PROGRAM = Asked("ibstat", IbstatAnswer)
PING_PROGRAM = Asked("ping", PingAnswer)
PORT_PROGRAM = Asked("port", PortAnswer)
PYTHONS_PROGRAM = Asked("pythons", Pythons)
RANK_CONNECTIONS_PROGRAM = Asked("rank_connections", RankConnections)
RANK_PROCESSES_PROGRAM = Asked("rank_processes", RankProcesses)
ROUTE_PROGRAM = Asked("route", Routes)
STACK_SAMPLES_PROGRAM = Asked("stack_samples", StackSamples)
SURVEY_PROGRAM = Asked("survey", SurveyAnswer)


def decode_answer(program: str, arguments: Mapping[str, Any], said: bytes) -> dict[str, Any]:
    """A program's answer to these arguments, decoded and checked. Raises UnexpectedAnswer."""
    name = f"{program} {arguments['do']}" if "do" in arguments else program
    found: dict[str, Any] = decode_json(said, ANSWER_TYPES[name])
    wanted, got = _asked_and_answered(program, arguments, found)
    if wanted != got:
        raise UnexpectedAnswer(f"it is about {_few_names_text(got)}, and was asked for {_few_names_text(wanted)}")
    if odd := _answer_contradiction(name, found):
        raise UnexpectedAnswer(odd)
    if name == "job_control watch" and (sent := sum(map(len, found["read"].values()))) > _max_log_bytes(
        arguments, found
    ):
        raise UnexpectedAnswer(f"it sends {sent} bytes of logs at once, and was asked for {arguments['most']}")
    return found


def _max_log_bytes(arguments: Mapping[str, Any], found: Mapping[str, Any]) -> int:
    """The most bytes of logs that a node may send: an equal part of each file, but a part may be MIN_LOG_ANSWER_BYTES
    long."""
    return int(arguments["most"]) + journal.MIN_LOG_ANSWER_BYTES * len(found["read"])


def _asked_and_answered(
    program: str, arguments: Mapping[str, Any], found: Mapping[str, Any]
) -> tuple[list[str], list[str]]:
    """The subjects that a program was asked about, and those of its answer (peers, ports, ranks): both lists must be
    the same."""
    if program in ("ping", "route"):
        sides = (arguments["targets"], found["targets"])
        wanted, got = ([f"{one['peer']} at {one['address']}" for one in side] for side in sides)
        return [*wanted, *arguments.get("names", ())], [*got, *found.get("names", ())]
    if program == "port":
        return [str(port) for port in arguments["ports"]], list(found["ports"])
    if program == "ephemeral_ports":
        fields = (
            EphemeralPorts.__annotations__
            if found["low"] is not None and found["high"] is not None
            else ("low", "high")
        )
        return list(fields), [name for name in EphemeralPorts.__annotations__ if name in found]
    if program == "rank_processes":
        return sorted(rank for rank, pid in arguments["leaders"].items() if pid), sorted(found["ranks"])
    return [], []


def _answer_contradiction(name: str, found: Mapping[str, Any]) -> str | None:
    """What is missing from an answer or contradicts itself, though each field fits by itself; None if all is well."""
    if name == "ping":
        return next((odd for target in found["targets"] if (odd := _target_contradiction(target))), None)
    if name == "port":
        mute = (port for port, state in found["ports"].items() if not state["free"] and "errno" not in state)
        return next((f"port {port} is not free, and no `errno` says why" for port in mute), None)
    if name == "gpus":
        halves = (
            pid for pid, seen in found["processes"].items() if seen and len(seen) < len(GpuProcess.__annotations__)
        )
        return next((f"`processes` tells a part of process {pid}" for pid in halves), None)
    if name == "ephemeral_ports" and (found["low"] is None) != (found["high"] is None):
        return "it tells one end of its range of ports"
    if name == "job_control prepare" and not all(journal.get("gpus") for journal in found["gpus"]):
        return "`gpus` names a process that has none"
    return None


def _target_contradiction(target: Mapping[str, Any]) -> str | None:
    """What contradicts itself in the answer about a pinged peer; None if nothing does. An address in digits resolves to
    itself, and nothing more can be told about a name that does not resolve."""
    peer, resolved = target["peer"], target["resolved"] or []
    looked = [target[field] for field in ("route", "small", "full")]
    if not resolved and any(looked):
        return f"{peer} has no address, and there is a way to it"
    if is_ip(target["address"]) and any(
        _parse_ip_address(one) != _parse_ip_address(target["address"]) for one in resolved
    ):
        return f"{peer} at {target['address']} means {_few_names_text(resolved)}"
    counted = [one for one in (*looked[1:], target.get("again")) if one]
    if any(("sent" in one) != ("received" in one) for one in counted):
        return f"echoes to {peer} are counted by half"
    return None


def _parse_ip_address(address: str) -> object:
    return ipaddress.ip_address(address.partition("%")[0])


def _few_names_text(names: list[str]) -> str:
    return first_items_text(names, 4) or "nothing"


# Programs that keep running and send messages.


class MessageKind(TypedDict):
    """The fields of a message that decide which type describes it."""

    event: NotRequired[ShortText]
    step: NotRequired[ShortText]


class ProgramEvent(TypedDict):
    """A message that is an event."""

    event: ShortText


class StepEvent(ProgramEvent):
    """A message of a rank about a step that it has reached."""

    step: ShortText


class PortRefused(TypedDict):
    """A port on which `mesh` could not listen."""

    port: Port
    errno: ErrnoName
    text: ShortText


class Listening(TypedDict):
    """The message of `mesh` about the ports on which it listens."""

    ports: list[Annotated[int, Meta(ge=1, le=65535)]]
    errors: list[PortRefused]


class Dialled(TypedDict):
    """What became of one dial of `mesh`."""

    outcome: Literal[
        "open",
        "dropped",
        "refused",
        "rejected",
        "reset",
        "stranger",
        "silent",
        "lost",
        "unsent",
        "unresolvable",
        "unmeasured",
    ]
    errno: ErrnoName | None
    seconds: Seconds
    tries: Count
    retransmitted: Count | None
    local: Address | None
    from_ports: NotRequired[list[Port]]
    remote: Address | None


class DialResults(TypedDict):
    """The message of `mesh` about its dials, in their order; null for a dial that opened at the first try and lost
    nothing."""

    results: list[Dialled | None]
    awake: AwakeFacts


class ToolRun(TypedDict):
    """How a tool of a packet filter ended, and what it printed."""

    status: Literal["ok", "missing", "denied", "timeout", "failed"]
    rc: NotRequired[ExitCode]
    stdout: NotRequired[LongText]
    stderr: NotRequired[LongText]
    flavour: NotRequired[Word]


class FirewallFacts(TypedDict, total=False):
    """Facts of the kernel that the packet filters' tools do not print."""

    conntrack_count: Digits | None
    conntrack_max: Digits | None
    local_ports: ShortText | None
    ttl: Digits | None
    uid: Count
    gid: Count
    legacy_tables: dict[Word, list[ShortText] | None]
    nf_tables: bool | None
    traffic_filters: dict[ShortText, ShortText]
    ipsec_drops: dict[Word, Count]


class FirewallRules(TypedDict):
    """The message of `firewall_rules`."""

    tools: dict[ShortText, ToolRun]
    facts: FirewallFacts


class RankOfWorld(TypedDict):
    """A rank and the size of its world."""

    rank: Rank
    world_size: Rank


class Started(StepEvent):
    """The step in which a rank has started."""

    pid: Pid
    seat: RankOfWorld
    kernel_kills: Count | None


class Imported(StepEvent):
    """The step in which a rank has imported torch."""

    torch: ShortText
    nccl: ShortText | None
    gpus: Count
    gpu: ShortText | None
    python: ShortText
    seconds: Seconds
    detail: NotRequired[bool]


class Sizes(TypedDict):
    size: Count
    why: ShortText


class LagFacts(TypedDict):
    timed: Seconds
    own: Seconds
    paused: Seconds
    queued: Seconds


class SegmentCounts(TypedDict):
    sent: Count
    again: Count


class Done(StepEvent):
    """The step in which a rank has done what it was told."""

    stopped_before: NotRequired[Sizes | None]
    lag: NotRequired[LagFacts]
    tcp: NotRequired[SegmentCounts | None]


class MeetingStep(StepEvent):
    """Where a rank dials or listens, and what it met there."""

    reason: NotRequired[ShortText]
    address: ShortText
    port: Port


class RankBeat(TypedDict, total=False):
    """A rank's sign of life, twice a second: how far it is."""

    event: ShortText
    phase: ShortText
    size: Count
    turn: Count
    turns: Count
    work: Count


class RowMessage(TypedDict):
    """A line of the table of nccl-tests: times in microseconds, bandwidths in GB/s."""

    size: Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
    count: Count
    type: Word
    redop: Word
    time_us: Seconds
    algbw: Seconds
    busbw: Seconds
    wrong: Count
    iterations: Count
    p50_us: Seconds
    p99_us: Seconds
    max_us: Seconds


class RowDone(ProgramEvent):
    """A rank's message with a finished size of the AllReduce test."""

    row: RowMessage


class Finished(ProgramEvent):
    size: Count


class WrongElement(TypedDict):
    """The first element of a result that has the wrong value."""

    element: Count
    got: Number | Literal["nan", "inf", "-inf"]
    expected: Number


class Wrong(ProgramEvent):
    """A rank's message that a result of the AllReduce test is wrong."""

    size: Count
    count: Count
    first: WrongElement | None


class Located(ProgramEvent):
    ranks: list[Rank]


class HostMessage(TypedDict):
    host: ShortText
    machine: ShortText


class World(ProgramEvent):
    """The host of every rank, as rank 0 got them from the ranks."""

    hosts: list[HostMessage]


class Failed(ProgramEvent):
    """A rank's message that it failed, and why."""

    cause: Word | None
    text: LongText
    traceback: NotRequired[list[LongText]]
    at: NotRequired[RankBeat]


class LookingUp(ProgramEvent):
    address: ShortText
    seconds: Seconds


class LookedUp(ProgramEvent):
    address: ShortText


class MovedMessage(ProgramEvent):
    """A rank's message about the bytes that it got from another rank."""

    source: Rank
    destination: Rank
    gbytes: Seconds
    seconds: Seconds
    waited: Seconds
    losses: Annotated[float, Meta(ge=0, le=1)] | None
    both: NotRequired[Seconds]
    us: NotRequired[Seconds]


class Alone(ProgramEvent):
    rank: Rank
    gbytes: Seconds
    waited: Number


class ScriptStopped(ProgramEvent):
    """A launch script stopped before it started anything; the event's name is the reason."""

    code: NotRequired[ExitCode]


class KeptNow(Tabled):
    """A keeper's message: its journal as it is now."""

    __slots__ = ()
    kinds: ClassVar[Mapping[str, journal.FieldKind]] = {
        **journal.JOURNAL_FIELDS,
        **journal.PRESENT_STATE_FIELDS,
        "event": journal.TEXT,
    }
    needed = (*journal.REQUIRED_JOURNAL_FIELDS, "event")


MessageTypes = Mapping[str, Any]
"""The type of each message, by its event. A `step` event is looked up with the name of its step first (`step done`),
then as `step`; the empty name is for messages without an event."""


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages that a program may send, which follow our mark in its output.

    `among_foreign_output`: other libraries print to the same stdout, as NCCL does in a rank, so that a line with our
    mark may be broken or not ours. A program that is alone on its stdout sends nothing else behind the mark.
    """

    described: MessageTypes
    among_foreign_output: bool = False


MESH_MESSAGES = Messages({"listening": Listening, "dialled": DialResults})
FIREWALL_RULES_MESSAGES = Messages({"": FirewallRules})
RANK_MESSAGE_TYPES: MessageTypes = {
    "step started": Started,
    "step imported": Imported,
    "step done": Done,
    "step dialling": MeetingStep,
    "step listening": MeetingStep,
    "step": StepEvent,
    "beat": RankBeat,
    "row": RowDone,
    "finished": Finished,
    "wrong": Wrong,
    "located": Located,
    "world": World,
    "failed": Failed,
    "looking-up": LookingUp,
    "looked-up": LookedUp,
    "moved": MovedMessage,
    "alone": Alone,
}
KEEPER_MESSAGES = Messages({"kept": KeptNow})

PROGRAM_MESSAGES: Mapping[str, Messages] = {"mesh": MESH_MESSAGES, "firewall_rules": FIREWALL_RULES_MESSAGES}
"""The messages of the programs in `runbook/node/` that `Session.program` starts, by name."""


def checked_message(messages: Messages, said: bytes, *, whole: bool = True) -> dict[str, Any] | None:
    """A message, decoded and checked. Raises UnexpectedAnswer when it has no description or does not fit it.

    None for bytes that need not be a message: a line that is not `whole`, since the program ended in the middle of it,
    and any line of a program whose stdout other libraries write to.
    """
    perhaps_none = messages.among_foreign_output or not whole
    try:
        kind = decode_json(said, MessageKind)
    except UnexpectedAnswer:
        if perhaps_none:
            return None
        raise
    event, step = kind.get("event", ""), kind.get("step", "")
    described = messages.described.get(f"{event} {step}") or messages.described.get(event)
    if described is None:
        if perhaps_none:
            return None
        raise UnexpectedAnswer(f"a message {event[:40]!a}, which that program does not have")
    found: dict[str, Any] = decode_json(said, described)
    return found


# Files that a rank leaves on its node.


SequenceNumber = Integer | Annotated[str, Meta(pattern=r"\A-?[0-9]{1,18}\Z")]
"""The number of a collective in its process group; torch writes it as text, and -1 before the first collective."""


class FlightEntry(TypedDict, total=False):
    """The fields of a collective in torch's Flight Recorder that are compared between ranks."""

    process_group: list[ShortText]
    pg_id: ShortText | Count
    collective_seq_id: SequenceNumber
    is_p2p: bool
    profiling_name: ShortText
    input_sizes: Annotated[list[Annotated[list[Count], Meta(max_length=64)]], Meta(max_length=1024)]
    input_dtypes: Annotated[list[ShortText], Meta(max_length=1024)]
    retired: bool
    state: ShortText


class FlightStatus(TypedDict, total=False):
    """The state of a process group in torch's Flight Recorder."""

    last_enqueued_collective: SequenceNumber
    last_completed_collective: SequenceNumber


class FlightDump(TypedDict, total=False):
    """A dump of torch's Flight Recorder."""

    entries: list[FlightEntry] | None
    pg_status: dict[ShortText, FlightStatus] | None


class Calling(TypedDict):
    """The collective that a rank is in; `count` is its number of elements."""

    operation: Word
    count: NotRequired[Count]
    dtype: NotRequired[Word]


class Flight(TypedDict):
    """The content of a rank's flight-RANK.json."""

    rank: Rank
    calls: Count
    calling: Calling | None
    recorded: Integer | None
    flight: FlightDump | None


def decode_flight_record(said: bytes) -> dict[str, Any]:
    """A rank's record of its last collectives (flight-RANK.json), decoded. Raises UnexpectedAnswer."""
    found: dict[str, Any] = decode_json(said, Flight)
    if (calling := found["calling"]) and ("count" in calling) != ("dtype" in calling):
        raise UnexpectedAnswer("`calling` has a count of elements without their type, or the other way round")
    return found
