"""A training that no longer makes steps: which rank the others wait for, and where it is. A rank is accused only by how
it differs from the others: it is stopped, it is elsewhere than in a call that all have to make, or it makes another
call than most. When the ranks do not differ none is accused.

A rank with a GPU may wait for it in any line of its own. But then something runs on that GPU, and be it the kernel of a
collective, which keeps it busy for as long as it waits for other ranks: an idle GPU is not waited for, and belongs to a
rank that has not come as far as those with busy ones.

A rank that gets no CPU cannot tell where it stands. It is accused where its kernel says so, and every other rank is
seen to wait.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from runbook.causes.findings import finding_for
from runbook.checks.context import Facts
from runbook.checks.ranks.evidence import rank_stopped
from runbook.jobs.attempt import ProcessSpec
from runbook.jobs.processes import KeptProcess, KeptProcesses
from runbook.jobs.progress import StepProgress
from runbook.model.command_quoting import word
from runbook.model.units import bytes_text, seconds_text
from runbook.model.verdict import Finding, Outcome, outcomes_of
from runbook.node.proc import SHELLS

COMPUTES = 0.2
"""This share of one CPU, which other programs may use as well, means computing, or waiting actively."""

STARVED = 0.5
"""A process that hardly gets a CPU waits for one for this part of the time, or is held back that long by the quota of
its control group."""

MORE_LOOKS = 2
"""After the first."""

TALK = 1000.0
"""Bytes a second that are more than connections carry to be kept open."""

IDLE, IN_USE = 0, 50
"""Percent of the last second in which a kernel ran on a GPU, by nvidia-smi: idle, and in a waiting collective."""

BESIDE = {"T": "is stopped", "t": "is held by a debugger"}
MOST_FRAMES = 6

OF_FAULTHANDLER = re.compile(r'^  File "([^"\n]{1,500})", line (\d{1,9}) in ([^\n]{1,200})$')
OF_PY_SPY = re.compile(r"^ {4}([^\s(][^(\n]{0,200}) \(([^\n]{1,500}):(\d{1,9})\)$")

TOGETHER = re.compile(
    r"""(?x)
    /torch/(?:distributed|nn/parallel|cuda|xpu|npu)/ | /torch/autograd/graph\.py | /torch/_tensor\.py
    | /(?:deepspeed/comm|horovod|oneccl_bindings_for_pytorch|torch_npu|torch_xla)/
    | /jax/_src/(?:array|dispatch|distributed|api|pjit|compiler|xla_bridge|interpreters/)
    | /jax/experimental/multihost_utils | /mpi4py/
    """
)
"""Files of calls that wait for other ranks, or for a GPU that does."""

WRAPS_A_MODEL = re.compile(
    r"/torch/(?:nn/parallel|distributed/(?:fsdp|tensor|_tensor|_composable|algorithms|pipelining|optim))/"
)
"""Files of TOGETHER that are also on the stack while a wrapped model computes: alone they do not show a wait."""

OF_PYTHON = re.compile(r"/lib/python\d[\d.]*/(?!(?:site|dist)-packages/)")
OF_A_LIBRARY = re.compile(r"/(?:site|dist)-packages/|/lib/python\d[\d.]*/|^<(?:frozen|string)")


@dataclass(frozen=True, slots=True)
class StackFrame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({self.file}:{self.line})"


@dataclass(frozen=True, slots=True)
class SeenProcess:
    """A process of a training as it was seen. `frames` are those of its main thread, the innermost first; none where it
    could not be asked. `gpu_use` is in percent; `waited` and `throttled` are the parts of the time for which it waited
    for a CPU, and its control group was out of its quota; None: not told. `stays`: it was in this state for a while.
    `beside`: what is wrong with others of its processes, in words."""

    node: str
    label: str
    pid: int
    state: str
    wchan: str
    cpu: float
    has_gpu: bool
    frames: tuple[StackFrame, ...]
    gpu_use: int | None = None
    waited: float | None = None
    throttled: float | None = None
    stays: bool = True
    beside: tuple[str, ...] = ()

    @property
    def starved(self) -> bool:
        """Whether it would work, and hardly gets a CPU."""
        return self.cpu < COMPUTES and (self.waited or 0.0) >= STARVED

    @property
    def held_back(self) -> bool:
        """Whether the quota of its control group keeps it from working."""
        return (self.throttled or 0.0) >= STARVED

    @property
    def together(self) -> bool:
        """Whether it is in a call that waits for others."""
        return any(TOGETHER.search(frame.file) for frame in self.frames)

    @property
    def elsewhere(self) -> bool:
        """Whether it is certainly in no such call. A line of its own may wait for a GPU: `loss.item()` is no Python
        function, and has no frame."""
        may_wait = self.has_gpu and self.gpu_use != IDLE and not OF_PYTHON.search(self.frames[0].file)
        return not self.together and not may_wait

    @property
    def waits(self) -> bool:
        """Whether it is in such a call, or its GPU is."""
        return self.together or (not self.elsewhere and self.gpu_use is not None and self.gpu_use >= IN_USE)

    @property
    def surely_waits(self) -> bool:
        """Whether it is in such a call and does not compute there, as far as its own CPU shows it."""
        sleeps = self.cpu < COMPUTES and self.state != "R" and not self.has_gpu
        return bool(self.called) or (self.together and sleeps)

    @property
    def called(self) -> str:
        """The call of torch.distributed in which it is; empty where it is in none."""
        return next((f.function for f in self.frames if "/torch/distributed/distributed_c10d.py" in f.file), "")

    @property
    def own(self) -> StackFrame:
        """Where the program itself is: the innermost frame in the folder of its main file, wherever the libraries
        are."""
        main = next((frame for frame in reversed(self.frames) if not frame.file.startswith("<")), self.frames[-1])
        home = main.file.rpartition("/")[0]
        within = [f for f in self.frames if f.file.startswith(f"{home}/") and not OF_A_LIBRARY.search(f.file)]
        return within[0] if within else main

    @property
    def place(self) -> str:
        calls = (f for f in self.frames if TOGETHER.search(f.file) and not WRAPS_A_MODEL.search(f.file))
        inner = next((f"in {frame.function} " for frame in calls), "")
        return f"{inner}at {self.own.file}:{self.own.line}, in {self.own.function}" if inner else f"in {self.own}"

    @property
    def does(self) -> str:
        words = [*(["its GPU is idle"] if self.gpu_use == IDLE else []), self._runs, *self.beside[:2]]
        return ", and ".join(words)

    @property
    def _runs(self) -> str:
        quota = f", {self.throttled:.0%} out of the quota of its control group" if self.held_back else ""
        if self.starved:
            return f"it gets {self.cpu:.0%} of a CPU, and waits for one {self.waited:.0%} of the time{quota}"
        if self.held_back:
            return f"the quota of its control group holds it back {self.throttled:.0%} of the time"
        return f"it computes ({self.cpu:.0%} of a CPU)" if self.cpu >= COMPUTES or self.state == "R" else "it sleeps"

    def shown(self) -> list[str]:
        return shown(self.label, self.frames)


def shown(label: str, frames: Sequence[StackFrame]) -> list[str]:
    """Lines of evidence for where it is; none without frames."""
    return [f"{label} is in:", *(f"  {frame}" for frame in frames[:MOST_FRAMES])] if frames else []


def judge_stall(
    kept: KeptProcesses, progress: StepProgress, look: Callable[[], Mapping[str, Facts]]
) -> dict[str, list[Finding]]:
    """Findings by node, from what all nodes say in two looks in a row; for every node when none stands out.

    A training whose steps are only not heard goes on: its ranks talk to each other, and another look shows another rank
    outside of the call of all."""
    rate = progress.rate()
    since = f"no step for {seconds_text(rate.age_s)}, after {rate.place}" if rate else "no step so far"
    frozen = look()
    found = _accused(kept, frozen, since)
    for _ in range(MORE_LOOKS):
        before, frozen = found, look()
        found = _accused(kept, frozen, since)
        if _alike(before, found):
            break
    else:
        found = {}
    ranks = list(_seen_processes(kept, frozen))
    steps = _steps(progress.by_rank)
    if found:
        return {
            node: [replace(one, evidence=(*one.evidence, *_busy(frozen.get(node), ranks), *steps)) for one in told]
            for node, told in found.items()
        }
    blind = sorted({member.place.node for member in kept.living} - frozen.keys())
    evidence = [line for one in ranks[:2] for line in one.shown()]
    evidence += [*steps, *(f"{name} could not be looked at" for name in blind[:4])]
    asked = [one for one in ranks if one.frames]
    alike = len(asked) == sum(len(member.place.ranks) for member in kept.living) > 0 and not blind
    if alike and all(one.together for one in asked):
        says = f"{since}: all ranks wait {asked[0].place}, and none is behind"
        finding = finding_for("collective-stall-uniform", says, tuple(evidence), way="job")
    else:
        finding = finding_for(
            "training-stalled",
            f"{since}, and no rank stands out from the others{_still_talk(kept, frozen)}",
            (*_states(ranks), *evidence),
        )
    return {name: [finding] for name in kept.nodes}


def accused(ranks: Sequence[SeenProcess], since: str) -> dict[str, list[Finding]]:
    """Findings by node; none when no rank stands out. `since` says how long there was no step."""
    return _asleep(ranks, since) or _elsewhere(ranks, since) or _starved(ranks, since)


def _accused(kept: KeptProcesses, frozen: Mapping[str, Facts], since: str) -> dict[str, list[Finding]]:
    """As `accused`, of one look; where all ranks still talk only those that are asleep."""
    ranks = list(_seen_processes(kept, frozen))
    if _still_talk(kept, frozen):
        return _asleep(ranks, since)
    return accused(ranks, since) or _left(kept, ranks, since)


def _alike(one: Mapping[str, list[Finding]], other: Mapping[str, list[Finding]]) -> bool:
    """Whether both accuse the same nodes of the same."""
    first, second = ({(node, each.cause) for node, told in found.items() for each in told} for found in (one, other))
    return first == second


def _still_talk(kept: KeptProcesses, frozen: Mapping[str, Facts]) -> str:
    """In words, that the ranks still exchange data; empty when they do not."""
    looked = [(facts["seconds"], list(facts["ranks"].values())) for facts in frozen.values()]
    seen = [(rank["moved"] or 0) / max(0.1, seconds) for seconds, ranks in looked for rank in ranks]
    if len(seen) < len(kept.living) or min(seen, default=0.0) < TALK:
        return ""
    return f"; each still carries {bytes_text(round(min(seen)))}/s or more: perhaps steps are only no longer printed"


def outcomes_of_stall(kept: KeptProcesses, found: Mapping[str, Sequence[Finding]], stalled_s: float) -> list[Outcome]:
    """One a node: the nodes at fault fail, about the others nothing was proven. `stalled_s`: seconds without a step."""
    guilty = tuple(sorted(found))
    names = ", ".join(guilty)
    waited = finding_for("peer-died", f"its ranks were ended because of {names}", (), guilty, node=names)
    logs, metrics = f"logs: {kept.logs.folder}", {"stalled_s": round(stalled_s, 1)}
    proven = {name: [replace(one, evidence=(*one.evidence, logs)) for one in told] for name, told in found.items()}
    return [
        replace(one, metrics=metrics) if one.node in found else one for one in outcomes_of(kept.nodes, proven, waited)
    ]


def _seen_processes(kept: KeptProcesses, frozen: Mapping[str, Facts]) -> Iterator[SeenProcess]:
    for member in kept.members:
        seen = frozen.get(member.place.node, {}).get("ranks", {}).get(str(member.place.ranks[0]))
        if seen is not None:
            yield from _of_member(member, seen, frozen[member.place.node].get("gpu_use") or {})


def _of_member(member: KeptProcess, seen: Mapping[str, Any], gpu_use: Mapping[str, int]) -> Iterator[SeenProcess]:
    """One process of a kept one for each of its ranks."""
    stacks = {int(pid): frames_of(text) for pid, text in seen["own_stacks"].items()}
    of_ranks: dict[int, list[Mapping[str, Any]]] = {}
    for process in sorted(seen["processes"], key=lambda one: int(one["pid"])):
        if process["rank"] is not None and _is_rank(process, member):
            of_ranks.setdefault(process["rank"], []).append(process)
    spied = frames_of(seen["stack"] or "") if len(of_ranks) == 1 else ()
    for of_rank in of_ranks.values():
        process = _main(of_rank, stacks)
        label = f"rank {process['rank']} on {member.place.node}" if member.place.each else member.label
        frames = stacks.get(process["pid"]) or spied
        yield SeenProcess(
            node=member.place.node,
            label=label,
            pid=process["pid"],
            state=process["state"],
            wchan=process["wchan"],
            cpu=process["cpu"],
            has_gpu=bool(member.place.gpus),
            frames=frames,
            gpu_use=gpu_use.get(str(_gpu(member.place, process["rank"]))),
            waited=process["waited"],
            throttled=seen["throttled"],
            stays=process["stays"],
            beside=tuple(
                f"process {one['pid']}, which it started, {BESIDE[one['state']]}"
                for one in of_rank
                if one["pid"] > process["pid"] and one["state"] in BESIDE
            ),
        )


def _gpu(place: ProcessSpec, rank: int) -> int | None:
    """The one that a rank uses; None where it has none, or several."""
    of_rank = dict(zip(place.ranks, place.gpus, strict=False)) if len(place.gpus) == len(place.ranks) else {}
    return of_rank.get(rank)


def _is_rank(process: Mapping[str, Any], member: KeptProcess) -> bool:
    return process["rank"] in member.place.ranks and process["comm"] not in SHELLS


def _main(of_rank: Sequence[Mapping[str, Any]], stacks: Mapping[int, Sequence[StackFrame]]) -> Mapping[str, Any]:
    """The process of a rank that was started first, of those that told a stack or cannot; the others are its data
    loaders. Where only these did, the first of all; where none did, the one that works most."""
    of_loaders = {pid for pid, frames in stacks.items() if any(map(_starts_a_child, frames))}
    told = [one for one in of_rank if stacks.get(one["pid"]) or one["state"] in "TtD"]
    mains = [one for one in told if one["pid"] not in of_loaders]
    if mains:
        return mains[0]
    return of_rank[0] if told else max(of_rank, key=lambda process: process["cpu"])


def _starts_a_child(frame: StackFrame) -> bool:
    """Whether this is where Python's multiprocessing begins the work of a child."""
    return frame.function == "_bootstrap" and frame.file.endswith("/multiprocessing/process.py")


