"""Signs that no single line shows: from counts and sizes that are compared, times between lines, and values that are
given twice or differently."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, pairwise

from runbook.diagnose.collectives import compare_watchdogs, read_ras_report
from runbook.diagnose.log_lines import TYPED_COMMAND
from runbook.diagnose.progress_lines import shows_progress
from runbook.diagnose.rule_types import MAX_TRACEBACK_LINES, Hit, Line, LineNumbers, has_line_above, line_numbers
from runbook.model.grouping import values_by_key
from runbook.model.nccl_devices import is_local_only_interface
from runbook.model.units import parse_number
from runbook.parsers.ping import LARGE_PING_BYTES

MAX_KERNEL_STACK_LINES = 40  # the most lines of a task's stack in the kernel's log
MAX_FRAME_CODE_LINES = 5  # the most lines of code below a frame of a traceback, with the marks under it
ANSWER_DISTANCES = (1, 3)  # lines from a question at Python's prompt to its answer: a warning between them takes two
# The most lines of a warning of Open MPI's, from the one that tells a code to the one that tells what it does.
MAX_OPENMPI_WARNING_LINES = 8
MAX_IGNORED_TASK_LINES = 40  # the most lines of a failed task of Ansible's, whose hosts fail one after the other
MAX_REJECTION_S = 0.2  # a host that is up, or its firewall, rejects a connection within that time
MAX_STALLED_LINES = 200  # the most lines of one of Horovod's reports about tensors that not all ranks have submitted
MAX_RANK_LIST_GAP = 24  # the most lines between the lists of ranks of two benchmarks that run at once
MIN_RISING_COUNTERS = 2  # the fewest counters of a port without a name that must rise: one may be another port's
MAX_GROWTH = 1.5  # the most by which one of them grows from its first reading to its last: more is another port's
ICMP_HEADER_BYTES = 8  # which `ping` counts in a reply, and not in the size that it is told
ARP_TIMEOUT_S = 0.9  # the kernel asks by ARP that long for an address before it gives up

NCCL_LISTED_INTERFACE = re.compile(r"\[(\d+)\]([\w.-]+):(\S+)")
"""An interface in NCCL's list: its index, name and address."""

FAILURE_SIGNS = ("nccl-warn", "network-exception", "other-exception", "glog-error", "says-failed", "trouble")
"""Signs of lines that name a failure, which may be one that no rule knows."""

RANKS_MET_SIGNS = ("p-to-p-channels", "joined")
"""Signs of lines that NCCL prints when all ranks of a communicator have told each other where they are."""

WAITS_IN_VAIN_SIGNS = ("hangs", "socket-timeout", "client-timed-out")
"""Signs of lines about a process that waits for another one which does not come."""

WRAPPER_SIGNS = ("launcher-failed", "nccl-failed", "traceback")
"""Signs of lines that say only that something failed."""

PRIOR_FAILURE_SIGNS = (
    *("nccl-failed", "failed-collective", "cuda-error", "accelerator-failed", "peer-closed", "store-gone"),
    *("waits-for-rank", "socket-timeout", "client-timed-out", "watchdog", "watchdog-stuck", "reads-from-lost-peer"),
    *("rendezvous-closed", "shutdown-barrier", "aborted-comm", "late-rank"),
)
"""Signs of lines in which other ranks report that a rank is gone, and of failures that raise exceptions: an exception
after such a line may follow from it."""

MACHINE_RANK = re.compile(r"--(?:machine|node)[-_]rank[= ](\d{1,9})")
"""The number that a launcher's command line gives to its machine."""
SLIRP_ADDRESS = "10.0.2.100"
"""The address of every container of rootless podman or Docker whose network is slirp4netns."""
STARTS_ONE_OF_MANY = re.compile(r"\btorchrun\b.{0,300}?--nnodes[= ](?:[2-9]|\d{2,})\b")
"""A command that starts the ranks of one machine of several."""
BRIDGE_ADDRESS = re.compile(r"172\.(?:1[7-9]|2\d|30)\.")
"""The beginning of the addresses that Docker gives to its first bridges; 172.31 is a network of AWS as well."""


ENDED_BY_SLURM = ("told-to-end", "step-cancelled")
"""Signs of lines about tasks that Slurm ends because another task of their step has failed."""

DIFFERING_VALUE_SIGNS = (
    ("torch-version", "version", "versions-differ"),
    ("nccl-version", "version", "nccl-versions-differ"),
    ("active-mtu", "mtu", "mtus-differ"),
    ("ib-rate", "rate", "ib-rates-differ"),
)
"""(sign, group, derived sign): lines with `sign` name a value in `group`; if the values differ between speakers, the
derived sign holds."""

WAITING_POD_SIGNS = {
    "waits-for-machine": "pod-without-machine",
    "waits-for-image": "pod-without-image",
    "waits-for-container": "pod-not-started",
    "image-refused": "container-without-image",
    "container-refused": "container-not-started",
}
"""By the sign of a line about a pod or container that waits, the derived sign if nothing later shows that it runs."""

HitsBySign = Mapping[str, Sequence[Hit]]
"""Hits by the name of their sign."""


