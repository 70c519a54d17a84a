"""What in the environment of one node's ranks contradicts itself or the inventory. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import takewhile
from typing import NamedTuple

from runbook.lint.rules.environment_numbers import is_on, number_read, shown
from runbook.lint.variables.table import known


@dataclass(frozen=True, slots=True)
class EnvironmentOfRanks:
    """The ranks of one node. `env` holds what is set and known, `NCCL_IB_HCA` from `infiniband:` included."""

    env: Mapping[str, str]
    interface: str | None
    infiniband: bool
    gpus: tuple[int, ...] | None  # None where the file's own are not sound
    slots: int
    windows: bool


_DEVICE = re.compile(r"[0-9]{1,6}|(GPU|MIG)-\S+", re.ASCII)  # CUDA stops reading at the first that is none: -1, all


class Contradiction(NamedTuple):
    """`names` are the variables it is about; the first that is written somewhere is where it is shown."""

    id: str
    names: tuple[str, ...]
    message: str
    help: str


def contradictions(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    for rule in _RULES:
        yield from rule(ranks)


def _infiniband_off(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    net = ranks.env.get("NCCL_NET", "").strip()
    disabled = _number(ranks, "NCCL_IB_DISABLE") not in (None, 0)
    if not (disabled or net.lower() == "socket") or not (ranks.infiniband or ranks.env.get("NCCL_IB_HCA")):
        return
    name = "NCCL_IB_DISABLE" if disabled else "NCCL_NET"
    there = "`infiniband:` describes it" if ranks.infiniband else "NCCL_IB_HCA chooses its adapters"
    message = f"`{name}={ranks.env[name][:40]}` switches InfiniBand and RoCE off, and {there}"
    yield Contradiction(
        "infiniband-off", (name, "NCCL_IB_HCA"), message, "keep one of the two; over TCP a job is ten times slower"
    )


def _peer_to_peer(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    level = ranks.env.get("NCCL_P2P_LEVEL", "").strip()
    if _number(ranks, "NCCL_P2P_DISABLE") == 1 and level and level not in ("LOC", "0"):
        message = f"`NCCL_P2P_DISABLE=1` wins, and `NCCL_P2P_LEVEL={level[:40]}` is never looked at"
        yield Contradiction("p2p-conflict", ("NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE"), message, "keep one of the two")


def _nothing_to_dump(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    dump = ranks.env.get("TORCH_NCCL_DUMP_ON_TIMEOUT", "")
    for name in ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE"):
        if is_on(known()["TORCH_NCCL_DUMP_ON_TIMEOUT"], dump) and _number(ranks, name) == 0:
            message = f"with `{name}=0` nothing is recorded that TORCH_NCCL_DUMP_ON_TIMEOUT could write"
            yield Contradiction(
                "nothing-to-dump", (name, "TORCH_NCCL_DUMP_ON_TIMEOUT"), message, "2000 entries are usual"
            )
            return


def _visible_devices(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    text = ranks.env.get("CUDA_VISIBLE_DEVICES")
    if text is None or ranks.gpus is None:
        return
    devices = list(takewhile(_DEVICE.fullmatch, (one.strip() for one in text.split(","))))
    numbers = {int(one) for one in devices if re.fullmatch("[0-9]{1,6}", one, re.ASCII)}
    same = numbers == set(ranks.gpus) if len(numbers) == len(devices) else len(devices) == len(ranks.gpus)
    if same:
        return
    given = f"gives {_devices(ranks.gpus)}" if ranks.gpus else "gives the node no GPUs"
    message = f"`CUDA_VISIBLE_DEVICES` shows {shown(text) if devices else 'no GPU'}, and the inventory {given}"
    if numbers:
        help = f"write `gpus: [{', '.join(map(str, sorted(numbers)))}]`, and leave the variable to runbook"
    else:
        help = "say with `gpus` which ones the ranks get, and leave the variable to runbook"
    yield Contradiction("visible-devices", ("CUDA_VISIBLE_DEVICES",), message, help)


def _devices(gpus: tuple[int, ...]) -> str:
    if len(gpus) == 1:
        return f"GPU {gpus[0]}"
    if len(gpus) == 2:
        return f"GPUs {min(gpus)} and {max(gpus)}"
    together = sorted(gpus) == list(range(min(gpus), max(gpus) + 1))
    return f"GPUs {min(gpus)} to {max(gpus)}" if together else f"GPUs {shown(', '.join(map(str, gpus)))}"


def _too_many_sockets(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    names = ("NCCL_NSOCKS_PERTHREAD", "NCCL_SOCKET_NTHREADS")
    sockets, threads = (_number(ranks, name) for name in names)
    if sockets is not None and threads is not None and sockets * threads > 64:
        message = f"{sockets} sockets for each of {threads} threads are {sockets * threads}, and NCCL allows 64"
        yield Contradiction("too-many-sockets", names, message, "the product of the two may be 64 at most")


def _min_above_max(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    for kind in ("CTAS", "NCHANNELS", "P2P_NCHANNELS", "NRINGS"):
        least, most = _number(ranks, f"NCCL_MIN_{kind}"), _number(ranks, f"NCCL_MAX_{kind}")
        if least is not None and most is not None and least > most > 0:
            message = f"`NCCL_MIN_{kind}` is {least} and `NCCL_MAX_{kind}` is {most}"
            names = (f"NCCL_MIN_{kind}", f"NCCL_MAX_{kind}")
            yield Contradiction("min-above-max", names, message, "the least may not be more than the most")


def _gid_index(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    index = _number(ranks, "NCCL_IB_GID_INDEX")
    over_ipoib = ranks.interface is not None and ranks.interface.startswith("ib")
    if index is not None and index > 0 and ranks.infiniband and over_ipoib:
        message = f"GIDs are RoCE's, and the interface {shown(ranks.interface or '')} is InfiniBand's"
        help = "leave it out: InfiniBand routes by LID, and since NCCL 2.21 RoCE finds its GID as well"
        yield Contradiction("gid-index-on-infiniband", ("NCCL_IB_GID_INDEX",), message, help)


def _shared_log(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    file = ranks.env.get("NCCL_DEBUG_FILE", "")
    if file and ranks.slots > 1 and "%p" not in file and not file.startswith("/dev/"):
        message = f"the {ranks.slots} ranks of a node write over each other in {shown(file)}"
        help = f"%h stands for the host and %p for the process: {file[:40].removesuffix('.log')}.%h.%p"
        yield Contradiction("shared-log-file", ("NCCL_DEBUG_FILE",), message, help)


def _libuv(ranks: EnvironmentOfRanks) -> Iterator[Contradiction]:
    if ranks.windows and ranks.env.get("USE_LIBUV") == "1":
        message = "PyTorch's wheels for Windows are built without libuv: with `USE_LIBUV=1` no rank can join"
        yield Contradiction("libuv-on-windows", ("USE_LIBUV",), message, "leave it out: 0 is the default there")


def _number(ranks: EnvironmentOfRanks, name: str) -> int | None:
    text = ranks.env.get(name)
    return number_read(known()[name], text) if text else None


_RULES: tuple[Callable[[EnvironmentOfRanks], Iterator[Contradiction]], ...] = (
    _infiniband_off,
    _peer_to_peer,
    _nothing_to_dump,
    _visible_devices,
    _too_many_sockets,
    _min_above_max,
    _gid_index,
    _shared_log,
    _libuv,
)