def frames_of(text: str) -> tuple[StackFrame, ...]:
    """The main thread's frames in a dump of faulthandler or py-spy, the innermost first; none in another text."""
    found: list[StackFrame] = []
    main = False
    for line in text.splitlines():
        if line.startswith(("Current thread ", "Thread ")):
            if found:
                break
            main = line.startswith("Current thread ") or '"MainThread"' in line
        elif main and (match := OF_FAULTHANDLER.match(line)):
            found.append(StackFrame(match[1], int(match[2]), match[3]))
        elif main and (match := OF_PY_SPY.match(line)):
            found.append(StackFrame(match[2], int(match[3]), match[1]))
    return tuple(found)


def _asleep(ranks: Sequence[SeenProcess], since: str) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for one in ranks:
        if one.state in "Tt" or (one.state == "D" and one.stays and not one.frames):
            told = rank_stopped(one.label, one.node, one.pid, one.state, one.wchan, since)
            found.setdefault(one.node, []).append(told)
    return found


def _elsewhere(ranks: Sequence[SeenProcess], since: str) -> dict[str, list[Finding]]:
    """Ranks that are not in a call of all while others wait in one; else those that are in another one than most."""
    asked = [one for one in ranks if one.frames]
    waiting = [one for one in asked if one.waits]
    outside = [one for one in asked if one.elsewhere]
    found: dict[str, list[Finding]] = {}
    if waiting and outside:
        for one in outside:
            says = (
                f"{one.label} stands {one.place}, where {one.does}, while {_count(waiting)} for it "
                f"{waiting[0].place}; {since}"
            )
            seen = (*one.shown(), *waiting[0].shown())
            file, line, pid = one.own.file, one.own.line, word(one.pid)
            way = "cpu" if one.starved else "stands"
            told = finding_for("rank-behind", says, seen, way=way, file=file, line=line, node=one.node, pid=pid)
            found.setdefault(one.node, []).append(told)
        return found
    waiting = [one for one in asked if one.together]
    places = Counter((one.own.file, one.own.line) for one in waiting)
    if len(places) < 2 or len(waiting) < len(ranks) or any(one.has_gpu and not one.called for one in waiting):
        return {}  # a GPU lets each rank run ahead: it shows in different lines what it waits for
    (usual, most), (_, next_most) = places.most_common(2)
    odd = [one for one in waiting if (one.own.file, one.own.line) != usual] if most > next_most else waiting
    for one in odd:
        other = next(each for each in waiting if (each.own.file, each.own.line) != (one.own.file, one.own.line))
        says = f"{one.label} waits {one.place}, {other.label} {other.place}: they do not make the same call; {since}"
        told = finding_for("mismatched-collectives", says, (*one.shown(), *other.shown()), way="lines")
        found.setdefault(one.node, []).append(told)
    return found


