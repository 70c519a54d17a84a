"""Which fields do a keeper's journal and a job's description have, and which values may each field hold?

A journal on a disk may be damaged or of another version, and a message over the wire may be false. So the programs on a
node and the controller check both with the same table. It imports only what a node's Python 3.8 has.
"""

from __future__ import annotations

import math
import re
import reprlib
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from runbook.node.proc import MAX_RANK

DocumentFields = Dict[str, Any]
FieldKind = Tuple[str, Callable[[Any], bool]]  # what a value has to be, in words, and a check of it

PROCESS_STATES = ("none", "waiting", "running", "stopping", "ended")
"""The states of a kept process, in their order; the first is never written into a journal."""
STOPPED_BY_USER = "stopped by the user"
"""The `why` of a process that `runbook stop`, or the run that had started it, ended."""
BARRIER_WHY_PREFIX = "barrier: "
"""The beginning of `why` if the process was not started because of the barrier of files."""
BARRIER_FOLDER_WHY_PREFIX = "the shared folder "
"""What follows BARRIER_WHY_PREFIX if the barrier's folder cannot be used."""
OOM_KILLS_INTERVAL_S = 60.0
"""The kernel's kills in a journal are those of the last one to two such intervals before the end."""
MIN_LOG_ANSWER_BYTES = 4096
"""Of each log that has grown, a node may send at least so many bytes in one answer."""
SIGNAL_WHY_PREFIX = "signal "
"""The beginning of `why` if a signal ended the keeper and nobody left a reason: a reboot, a scheduler, `kill`."""

MAX_TEXT_CHARACTERS = 1 << 15  # the most characters of a text
MAX_UNIX_TIME_S = 1e11  # seconds since 1970: the system has no date for much later times
FILE_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+@=-]{0,239}\Z")  # a name that a file may have


class Odd(ValueError):
    """A field holds an invalid value; the message names the field, its value, and what it has to be."""

    def __init__(self, field: str, value: object, wanted: str) -> None:
        shown = reprlib.repr(value).encode("ascii", "backslashreplace").decode()
        super().__init__("`%s` is %s, and has to be %s" % (field, shown, wanted))


def integer_kind(low: int, high: int) -> FieldKind:
    return (
        "an integer from %d to %d" % (low, high),
        lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high,
    )


def number_kind(high: float) -> FieldKind:
    def fits(value: Any) -> bool:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return False
        return math.isfinite(value) and 0 <= value <= high if isinstance(value, float) else 0 <= value <= high

    return "a number from 0 to %g" % high, fits


def list_kind(kind: FieldKind, least: int = 0) -> FieldKind:
    what, fits = kind
    return (
        "a list%s, each %s" % (" of at least %d" % least if least else "", what),
        lambda value: isinstance(value, list) and len(value) >= least and all(map(fits, value)),
    )


def mapping_kind(kind: FieldKind) -> FieldKind:
    what, fits = kind
    return (
        "a mapping from names to %s" % what,
        lambda value: isinstance(value, dict) and all(NAME[1](key) and fits(one) for key, one in value.items()),
    )


def nullable_kind(kind: FieldKind) -> FieldKind:
    what, fits = kind
    return what + ", or null", lambda value: value is None or fits(value)


NAME: FieldKind = (
    "a name that a file may have",
    lambda value: isinstance(value, str) and bool(FILE_NAME_PATTERN.match(value)),
)
TEXT: FieldKind = (
    "a text of at most %d characters" % MAX_TEXT_CHARACTERS,
    lambda value: isinstance(value, str) and len(value) <= MAX_TEXT_CHARACTERS,
)
BOOLEAN: FieldKind = ("true or false", lambda value: isinstance(value, bool))
STATE: FieldKind = (
    ", ".join(PROCESS_STATES[1:-1]) + " or " + PROCESS_STATES[-1],
    lambda value: value in PROCESS_STATES[1:],
)
TIME = number_kind(MAX_UNIX_TIME_S)
PID = integer_kind(1, 1 << 31)
TICKS = integer_kind(0, 1 << 63)
RANK_NUMBER = integer_kind(0, MAX_RANK)
GPU_INDEX = integer_kind(0, 65535)
ATTEMPT_NUMBER = integer_kind(1, 1000000)