def derive_signs(hits: HitsBySign) -> Iterator[Hit]:
    """All derived signs, each with a line that proves it."""
    yield from compare_watchdogs(hits.get("watchdog", ()), hits.get("watchdog-state", ()), hits.get("other-work", ()))
    yield from read_ras_report(hits)
    yield from _barrier_count_signs(hits.get("store-barrier", ()), hits.get("barrier-completed", ()))
    yield from _barrier_sizes_differ(hits.get("store-barrier", ()))
    yield from _unanswered_arp(hits.get("no-route", ()))
    yield from _master_dials_itself(hits)
    yield from _different_world_sizes(hits.get("told-size", ()))
    if "bind-in-use" not in hits:  # otherwise several jobs on one machine, each with all its ranks, use one port
        waits = any(hits.get(sign) for sign in (*WAITS_IN_VAIN_SIGNS, "waits-for-rank-key"))
        yield from _rank_twice(hits.get("global-rank", ()), waits)
    yield from _own_rank_twice(hits.get("own-rank", ()))
    if any(hits.get(sign) for sign in (*WAITS_IN_VAIN_SIGNS, "many-nodes", "refused")):
        for hit in _last_of_several_machines(hits.get("told-loopback", ())):
            yield Hit("loopback-on-each", hit.line, hit.groups)
    yield from _world_twice(hits.get("global-rank", ()))
    yield from _two_machines_answer(hits.get("arp-reply", ()))
    yield from _started_alone_twice(hits.get("starts-alone", ()))
    if not hits.get("all-registered"):
        yield from _members_missing(hits.get("global-rank", ()))
    yield from _differing_run_ids(hits)
    yield from _every_node_a_client(hits)
    yield from _store_resets(hits)
    yield from _store_gone_before(hits)
    yield from _unanswered_syns(hits)
    yield from _no_such_gid(hits)
    yield from _hung_in_storage(hits.get("hung-task", ()), hits.get("storage-frame", ()))
    yield from _bare_io_errors(hits)
    yield from _unfamiliar_errors(hits)
    yield from _raised_oddly(hits)
    yield from _raised_first(hits)
    yield from _own_proxy_failed(hits)
    yield from _gpu_memory_refused(hits)
    yield from _answered_no_gpu(hits)
    yield from _gpu_of_rank_missing(hits)
    for sign, group, name in DIFFERING_VALUE_SIGNS:
        yield from _differing_values(sign, group, name, hits)
    yield from _fails_between_rails(hits.get("pair-failed", ()))
    if hits.get("step-cancelled") and not hits.get("task-exited"):
        yield Hit("cancelled-plainly", hits["step-cancelled"][0].line)
    yield from _inner_interfaces(hits)
    if len(hits.get("counts-one-rank", ())) > 1:
        yield from (Hit("each-alone", hit.line) for hit in hits["counts-one-rank"])
    yield from (Hit("each-alone", hit.line) for hit in _last_of_several_machines(hits.get("accelerate-alone", ())))
    yield from _addresses_twice(hits)
    yield from _benchmarks_alone(hits.get("rank-zero-listed", ()))
    yield from _communicators_of_one(hits.get("communicator", ()))
    yield from _tensors_differ(hits.get("tensor-missing", ()))
    yield from _masters_differ(hits)
    yield from _prepares_data(hits)
    yield from _counter_rises(hits.get("error-counter", ()))
    yield from _bootstrap_in_other_network(hits)
    yield from _bootstrap_behind_nat(hits)
    yield from _bootstrap_families_differ(hits)
    yield from _one_address(hits)
    yield from _master_wants_more(hits)
    yield from _large_pings_vanish(*(hits.get(sign, ()) for sign in ("ping-size", "ping-loss", "ping-reply")))
    for sign, name in WAITING_POD_SIGNS.items():
        yield from _pods_not_placed(sign, name, hits)
    for hit in hits.get("nccl-gave-up", ())[:1]:  # the innermost call prints first
        if hit.groups["where"].startswith("graph/"):
            yield Hit("gave-up-in-topology", hit.line, hit.groups)
    stuck = hits.get("hangs") or hits.get("p-to-p-channels")
    explained = any(hits.get(sign) for sign in ("many-nodes", "via-net", "collectives-differ"))
    if stuck and hits.get("busy-gpus") and not explained:
        yield Hit("hangs-with-busy-gpus", hits["busy-gpus"][0].line)
        yield Hit("hangs-with-busy-gpus", stuck[0].line)


def _barrier_count_signs(barriers: Sequence[Hit], completed: Sequence[Hit]) -> Iterator[Hit]:
    """`barrier-too-few` where fewer workers came than the world has, unless a rank got past the barrier; and
    `barrier-too-many` where more came: the store remembers an earlier run."""
    last = {hit.line.who: hit for hit in barriers}
    through = {(hit.groups["key"], hit.groups["size"]) for hit in completed}
    for hit in last.values():
        count, size = parse_number(hit.groups["count"]), parse_number(hit.groups["size"])
        if count < size and (hit.groups.get("key"), hit.groups["size"]) not in through:
            yield Hit("barrier-too-few", hit.line, {"came": str(count), "wanted": str(size)})
        if count > size:
            yield Hit("barrier-too-many", hit.line, {"came": str(count), "wanted": str(size)})