def _starved(ranks: Sequence[SeenProcess], since: str) -> dict[str, list[Finding]]:
    """Ranks of one node that get no CPU, while all others wait in a call of all. In that call itself only a quota is
    believed: who waits there actively wants a CPU as well, and has no use for it."""
    waiting = [one for one in ranks if one.together and not one.held_back]
    mute = [one for one in ranks if not one.frames and one.starved and (not one.has_gpu or one.gpu_use == IDLE)]
    inside = [one for one in ranks if one.together and one.held_back and one.state == "S" and not one.has_gpu]
    guilty = mute or inside
    if not waiting or len({one.node for one in guilty}) != 1 or len(waiting) + len(guilty) < len(ranks):
        return {}
    found: dict[str, list[Finding]] = {}
    for one in guilty:
        where = f"is {one.place} too, and" if one.frames else "is not seen there:"
        says = f"{_count(waiting)} for {one.label} {waiting[0].place}, which {where} {one.does}; {since}"
        evidence = tuple(line for shown in (one, waiting[0]) for line in shown.shown())
        told = finding_for("rank-behind", says, (*_states([one]), *evidence), way="cpu", node=one.node)
        found.setdefault(one.node, []).append(told)
    return found


def _left(kept: KeptProcesses, ranks: Sequence[SeenProcess], since: str) -> dict[str, list[Finding]]:
    """Ranks that have ended, and well, while all others wait for them in a call of all. Who computes in the forward of
    a model that is wrapped for it, to evaluate it after the last step, waits for nobody."""
    waiting = [one for one in ranks if one.surely_waits]
    living = sum(len(member.place.ranks) for member in kept.living)
    found: dict[str, list[Finding]] = {}
    if len(waiting) < max(1, living):
        return found
    for member in [member for member in kept.members if member.over and member.code == 0]:
        says = (
            f"{member.label} has ended with code 0, and {_count(waiting)} for it {waiting[0].place}: it makes fewer "
            f"calls; {since}"
        )
        told = finding_for("mismatched-collectives", says, tuple(waiting[0].shown()), way="uneven")
        found.setdefault(member.place.node, []).append(told)
    return found