JOURNAL_FIELDS: Mapping[str, FieldKind] = {
    "name": NAME,
    "job": NAME,
    "attempt": ATTEMPT_NUMBER,
    "node": NAME,
    "ranks": list_kind(RANK_NUMBER, 1),
    "local_rank": nullable_kind(RANK_NUMBER),
    "gpus": nullable_kind(list_kind(GPU_INDEX)),
    "each": nullable_kind(list_kind(NAME)),
    "detached": nullable_kind(BOOLEAN),
    "keeper": PID,
    "keeper_born": nullable_kind(TICKS),
    "boot": nullable_kind(TEXT),
    "barrier": nullable_kind(TEXT),
    "met": list_kind(TEXT),
    "met_on": nullable_kind(TEXT),
    "state": STATE,
    "pid": nullable_kind(PID),
    "born": nullable_kind(TICKS),
    "code": nullable_kind(integer_kind(-(1 << 31), 1 << 32)),
    "started": nullable_kind(TIME),
    "ended": nullable_kind(TIME),
    "why": nullable_kind(TEXT),
    "no_room": nullable_kind(TEXT),
    "left": list_kind(PID),
    "swept": nullable_kind(integer_kind(0, 1 << 31)),
    "group_kills": nullable_kind(integer_kind(0, 1 << 31)),
    "node_kills": nullable_kind(integer_kind(0, 1 << 31)),
}
REQUIRED_JOURNAL_FIELDS = ("name", "job", "attempt", "node", "ranks", "keeper", "state")
"""The fields that every journal on a disk has to have."""

PRESENT_STATE_FIELDS: Mapping[str, FieldKind] = {
    "lives": BOOLEAN,
    "keeper_lives": BOOLEAN,
    "restarted": nullable_kind(TIME),
    "use": mapping_kind(nullable_kind(number_kind(1e18))),
}
"""Fields that `job_control.py` adds about the present; `restarted`: when the machine started, if after the process."""

JOB_FIELDS: Mapping[str, FieldKind] = {
    "job": NAME,
    "node": NAME,
    "stage": TEXT,
    "launcher": TEXT,
    "grace_s": number_kind(1e7),
    "command": list_kind(TEXT),
    "attempt": ATTEMPT_NUMBER,
    "port": integer_kind(0, 65535),
    "gpus": list_kind(GPU_INDEX),
    "nodes": mapping_kind(list_kind(RANK_NUMBER)),
    "began": TIME,
    "run_dir": TEXT,
    "made_from": list_kind(TEXT),
    "progress": nullable_kind(TEXT),
}

DAMAGED_FILE_FIELDS: Mapping[str, FieldKind] = {"name": TEXT, "why": TEXT, "pids": list_kind(PID)}
"""The fields about a file that cannot be read: its name, why, and the living processes that it may be about."""


def checked_fields(said: object, kinds: Mapping[str, FieldKind], needed: Sequence[str] = ()) -> DocumentFields:
    """The known fields of a message, each checked; unknown fields are dropped. Raises Odd."""
    if not isinstance(said, dict):
        raise Odd("it", said, "a mapping")
    for field in needed:
        if field not in said:
            raise Odd(field, None, kinds[field][0])
    found = {field: said[field] for field in kinds if field in said}
    for field, value in found.items():
        wanted, fits = kinds[field]
        if not fits(value):
            raise Odd(field, value, wanted)
    return found


def verify_journal_place(journal: DocumentFields, node: str, job: str, attempt: str) -> DocumentFields:
    """The journal, if it is one of this node, of this job, and of this attempt's folder. Raises Odd if it is not."""
    for field, wanted in (("node", node), ("job", job)):
        if journal[field] != wanted:
            raise Odd(field, journal[field], "`%s`" % wanted)
    if attempt_folder(journal["attempt"]) != attempt:
        raise Odd("attempt", journal["attempt"], "that of " + attempt)
    for field, names in (("name", [journal["name"]]), ("each", journal.get("each") or [])):
        for name in names:
            if node_in_name(name) != node:
                raise Odd(field, name, "that of a process of " + node)
    return journal


def node_in_name(name: str) -> str:
    """The node in the name of a process's files: `rank-00003.NODE.l1`, `ranks-00000-00003.NODE.launcher`."""
    return name.partition(".")[2].rpartition(".")[0]


ATTEMPT_FOLDER = re.compile(r"attempt-[0-9]{2,7}\Z")


def attempt_folder(serial: int) -> str:
    """The name of the folder of an attempt; `serial` counts the attempts of a run, from 1."""
    return "attempt-%02d" % serial


def serial_of(attempt: str) -> int:
    """The serial in the name of an attempt's folder."""
    return int(attempt.rpartition("-")[2])