def _unanswered_arp(refusals: Sequence[Hit]) -> Iterator[Hit]:
    """`nobody-has-address`: `No route to host` that takes about a second or more each time comes from unanswered ARP,
    not from a firewall."""
    timed = values_by_key(
        (hit.line.who, hit) for hit in refusals if hit.line.when is not None and "113" in hit.line.text
    )
    for hits in timed.values():
        times = sorted({hit.line.when for hit in hits if hit.line.when is not None})
        # Several lines about one attempt have the same time. No two attempts may have followed each other at once.
        gaps = [after - before for before, after in pairwise(times) if after - before > 0.01]
        instant = any(
            after.line.when - before.line.when < MAX_REJECTION_S
            for before, after in pairwise(hits)
            if before.line.when is not None
            and after.line.when is not None
            and _is_connection_attempt(before)
            and _is_connection_attempt(after)
        )
        if gaps and max(gaps) >= ARP_TIMEOUT_S and not instant and sum(map(_is_connection_attempt, hits)) > 1:
            named = next((hit for hit in hits if "host" in hit.groups), hits[0])
            yield Hit("nobody-has-address", named.line, named.groups)


def _is_connection_attempt(hit: Hit) -> bool:
    """Whether a line is about an attempt to connect to one address, and not a summary of all attempts."""
    return "any network address" not in hit.line.text and "failed to connect to" in hit.line.text


def _master_dials_itself(hits: HitsBySign) -> Iterator[Hit]:
    """`master-dials-itself-in-vain`: rank 0 cannot connect to the master's address, which is its own node's."""
    for sign in ("client-timed-out", "no-route", "drops"):
        for hit in hits.get(sign, ()):
            # torchrun's `[default0]` is the first rank of a node, of any node.
            first = hit.line.rank == 0 and "[default" not in hit.line.shown
            if first and hit.groups.get("host", "localhost") not in ("localhost", "127.0.0.1"):
                yield Hit("master-dials-itself-in-vain", hit.line, hit.groups)
                return


def _different_world_sizes(told: Sequence[Hit]) -> Iterator[Hit]:
    """`told-different-sizes`: machines were given different values for the same size, each in its last try."""
    by_name: dict[str, dict[tuple[str, str | None], tuple[str, Hit]]] = defaultdict(dict)
    for hit in told:
        for name, value in hit.groups.items():
            by_name[name][hit.line.who, _machine_number(hit)] = value, hit
    for name, last in by_name.items():
        pairs = combinations(last.values(), 2)
        if any(one[0] != other[0] and _are_of_two_machines(one[1], other[1]) for one, other in pairs):
            yield from (Hit("told-different-sizes", hit.line, {name: value}) for value, hit in last.values())


def _machine_number(hit: Hit) -> str | None:
    """The number that a launcher's command line gives to its machine; None if the line is no such command."""
    found = MACHINE_RANK.search(hit.line.text)
    return found[1] if found else None


def _are_of_two_machines(one: Hit, other: Hit) -> bool:
    """Whether two lines come from two speakers, or are command lines that give their machines different numbers."""
    numbers = _machine_number(one), _machine_number(other)
    return one.line.who != other.line.who or (None not in numbers and numbers[0] != numbers[1])


def _rank_twice(told: Sequence[Hit], waits: bool) -> Iterator[Hit]:
    """`rank-twice`: one rank, or one node's rank, was given to several processes while others are missing."""
    ranks: dict[str, list[Hit]] = defaultdict(list)
    nodes: dict[str, dict[str, Hit]] = defaultdict(dict)
    size = 0
    for hit in told:
        if "rank" in hit.groups:
            ranks[hit.groups["rank"]].append(hit)
            size = max(size, parse_number(hit.groups["size"]))
        elif "node_rank" in hit.groups:
            nodes[hit.groups["node_rank"]].setdefault(hit.line.node or "", hit)
    if size and len(ranks) < size:
        for rank, hits in ranks.items():
            if len(hits) > 1:
                yield from (Hit("rank-twice", hit.line, {"rank": rank}) for hit in hits[:2])
    for rank, by_node in nodes.items():
        by_node.pop("", None)  # nobody knows whose line it is
        if len(by_node) > 1 and len(nodes) == 1 and (waits or all(map(_starts_one_of_many, by_node.values()))):
            yield from (Hit("rank-twice", hit.line, {"rank": rank}) for hit in by_node.values())


def _starts_one_of_many(hit: Hit) -> bool:
    """Whether the line is a command that starts one of several machines by its number, and not by a rendezvous."""
    return STARTS_ONE_OF_MANY.search(hit.line.text) is not None and "rdzv" not in hit.line.text


def _last_of_several_machines(told: Sequence[Hit]) -> list[Hit]:
    """The last of these hits of each machine; none if they are of fewer than two machines that are named."""
    by_node = {hit.line.node: hit for hit in told if hit.line.node}
    return list(by_node.values()) if len(by_node) > 1 else []


def _own_rank_twice(told: Sequence[Hit]) -> Iterator[Hit]:
    """`rank-twice`: two nodes use the same rank, while no node uses another rank of the world."""
    nodes: dict[str, dict[str, Hit]] = defaultdict(dict)
    for hit in told:
        if hit.line.node:
            nodes[hit.groups["rank"]].setdefault(hit.line.node, hit)
    for rank, by_node in nodes.items():
        size = max(parse_number(hit.groups["size"]) for hit in by_node.values())
        if len(by_node) > 1 and len(nodes) < size:
            yield from (Hit("rank-twice", hit.line, {"rank": rank}) for hit in by_node.values())