def _busy(facts: Facts | None, ranks: Sequence[SeenProcess]) -> list[str]:
    """Who else uses the CPUs of a node, where a rank gets none."""
    return [
        f"pid {one['pid']} of {one['user']} uses {one['cpu']:.0%} of a CPU: {one['command']}"
        for one in (facts or {}).get("busy", ())[:4]
        if any(rank.starved for rank in ranks)
    ]


def _count(waiting: Sequence[SeenProcess]) -> str:
    return f"{waiting[0].label} waits" if len(waiting) == 1 else f"{len(waiting)} others wait"


def _steps(by_rank: Mapping[int, float]) -> list[str]:
    """The last steps of the ranks, when they differ. Not a proof: a rank may hold its lines back."""
    least, most = min(by_rank.values(), default=0), max(by_rank.values(), default=0)
    late = [rank for rank, step in sorted(by_rank.items()) if step < most]
    return [f"the last step of rank {', '.join(map(str, late[:8]))} is {least:,}, of others {most:,}"] if late else []


def _states(ranks: Sequence[SeenProcess]) -> list[str]:
    return [
        f"{one.label}: pid {one.pid}, state {one.state}, {one.cpu:.0%} of a CPU"
        + (f", waiting for one {one.waited:.0%} of the time" if (one.waited or 0.0) >= COMPUTES else "")
        + ("" if one.gpu_use is None else f", {one.gpu_use} % of its GPU")
        for one in ranks[:8]
    ]