def _world_twice(told: Sequence[Hit]) -> Iterator[Hit]:
    """`world-twice`: every rank of a world is there on more than one node, or under more than one of srun's labels."""
    nodes: dict[str, dict[str, Hit]] = defaultdict(dict)
    for hit in told:
        if "rank" in hit.groups and (hit.line.node or hit.line.rank is not None):
            nodes[hit.groups["rank"]].setdefault(hit.line.node or hit.line.who, hit)
    size = max((parse_number(hit.groups["size"]) for found in nodes.values() for hit in found.values()), default=0)
    if len(nodes) == size and all(len(found) > 1 for found in nodes.values()):
        groups = {"size": str(size - 1)}
        if all(hit.line.node for hit in nodes.get("0", {}).values()):
            groups["nodes"] = " and ".join(sorted(nodes["0"]))
        yield from (Hit("world-twice", hit.line, groups) for hit in nodes.get("0", {}).values())


def _started_alone_twice(told: Sequence[Hit]) -> Iterator[Hit]:
    """`alone-twice`: torchrun's `--standalone`, which makes one node a world, was used on more than one node."""
    nodes = {hit.line.node: hit for hit in reversed(told) if hit.line.node}
    if len(nodes) > 1:
        groups = {"nodes": " and ".join(sorted(map(str, nodes))[:2])}
        yield from (Hit("alone-twice", hit.line, groups) for hit in nodes.values())


def _two_machines_answer(told: Sequence[Hit]) -> Iterator[Hit]:
    """`two-machines-answer`: an address was asked for by ARP, and hardware addresses of two machines came."""
    first: dict[str, Hit] = {}
    for hit in told:
        before = first.setdefault(hit.groups["address"], hit)
        if before.groups["mac"].lower() != hit.groups["mac"].lower():
            yield from (Hit("two-machines-answer", one.line, one.groups) for one in (before, hit))


def _members_missing(told: Sequence[Hit]) -> Iterator[Hit]:
    """`members-missing`: rank 0's log is here, but not those of all ranks, and rank 0 has not printed that all ranks
    have come."""
    members = {parse_number(hit.groups["rank"]): hit for hit in told if "rank" in hit.groups}
    size = max((parse_number(hit.groups["size"]) for hit in members.values()), default=0)
    if 0 in members and len(members) < size:
        yield Hit("members-missing", members[0].line, {"came": str(len(members)), "wanted": str(size)})


def _differing_run_ids(hits: HitsBySign) -> Iterator[Hit]:
    """`ids-differ`: nodes were given different ids of the run; and `never-met`: any sign that ranks did not meet."""
    ids: dict[str, Hit] = {}
    for hit in hits.get("run-id", ()):
        ids.setdefault(hit.groups["id"], hit)
    if len({hit.line.who for hit in ids.values()}) > 1 and "none" not in ids:
        yield from (Hit("ids-differ", hit.line, hit.groups) for hit in ids.values())
    for sign in ("rendezvous-timeout", "client-timed-out", "rendezvous-connection", "store-gone"):
        yield from (Hit("never-met", hit.line) for hit in hits.get(sign, ())[:1])


def _every_node_a_client(hits: HitsBySign) -> Iterator[Hit]:
    """`every-node-a-client`: in torchrun's c10d rendezvous even the owner of the endpoint dials it as a client. A
    service's name is owned by no node."""
    timed_out = hits.get("client-timed-out", ())
    if not timed_out or not (hits.get("creates-store") or hits.get("c-ten-d")):
        return
    owners = {value for hit in hits.get("runs-on", ()) for value in hit.groups.values()}
    owners |= {hit.line.node for hit in timed_out if hit.line.node}
    owners |= {hit.groups["service"] for hit in hits.get("cluster-ip", ())}
    for hit in timed_out:
        host = hit.groups.get("host", "")
        service = any(part in ("svc", "service") for part in host.replace(".", "-").split("-"))
        if host in owners or service:
            yield Hit("every-node-a-client", hit.line, hit.groups)
            return
    speakers = {hit.line.who: hit for hit in timed_out}
    if len(speakers) > 1:
        yield from (Hit("every-node-a-client", hit.line, hit.groups) for hit in speakers.values())


def _store_resets(hits: HitsBySign) -> Iterator[Hit]:
    """`store-reset-at-once`: the store hangs up near code that connects, on the first message; `store-reset-in-use`:
    near code that uses the store."""
    connecting, using = line_numbers(hits.get("connecting", ())), line_numbers(hits.get("using-store", ()))
    for hit in hits.get("resets-store", ()):
        if _has_line_near(hit, connecting):
            yield Hit("store-reset-at-once", hit.line, hit.groups)
        elif _has_line_near(hit, using):
            yield Hit("store-reset-in-use", hit.line, hit.groups)


def _store_gone_before(hits: HitsBySign) -> Iterator[Hit]:
    """`store-gone-before`: the store was gone before any collective timed out, so that the process that keeps it is
    none of the ranks that wait."""
    waits = [hit.line for hit in hits.get("watchdog", ())]
    for hit in hits.get("store-gone", ()):
        if waits and all(_may_precede(hit.line, line) for line in waits):
            yield Hit("store-gone-before", hit.line, hit.groups)
            return


def _unanswered_syns(hits: HitsBySign) -> Iterator[Hit]:
    """`syn-unanswered`: tcpdump shows one SYN several times, and no answer to any SYN."""
    seen: set[tuple[str, str, str]] = set()
    for hit in () if hits.get("syn-answered") else hits.get("syn", ()):
        what = (hit.groups["peer"], hit.groups["port"], hit.groups["seq"])
        if what in seen:
            yield Hit("syn-unanswered", hit.line, hit.groups)
        seen.add(what)


def _no_such_gid(hits: HitsBySign) -> Iterator[Hit]:
    """`gid-index-empty`: NCCL was given a GID index that `show_gids` does not list."""
    listed = {parse_number(hit.groups["index"]) for hit in hits.get("gid-row", ())}
    for hit in hits.get("gid-index-set", ()) if listed else ():
        if parse_number(hit.groups["index"]) not in listed:
            yield Hit("gid-index-empty", hit.line, hit.groups)


def _has_line_near(hit: Hit, numbers: LineNumbers) -> bool:
    """Whether one of these lines of the same speaker is at most MAX_TRACEBACK_LINES lines away from the hit."""
    return any(abs(at - hit.line.number) <= MAX_TRACEBACK_LINES for at in numbers.get(hit.line.voice, ()))


def _hung_in_storage(tasks: Sequence[Hit], frames: Sequence[Hit]) -> Iterator[Hit]:
    """`hung-in-storage`: a task hangs in the kernel, and its stack, printed below, names a file system or a disk."""
    for task in tasks:
        below = range(task.line.number + 1, task.line.number + MAX_KERNEL_STACK_LINES)
        if any(frame.line.number in below and frame.line.source == task.line.source for frame in frames):
            yield Hit("hung-in-storage", task.line, task.groups)


def _bare_io_errors(hits: HitsBySign) -> Iterator[Hit]:
    """`file-failed` or `terminal-gone`, for an I/O error that names no file: the nearest frame above it tells which."""
    files, terminals = line_numbers(hits.get("file-frame", ())), line_numbers(hits.get("terminal-frame", ()))
    for hit in hits.get("bare-io-error", ()):
        above = {*range(hit.line.number - MAX_TRACEBACK_LINES, hit.line.number)}
        file, terminal = (max(above & {*frames.get(hit.line.voice, ())}, default=0) for frames in (files, terminals))
        if file or terminal:
            yield Hit("file-failed", hit.line) if file > terminal else Hit("terminal-gone", hit.line)


def _inner_interfaces(hits: HitsBySign) -> Iterator[Hit]:
    """`socket-through-inner-interface`: a channel uses an interface of NCCL's list that no other machine can reach."""
    used = {(hit.line.node, hit.groups["at"]): hit for hit in hits.get("through-socket", ())}
    for listed in hits.get("lists-interfaces", ()):
        for at, name, address in NCCL_LISTED_INTERFACE.findall(listed.groups["list"]):
            channel = used.get((listed.line.node, at))
            if channel and (
                is_local_only_interface(name) or address.startswith(("127.", "169.254.", "192.168.122.", "fe80:"))
            ):
                yield Hit("socket-through-inner-interface", channel.line, {"name": name})
                yield Hit("socket-through-inner-interface", listed.line, {"name": name})


def _masters_differ(hits: HitsBySign) -> Iterator[Hit]:
    """`masters-differ`: commands with different node ranks name different master addresses."""
    told = hits.get("master-told", ())
    masters = {(hit.groups["number"], hit.groups["address"]): hit for hit in told}
    numbers, addresses = ({place[at] for place in masters} for at in (0, 1))
    if len(masters) == len(numbers) > 1 and len(addresses) > 1:
        groups = {"addresses": " and ".join(sorted(addresses))}
        yield from (Hit("masters-differ", hit.line, groups) for hit in masters.values())


def _prepares_data(hits: HitsBySign) -> Iterator[Hit]:
    """`prepares-data`: the last bar of a preparation of data is not complete."""
    for hit in hits.get("preparation", ())[-1:]:
        if int(hit.groups["part"]) < 100:
            yield Hit("prepares-data", hit.line, hit.groups)


def _bootstrap_in_other_network(hits: HitsBySign) -> Iterator[Hit]:
    """`bootstrap-in-another-network`: a peer cannot be reached at the address that NCCL chose there, which belongs to
    another interface and another /24 network than the address that NCCL chose on the node that dials."""
    chosen = {hit.groups["address"]: hit for hit in hits.get("bootstrap-at", ())}
    for failed in hits.get("nccl-connect-failed", ()):
        there = chosen.get(failed.groups.get("peer", ""))
        if there is None:
            continue
        for here in chosen.values():
            if (
                here.line.node == failed.line.node
                and here.groups["name"] != there.groups["name"]
                and here.groups["address"].rpartition(".")[0] != there.groups["address"].rpartition(".")[0]
            ):
                yield Hit("bootstrap-in-another-network", failed.line, {"name": there.groups["name"], **failed.groups})
                yield Hit("bootstrap-in-another-network", there.line)


def _bootstrap_behind_nat(hits: HitsBySign) -> Iterator[Hit]:
    """`bootstrap-behind-nat`: a peer cannot be reached at the address that NCCL chose there, and the addresses that
    NCCL chose are in different /16 networks, of which none is that of the master's address."""
    chosen = {hit.groups["address"]: hit for hit in hits.get("bootstrap-at", ())}
    networks = {_network_part(address) for address in chosen}
    masters = [hit for hit in hits.get("master-at", ()) if not hit.groups["address"].startswith("127.")]
    if len(networks) < 2 or not masters or any(_network_part(hit.groups["address"]) in networks for hit in masters):
        return
    for failed in hits.get("nccl-connect-failed", ()):
        if there := chosen.get(failed.groups.get("peer", "")):
            groups = {**failed.groups, "master": masters[0].groups["address"]}
            yield from (Hit("bootstrap-behind-nat", hit.line, groups) for hit in (failed, there, masters[0]))
            return


def _bootstrap_families_differ(hits: HitsBySign) -> Iterator[Hit]:
    """`bootstrap-families-differ`: a node for which NCCL chose an IPv4 address cannot reach the IPv6 address that NCCL
    chose on another."""
    there = {hit.groups["address"]: hit for hit in hits.get("bootstrap-at-ipv6", ())}
    for failed in hits.get("nccl-connect-failed", ()):
        chosen = next((hit for address, hit in there.items() if f"{address}<" in failed.line.text), None)
        here = next((hit for hit in hits.get("bootstrap-at", ()) if hit.line.node == failed.line.node), None)
        if chosen and here and chosen.line.node != here.line.node:
            yield from (Hit("bootstrap-families-differ", hit.line) for hit in (failed, chosen, here))
            return


def _network_part(address: str) -> str:
    """The first two numbers of an IPv4 address."""
    return ".".join(address.split(".")[:2])


def _one_address(hits: HitsBySign) -> Iterator[Hit]:
    """`one-bridge-address` or `one-address`: NCCL chose the same address on two hosts, and they did not meet."""
    if any(hits.get(sign) for sign in RANKS_MET_SIGNS):
        return
    by_address = values_by_key((hit.groups["address"], hit) for hit in hits.get("bootstrap-at", ()) if hit.line.node)
    for address, found in by_address.items():
        nodes = sorted({str(hit.line.node) for hit in found})
        if len(nodes) > 1 and not address.startswith("127."):
            groups = {"nodes": " and ".join(nodes[:2]), "address": address}
            for hit in found:
                # A bridge of the machine itself was chosen there; behind one, a container sees an interface like any.
                bridged = BRIDGE_ADDRESS.match(address) and not is_local_only_interface(hit.groups["name"])
                behind = bridged or address == SLIRP_ADDRESS
                yield Hit("one-bridge-address", hit.line, groups) if behind else Hit("one-address", hit.line, groups)


def _master_wants_more(hits: HitsBySign) -> Iterator[Hit]:
    """`told-different-sizes`: the master has counted all ranks whose logs are here and waits for more, while the others
    wait for the master."""
    waits = [hit for hit in hits.get("waits-for-rank-key", ()) if hit.groups["key"].endswith("/0")]
    for joined in hits.get("too-few-joined", ()):
        others = [hit for hit in waits if hit.line.who != joined.line.who]
        if parse_number(joined.groups["came"]) == len({hit.line.who for hit in others}) + 1 > 1:
            yield Hit("told-different-sizes", joined.line)
            yield from (Hit("told-different-sizes", hit.line) for hit in others[:2])
            return


def _large_pings_vanish(sizes: Sequence[Hit], losses: Sequence[Hit], replies: Sequence[Hit]) -> Iterator[Hit]:
    """`large-pings-vanish`: pings of LARGE_PING_BYTES or more are lost, and all that are shorter are answered: of
    all pings, or of those to one target."""
    pings: dict[str, list[tuple[int, bool, tuple[Hit, Hit]]]] = defaultdict(list)
    by_source = values_by_key((hit.line.source, hit) for hit in sizes)
    for loss in losses:
        before = [hit for hit in by_source.get(loss.line.source, ()) if hit.line.number < loss.line.number]
        if before:
            size, answered = parse_number(before[-1].groups["bytes"]) or 0, float(loss.groups["loss"]) < 100
            for target in {"", before[-1].groups.get("target", "")}:
                pings[target].append((size, answered, (before[-1], loss)))
    for hit in replies:  # of pings whose other lines may have been left out
        size = (parse_number(hit.groups["bytes"]) or 0) - ICMP_HEADER_BYTES
        for target in ("", hit.groups["target"]):
            pings[target].append((size, True, (hit, hit)))
    for found in pings.values():
        lost = [size for size, answered, _ in found if not answered]
        passed = [size for size, answered, _ in found if answered]
        if lost and passed and max(passed) < min(lost) >= LARGE_PING_BYTES:
            told = [hit for _, answered, both in found if not answered for hit in both]
            yield from (Hit("large-pings-vanish", hit.line) for hit in told)
            return


def _unfamiliar_errors(hits: HitsBySign) -> Iterator[Hit]:
    """`unfamiliar-error`: a line that names a failure, unless it says only that something failed, is a typed command,
    or is known to be harmless."""
    known = {hit.line for sign in (*WRAPPER_SIGNS, "told-to-end") for hit in hits.get(sign, ())}
    # Warnings of NCCL before its ranks met did not keep them from meeting.
    met = {hit.line.source: hit.line.number for sign in RANKS_MET_SIGNS for hit in hits.get(sign, ())}
    known |= {hit.line for hit in hits.get("nccl-warn", ()) if hit.line.number < met.get(hit.line.source, 0)}
    told = [hit.line for sign in FAILURE_SIGNS for hit in hits.get(sign, ())]
    # Some launchers log all that a child prints, its steps too, as ERROR; the child's own level stands behind that.
    known |= {line for line in told if "INFO" in line.text and shows_progress(line.text)}
    # What a job printed that ended with code 0, as its batch system says.
    completed = {hit.line.source for hit in hits.get("job-completed", ())}
    known |= {line for line in told if line.source in completed}
    # A task of Ansible's whose failure the playbook ignores says so below it.
    forgiven = line_numbers(hits.get("failure-ignored", ()))
    known |= {
        line
        for line in told
        if line.text.startswith("fatal: [")
        and any(0 < at - line.number <= MAX_IGNORED_TASK_LINES for at in forgiven.get(line.voice, ()))
    }
    # What a program takes back itself.
    ignored = {hit.line.source: hit.line.number for hit in hits.get("errors-above-ignored", ())}
    known |= {line for line in told if line.number < ignored.get(line.source, 0)}
    # What a library says before it goes on in another way.
    instead = line_numbers(hits.get("goes-another-way", ()))
    known |= {
        line
        for line in told
        if any(abs(at - line.number) <= MAX_OPENMPI_WARNING_LINES for at in instead.get(line.voice, ()))
    }
    yield from (
        Hit("unfamiliar-error", line) for line in told if line not in known and not TYPED_COMMAND.match(line.text)
    )


def _raised_oddly(hits: HitsBySign) -> Iterator[Hit]:
    """`raised-oddly`: a class with an unusual name at the end of a traceback, right below the code of its last
    frame."""
    frames = line_numbers(hits.get("frame", ()))
    for hit in hits.get("odd-class", ()):
        if has_line_above(hit, frames, MAX_FRAME_CODE_LINES + 1):
            yield Hit("raised-oddly", hit.line, hit.groups)


def _raised_first(hits: HitsBySign) -> Iterator[Hit]:
    """`raised-first`: a program raised an error before any line shows that a collective, a GPU or another process
    failed, so that those failures follow from it."""
    ended = ENDED_BY_SLURM if hits.get("task-exited") else ()
    later = [hit.line for sign in (*PRIOR_FAILURE_SIGNS, *ended) for hit in hits.get(sign, ())]
    raised = [hit for sign in ("other-error", "oddly-named", "bare-error") for hit in hits.get(sign, ())]
    earliest = min((line.when for line in later if line.when is not None), default=math.inf)
    by_source = values_by_key((line.source, line) for line in later)
    for hit in raised if later else ():
        beside = by_source.get(hit.line.source, ())  # a line of another file comes before it by its time only
        if (hit.line.when or 0.0) <= earliest and all(_may_precede(hit.line, line) for line in beside):
            yield Hit("raised-first", hit.line, hit.groups)


def _may_precede(line: Line, other: Line) -> bool:
    """Whether `line` may have been written before `other`: by their times if they have different ones, else by their
    place; a line of another file may always have been."""
    if line.when is not None and other.when is not None and line.when != other.when:
        return line.when < other.when
    return line.source != other.source or line.number < other.number


def _own_proxy_failed(hits: HitsBySign) -> Iterator[Hit]:
    """`own-proxy-failed`: a rank's proxy failed before any line shows that a peer was gone, so that the connection
    which closed was the one to its own proxy."""
    closed = [hit.line for hit in hits.get("peer-closed", ())]
    for hit in hits.get("proxy-failed", ())[:1] if closed else ():
        if all(_may_precede(hit.line, line) for line in closed):
            yield Hit("own-proxy-failed", hit.line)


def _gpu_memory_refused(hits: HitsBySign) -> Iterator[Hit]:
    """`gpu-memory-refused`: memory of a GPU was to be registered for RDMA, and its address is bad."""
    if hits.get("gpu-buffer"):
        yield from (Hit("gpu-memory-refused", hit.line) for hit in hits.get("memory-refused", ()))


def _answered_no_gpu(hits: HitsBySign) -> Iterator[Hit]:
    """`answers-no-gpu`: `False` below the question at Python's prompt whether there is a GPU, with at most one warning
    between them."""
    asked = {hit.line.place for hit in hits.get("asks-for-gpu", ())}
    for hit in hits.get("answers-no", ()):
        if any((hit.line.source, hit.line.number - below) in asked for below in ANSWER_DISTANCES):
            yield Hit("answers-no-gpu", hit.line)


def _fails_between_rails(failed: Sequence[Hit]) -> Iterator[Hit]:
    """`only-between-rails`: all queue pairs that fail are between NICs of different rails, as the second or else the
    third number of their addresses tells."""
    pairs = [(hit.groups["local"].split("."), hit.groups["remote"].split(".")) for hit in failed]
    by_second, by_third = ([local[at] != remote[at] for local, remote in pairs] for at in (1, 2))
    if pairs and (all(by_second) or (all(by_third) and not any(by_second))):
        yield Hit("only-between-rails", failed[0].line)


def _barrier_sizes_differ(barriers: Sequence[Hit]) -> Iterator[Hit]:
    """`barrier-sizes-differ`: ranks wait at one barrier of the store, and count different worlds."""
    sizes = {hit.groups["size"]: hit for hit in barriers}
    if len(sizes) > 1 and len({hit.groups.get("key") for hit in barriers}) == 1:
        groups = {"sizes": " and ".join(sorted(sizes, key=parse_number))}
        yield from (Hit("barrier-sizes-differ", hit.line, groups) for hit in sizes.values())


def _addresses_twice(hits: HitsBySign) -> Iterator[Hit]:
    """`dialled-address-twice`: two machines list one address as theirs, and it is dialled. Addresses of bridges and
    cables inside a machine are alike on many, which is no fault until they are used."""
    dialled = [hit.line.text for sign in ("refused", "drops", "no-route") for hit in hits.get(sign, ())]
    by_address = values_by_key((hit.groups["address"], hit) for hit in hits.get("own-address", ()) if hit.line.node)
    for address, told in by_address.items():
        is_dialled = re.compile(rf"(?<![\d.]){re.escape(address)}(?![\d.])").search
        if any(map(is_dialled, dialled)) and len({hit.line.node for hit in told}) > 1:
            yield from (Hit("dialled-address-twice", hit.line, hit.groups) for hit in told)


def _benchmarks_alone(firsts: Sequence[Hit]) -> Iterator[Hit]:
    """`each-alone`: two hosts have each printed the list of ranks of a benchmark, which rank 0 alone prints."""
    for before, after in pairwise(firsts):
        near = before.line.source == after.line.source and after.line.number - before.line.number <= MAX_RANK_LIST_GAP
        if near and before.groups["on"] != after.groups["on"]:
            yield from (Hit("each-alone", hit.line) for hit in (before, after))
            return


def _communicators_of_one(told: Sequence[Hit]) -> Iterator[Hit]:
    """`each-alone`: NCCL makes communicators on two hosts or more, and every one has a single rank."""
    if len({hit.line.node for hit in told if hit.line.node}) > 1 and all(hit.groups["size"] == "1" for hit in told):
        yield from (Hit("each-alone", hit.line) for hit in told)


def _tensors_differ(missing: Sequence[Hit]) -> Iterator[Hit]:
    """`tensors-differ`: some ranks wait with one tensor, and those that it is missing on wait with another one."""
    for hit in missing[1:]:
        first = missing[0].line
        told, other = ({"missing": str(one.line.rank), **one.groups} for one in (missing[0], hit))
        of_one_report = hit.line.source == first.source and hit.line.number - first.number <= MAX_STALLED_LINES
        alike = {*re.findall(r"\d+", told["missing"])} & {*re.findall(r"\d+", other["missing"])}
        if of_one_report and told["op"] != other["op"] and not alike:
            groups = {**told, "other_op": other["op"], "other_missing": other["missing"]}
            yield Hit("tensors-differ", first, groups)
            yield Hit("tensors-differ", hit.line, groups)
            return


def _gpu_of_rank_missing(hits: HitsBySign) -> Iterator[Hit]:
    """`gpu-of-rank-missing`: the line of code above an IndexError takes a GPU from a list by the number of the rank."""
    code = line_numbers(hits.get("takes-gpu-of-rank", ()))
    for hit in hits.get("index-too-large", ()):
        if has_line_above(hit, code, MAX_FRAME_CODE_LINES):
            yield Hit("gpu-of-rank-missing", hit.line)


def _pods_not_placed(sign: str, name: str, hits: HitsBySign) -> Iterator[Hit]:
    """The derived sign `name` for each hit of `sign` about a pod or container that does not run, unless a later line of
    its log shows that a pod got further: it was assigned, has its image, or started."""
    past = {hit.line.source: hit.line.number for hit in hits.get("pod-placed", ())}
    for hit in hits.get(sign, ()):
        if hit.line.number > past.get(hit.line.source, 0):
            yield Hit(name, hit.line)


def _counter_rises(readings: Sequence[Hit]) -> Iterator[Hit]:
    """`counter-rises`: a port's counter of errors is read several times, and each reading is higher. Readings that name
    no port may be several ports': of these, MIN_RISING_COUNTERS must rise, each by MAX_GROWTH at most, and none must
    fall."""
    by_counter = values_by_key(
        ((hit.line.who, hit.groups.get("port", ""), hit.groups["counter"]), hit) for hit in readings
    )
    values = {key: [parse_number(hit.groups["value"]) for hit in hits] for key, hits in by_counter.items()}
    rising = {key for key, told in values.items() if len(told) > 1 and all(one < at for one, at in pairwise(told))}
    unnamed = {key for key in values if not key[1]}
    falls = any(one > later for key in unnamed for one, later in pairwise(values[key]))
    leaps = any(values[key][-1] > MAX_GROWTH * values[key][0] for key in unnamed & rising)
    if falls or leaps or len(unnamed & rising) < MIN_RISING_COUNTERS:
        rising -= unnamed
    for key in values:
        if key in rising:
            counter = f"{key[2]} of {key[1]}" if key[1] else key[2]
            groups = {"counter": counter, "first": f"{values[key][0]:,}", "last": f"{values[key][-1]:,}"}
            yield from (Hit("counter-rises", hit.line, groups) for hit in by_counter[key])


def _differing_values(sign: str, group: str, name: str, hits: HitsBySign) -> Iterator[Hit]:
    """The derived sign `name`, if the values in `group` of lines with `sign` differ between speakers. Versions of NCCL
    may also differ in one speaker's lines, if NCCL's bootstrap reports a mismatch between processes."""
    values: dict[str, Hit] = {}
    for hit in hits.get(sign, ()):
        values.setdefault(hit.groups[group], hit)
    # In a text in which some lines name their speaker, the others may be of any of them.
    named = {hit.line.source for hit in values.values() if hit.line.node or hit.line.rank is not None}
    several = len({hit.line.who for hit in values.values() if hit.line.who not in named}) > 1
    if len(values) > 1 and (several or (sign == "nccl-version" and hits.get("bootstrap-mismatch"))):
        groups = {f"{group}s": ", ".join(sorted(values))}
        yield from (Hit(name, hit.line, groups) for hit in values.values())
