"""Controls the jobs of this node by the journals of their keepers: what lives, what it wrote, and its end. Only files
of ours count, in a workdir where no other user could have put or changed them; a process is ours by its number and the
time of its start.

Argument: {"do": one of the orders below, ...}. A job's folder is `workdir/JOB/NODE`; in it lie `job.json`, a file KEPT
that saves the folder from being removed with the run, and `attempt-NN/` with a journal, an `.out` and an `.err` for
each kept process.

prepare  {"folder", "attempt", "about", "hash": [paths]}: makes the folders; gives {"alive": kept processes of this job
         that live from an earlier attempt, "gpus": those of other jobs with GPUs of ours, "sha256": {path: hash or
         None}, "beside": the same of the modules that these files import and that lie beside them}.
watch    {"folder": of an attempt, "at": {log that is wanted: offset}, "seen": what it gave last, "wait_s",
         "most": bytes, "look": bool}: waits until there is news; gives {"kept": journals, "read": {file: base64},
         "size": {file: bytes}, "steps": {file: what a process wrote into the file that RUNBOOK_PROGRESS names},
         "seen": [[file, bytes, when it was last written, in ns]], "time"}; with `look`, which goes through all
         processes, the journals have `lives` and `keeper_lives`.
stop     {"folder": of an attempt, "why"}: TERM to the keepers, who end what they keep, and write down why; what has no
         keeper any more is ended here.
kill     the same at once, and waits for it; a journal of a keeper that was killed has the `why` that was left.
         Journals of both, and of all orders below, tell what `lives`.
list     {"workdir", "node", "job": only this one, or null}: the node's jobs in this workdir, with what each process of
         the latest attempt uses, and each that lives:
         {"jobs": [{"about", "folder", "attempts": {name: [...]}, "damaged": [{"name", "why", "pids"}]}]}; `damaged` are
         files that cannot be read as what they should be, and what lives that no journal tells of.
clean    {"folder": of the job}: removes it unless something lives; gives {"removed": bool, "alive": names of what
         does}.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import shutil
import signal
import time

from runbook.node.journal import (
    ABOUT,
    ATTEMPT,
    JOURNAL,
    PLAIN,
    WRITTEN,
    Odd,
    attempt_folder,
    belongs,
    checked,
    node_of,
    serial_of,
)
from runbook.node.own_files import (
    KEPT,
    WHY_STOPPED,
    document,
    expanded,
    is_ours,
    names_in,
    opened,
    ours,
    safe,
    why_stopped,
    write,
)
from runbook.node.proc import boot_id, booted, born, environ, owner, pause, pids, stat, variable
from runbook.node.proc import kill as send
from runbook.node.tools import find, run
from runbook.node.training_steps import USUAL, number, step_in

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from re import Pattern
    from typing import Any, BinaryIO

    from runbook.node.journal import Facts
    from runbook.transport.node_answers import CleanAnswer, KeptAnswer, Listed, ListedJob, Prepared, Watched

    Living = dict[tuple[str, str, str], list[int]]
    """Processes by job, attempt and name."""

PART = 16 * 1024  # of a log, where steps are looked for
SLURM_JOB = "SLURM_JOB_ID"
IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z_][\w.]{0,200})", re.MULTILINE)
MOST_MODULES, MOST_OF_A_PROGRAM = 64, 1 << 20
KEEPER_S = 2.0  # how long a keeper may take to end after it wrote down the end of its process


def look(arguments: dict[str, Any]) -> Any:
    return ORDERS[arguments["do"]](arguments)


# Orders.


def prepare(order: dict[str, Any]) -> Prepared:
    folder = in_ours(order["folder"], 2)
    attempt = os.path.join(folder, order["attempt"])
    try:
        os.mkdir(attempt, 0o700)
    except FileExistsError:
        ours(attempt)
    write(os.path.join(folder, KEPT), "")
    write(os.path.join(folder, "job.json"), json.dumps(order["about"]))
    alive = living()
    mine, theirs = [], []
    gpus = set(order["about"].get("gpus") or ())
    for other in folders_that_concern(folder, alive):
        for facts in all_journals(other, alive)[0]:
            if facts["lives"] and other == folder:
                mine.append(facts)
            elif facts["lives"] and gpus & set(facts.get("gpus") or ()) and not of_another_allocation(facts["keeper"]):
                theirs.append(facts)
    paths = order.get("hash", ())
    modules = sorted({module for path in paths for module in imported_from_beside(path)})[:MOST_MODULES]
    hashes = {path: sha256(path) for path in paths}
    return {"alive": mine, "gpus": theirs, "sha256": hashes, "beside": {path: sha256(path) for path in modules}}


def of_another_allocation(keeper: int) -> bool:
    """Whether a keeper is in another job of Slurm than we are: each of these numbers its own GPUs from 0."""
    ours, its = os.environ.get(SLURM_JOB), variable(keeper, SLURM_JOB)
    return ours is not None and its is not None and its != ours


def watch(order: dict[str, Any]) -> Watched:
    folder, offsets = in_ours(order["folder"], 3), order.get("at") or {}
    deadline = time.monotonic() + order.get("wait_s", 0.0)
    while fingerprint(folder) == order.get("seen") and time.monotonic() < deadline:
        pause(0.03)
    seen = fingerprint(folder)
    kept, _ = journals(folder, living() if order.get("look") else None)
    read, sizes, steps = {}, {}, {}
    for name in names_in(folder):
        try:
            if name.endswith(".step"):
                with log(folder, name) as file:
                    steps[name] = file.read(64).decode("utf-8", "replace").strip()
            elif name.endswith((".out", ".err")):
                with log(folder, name) as file:
                    sizes[name] = os.fstat(file.fileno()).st_size
        except OSError:
            continue
    longer = [name for name in sizes if name in offsets and sizes[name] > offsets[name]]
    for name in longer:
        try:
            with log(folder, name) as file:
                file.seek(offsets[name])
                # An equal part for each: one that writes without end must not delay the others' lines.
                data = file.read(max(4096, order["most"] // len(longer)))
            read[name] = base64.b64encode(data).decode()
        except OSError:
            continue
    # Base64, which the controller reads as bytes.
    return {
        "kept": kept,
        "read": read,  # type: ignore[typeddict-item]
        "size": sizes,
        "steps": steps,
        "seen": seen,
        "time": time.time(),
    }


def stop(order: dict[str, Any]) -> KeptAnswer:
    folder = in_ours(order["folder"], 3)
    alive = living()
    found, damaged = journals(folder, alive)
    leave_why(folder, order, found)
    for facts in found:
        send([facts["keeper"]] if facts["keeper_lives"] else left_of(facts, alive), signal.SIGTERM)
    end(damaged, signal.SIGTERM)
    return {"kept": found}


def leave_why(folder: str, order: dict[str, Any], found: Iterable[Facts]) -> None:
    """For the keepers, and for whoever reads the journal of one that was killed; who came first is the reason, and what
    had lost its keeper before has another."""
    if order.get("why") and any(facts["keeper_lives"] for facts in found) and not why_stopped(folder):
        try:
            write(os.path.join(folder, WHY_STOPPED), order["why"])
        except OSError:
            pass  # no room, or the folder is gone: what lives is ended all the same


def kill(order: dict[str, Any]) -> KeptAnswer:
    folder = in_ours(order["folder"], 3)
    deadline = time.monotonic() + 5.0
    while True:
        alive = living()
        chosen, damaged = journals(folder, alive)
        leave_why(folder, order, chosen)
        for facts in chosen:
            send([facts["keeper"]] if facts["keeper_lives"] else [], signal.SIGKILL)
            send(left_of(facts, alive), signal.SIGKILL)
        end(damaged, signal.SIGKILL)
        lives = any(facts["lives"] for facts in chosen) or any(one["pids"] for one in damaged)
        if not lives or time.monotonic() > deadline:
            return {"kept": chosen}
        pause(0.02)


def known(order: dict[str, Any]) -> Listed:
    workdir = expanded(order["workdir"])
    safe(workdir)
    alive = living()
    jobs: list[ListedJob] = []
    used: list[tuple[str, Facts, Pattern[str]]] = []
    for folder in folders_of_jobs(workdir, order["node"]):
        job, node = place_of(folder)
        if order.get("job") not in (None, job):
            continue
        about: Facts = {"job": job, "node": node}
        damaged: list[Facts] = []
        try:
            found = checked(document(os.path.join(folder, "job.json")), ABOUT, ("job", "node"))
            for field, here in about.items():
                if found[field] != here:
                    raise Odd(field, found[field], "`%s`" % here)
            about = found
        except (OSError, ValueError) as error:
            damaged.append(damage("job.json", error))
        attempts: dict[str, list[Facts]] = {}
        finds = pattern(about)
        for name in sorted(attempts_of(folder), key=serial_of, reverse=True):
            path, latest = os.path.join(folder, name), not attempts
            attempts[name], bad = journals(path, alive)
            damaged += bad
            used += [(path, facts, finds) for facts in attempts[name] if latest or facts["lives"]]
        jobs.append({"about": about, "folder": folder, "attempts": attempts, "damaged": damaged})
    gone = folders_that_are_gone(workdir, order["node"], alive)
    jobs += [without_files(folder, alive) for folder in gone if order.get("job") in (None, place_of(folder)[0])]
    gpus = gpu_memory() if any(facts["lives"] and facts.get("gpus") for _, facts, _ in used) else {}
    for path, facts, finds in used:
        facts["use"] = {**use(alive.get(key(facts), ()), gpus), **steps(path, facts, finds)}
    return {"jobs": jobs, "time": time.time()}


def without_files(folder: str, alive: Living) -> ListedJob:
    """What can be told of a job whose files somebody has removed, and of which something lives."""
    job, node = place_of(folder)
    removed: Facts = {"name": "job.json", "why": "the job's files were removed", "pids": []}
    return {
        "about": {"job": job, "node": node},
        "folder": folder,
        "attempts": {name: [] for name in attempts_that_live(folder, alive)},
        "damaged": [removed, *all_journals(folder, alive)[1]],
    }


def clean(order: dict[str, Any]) -> CleanAnswer:
    folder = in_ours(order["folder"], 2)
    deadline = time.monotonic() + KEEPER_S
    while True:
        found, damaged = all_journals(folder, living())
        left = [facts for facts in found if facts["lives"] or facts["keeper_lives"]]
        unknown = [one["name"] for one in damaged if one["pids"]]
        going = not unknown and all(facts["state"] == "ended" and not facts["lives"] for facts in left)
        if not (left and going) or time.monotonic() > deadline:
            break
        pause(0.02)
    if left or unknown:
        return {"removed": False, "alive": [facts["name"] for facts in left] + unknown}
    for facts in found:
        if facts.get("barrier"):
            forget_barrier(facts["barrier"], facts["job"], os.path.dirname(os.path.dirname(folder)))
    for name in attempts_of(folder):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    for name in ("job.json", KEPT):
        try:
            os.remove(os.path.join(folder, name))
        except OSError:
            pass
    if order.get("whole"):
        shutil.rmtree(folder, ignore_errors=True)
        drop(os.path.dirname(folder))
    return {"removed": not os.path.lexists(folder) if order.get("whole") else True, "alive": []}


def forget_barrier(folder: str, job: str, workdir: str) -> None:
    """Remove the folder in which the nodes of one attempt met, and nothing else that a journal may name."""
    name = os.path.basename(folder)
    if not name.startswith(job + ".attempt-") or not PLAIN.match(name) or not is_ours(folder):
        return
    for entry in names_in(folder):
        if entry in ("go", "abort") or entry.endswith(".ready") or entry.startswith("."):
            try:
                os.remove(os.path.join(folder, entry))
            except OSError:
                pass
    drop(folder)
    drop(os.path.dirname(folder), os.path.join(workdir, "barrier"))


# Journals.


def in_ours(folder: str, depth: int) -> str:
    """The folder, where it and what lies between it and the workdir, which is `depth` above it, are ours; what does not
    exist is safe. Raises NotSafe."""
    above, inner = folder, []
    for _ in range(depth):
        inner.append(above)
        above = os.path.dirname(above)
    safe(above)
    for one in reversed(inner):
        try:
            ours(one)
        except FileNotFoundError:
            break
    return folder


def folders_of_jobs(workdir: str, node: str) -> list[str]:
    """`workdir/JOB/NODE` of every job of ours on this node; others may share the workdir."""
    return [path for job in names_in(workdir) if (path := folder_of_job(workdir, job, node))]


def folder_of_job(workdir: str, job: str, node: str) -> str | None:
    """`workdir/JOB/NODE`, where there is such a job of ours."""
    above = os.path.join(workdir, job)
    path = os.path.join(above, node)
    if not (PLAIN.match(job) and PLAIN.match(node) and is_ours(above) and is_ours(path)):
        return None
    return path if os.path.lexists(os.path.join(path, "job.json")) else None


def folders_that_are_gone(workdir: str, node: str, alive: Living) -> list[str]:
    """`workdir/JOB/NODE` of the jobs of which something lives on this node, and whose files somebody has removed."""
    found = set()
    for (job, serial, name), those in alive.items():
        folder = os.path.join(workdir, job, node)
        if node_of(name) != node or not PLAIN.match(job) or os.path.lexists(os.path.join(folder, "job.json")):
            continue
        for attempt in attempts_that_live(folder, {(job, serial, name): those}):
            steps = os.path.join(folder, attempt, name + ".step")
            if any(variable(pid, "RUNBOOK_PROGRESS") == steps for pid in those):  # else it is of another workdir
                found.add(folder)
    return sorted(found)


def attempts_that_live(folder: str, alive: Living) -> list[str]:
    """The attempts of a job's folder of which something lives, whether or not they have files."""
    place = place_of(folder)
    return sorted(
        {
            attempt_folder(int(serial))
            for job, serial, name in alive
            if (job, node_of(name)) == place and serial.isdigit()
        }
    )


def folders_that_concern(folder: str, alive: Living) -> list[str]:
    """The folders of jobs of which something may live here: those of this node, and of others that are this machine
    as well. A home that a thousand nodes share has those of them all."""
    above, node = os.path.split(folder)
    workdir = os.path.dirname(above)
    others = (folder_of_job(workdir, job, node_of(name)) for job, _, name in alive)
    return sorted({*folders_of_jobs(workdir, node), *filter(None, others)})


def place_of(folder: str) -> tuple[str, str]:
    """The job and the node of a job's folder."""
    above, node = os.path.split(folder)
    return os.path.basename(above), node


def attempts_of(folder: str) -> list[str]:
    return [name for name in names_in(folder) if ATTEMPT.match(name) and is_ours(os.path.join(folder, name))]


def all_journals(folder: str, alive: Living) -> tuple[list[Facts], list[Facts]]:
    """Those of all attempts of a job, and what is damaged."""
    found, damaged = [], []
    for name in sorted({*attempts_of(folder), *attempts_that_live(folder, alive)}):
        good, bad = journals(os.path.join(folder, name), alive)
        found += good
        damaged += bad
    return found, damaged


def journals(folder: str, alive: Living | None = None) -> tuple[list[Facts], list[Facts]]:
    """What the keepers of an attempt wrote; with `alive`, also whether anything of it lives now. And what is damaged:
    journals that cannot be trusted, and living processes without a journal."""
    attempt = os.path.basename(folder)
    job, node = place_of(os.path.dirname(folder))
    why = why_stopped(folder)
    found, damaged = [], []

    def written(name: str) -> Facts:
        facts: Facts = belongs(checked(document(os.path.join(folder, name)), JOURNAL, WRITTEN), node, job, attempt)
        if facts["name"] + ".json" != name:
            raise Odd("name", facts["name"], "that of its file")
        return facts

    for name in names_in(folder):
        if not name.endswith(".json"):
            continue
        try:
            facts = written(name)
            keeper_lives = alive is None or same(facts["keeper"], facts.get("keeper_born"))
            if not keeper_lives and facts["state"] != "ended":
                facts = written(name)  # one that ended since wrote before that how its process had ended
            if facts["state"] != "ended":  # nor will it write why, where its keeper is killed
                facts["why"] = facts.get("why") or why or None
            if alive is not None:
                # By its number as well: a program may have written over its environment, as one does that changes its
                # title.
                facts["lives"] = bool(alive.get(key(facts))) or same(facts.get("pid"), facts.get("born"))
                facts["keeper_lives"] = keeper_lives
                facts["restarted"] = restarted(facts)
            found.append(facts)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            damaged.append(damage(name, error, attempt))
    if alive is None:
        return found, damaged
    told, serial = {key(facts) for facts in found}, str(serial_of(attempt))
    for kept, those in alive.items():
        name = kept[2]
        if kept in told or kept[:2] != (job, serial) or node_of(name) != node or not PLAIN.match(name):
            continue
        ours = [pid for pid in those if owner(pid) == os.getuid()]
        mine = [one for one in damaged if one["name"] == os.path.join(attempt, name + ".json")]
        if mine:
            mine[0]["pids"] = ours
        elif ours:
            damaged.append({"name": os.path.join(attempt, name), "why": "it lives, and has no journal", "pids": ours})
    return found, damaged


def restarted(facts: Facts) -> float | None:
    """When this machine was started, where that was after the start of what the journal tells of."""
    if facts.get("boot") in (None, boot_id()):
        return None
    since = booted()
    # One that was started earlier is another machine, with the same home.
    return since if since is not None and since > (facts.get("started") or 0.0) else None


def damage(name: str, error: Exception, attempt: str = "") -> Facts:
    why = error.strerror if isinstance(error, OSError) else str(error)
    shown = name.encode("utf-8", "replace").decode("utf-8", "replace")
    return {"name": os.path.join(attempt, shown), "why": str(why or error)[:1000], "pids": []}


def log(folder: str, name: str) -> BinaryIO:
    """A file of what a process wrote, open for reading; a link leads to what a launcher wrote, in the same folder."""
    path = os.path.realpath(os.path.join(folder, name))
    if not path.startswith(os.path.realpath(folder) + "/"):
        raise OSError("it leads out of its folder")
    return opened(path, strict=False)


def pattern(about: Facts) -> Pattern[str]:
    """The pattern for the number of a step in a job's lines."""
    try:
        return re.compile(about.get("progress") or USUAL)
    except (re.error, RecursionError, OverflowError):
        return USUAL


def steps(folder: str, facts: Facts, finds: Pattern[str]) -> dict[str, float]:
    """The highest step that a process, or a rank that it started, reported, how long ago, and the first one, if there
    was any."""
    told = []
    for name in [facts["name"]] + (facts.get("each") or []):
        for end in (".step", ".out", ".err"):
            try:
                with log(folder, name + end) as file:
                    age = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
                    first, last = (first_step(part, end, finds) for part in ends(file))
            except OSError:
                continue
            if last is not None:
                told.append((last, -age, first))
    if not told:
        return {}
    last, age, first = max(told, key=lambda one: one[:2])
    return {"step": last, "step_age_s": -age, "first_step": last if first is None else first}


def ends(file: BinaryIO) -> tuple[list[str], list[str]]:
    """The lines at the beginning of a file, and those at its end, the last one first."""
    first = file.read(PART)
    file.seek(max(0, os.fstat(file.fileno()).st_size - PART))
    last = file.read(PART)
    begin, end = (part.decode("utf-8", "replace").splitlines() for part in (first, last))
    return begin, end[::-1]


def first_step(lines: list[str], end: str, finds: Pattern[str]) -> int | None:
    """The first step that these lines tell."""
    found = (number(line.strip()) if end == ".step" else step_in(line, finds) for line in lines)
    return next((step for step in found if step is not None), None)


def fingerprint(folder: str) -> list[Any]:
    """Changes with every journal and every byte of output."""
    seen = []
    for name in names_in(folder):
        try:
            status = os.stat(os.path.join(folder, name))
            seen.append([name, status.st_size, status.st_mtime_ns])
        except OSError:
            continue
    return seen


# Processes.


def key(facts: Facts) -> tuple[str, str, str]:
    return facts["job"], str(facts["attempt"]), facts["name"]


def living() -> Living:
    """Living processes of all jobs: the kept ones, what they started, and what left their session."""
    found: Living = {}
    for pid in pids():
        try:
            words = environ(pid)
        except OSError:
            continue  # another user's, or gone
        tags = dict(word.partition(b"=")[::2] for word in words if word.startswith(b"RUNBOOK_"))
        if b"RUNBOOK_KEPT" not in tags or born(pid) is None:
            continue
        job, attempt, kept = (
            tags.get(b"RUNBOOK_" + word, b"").decode("utf-8", "replace") for word in (b"JOB", b"ATTEMPT", b"KEPT")
        )
        found.setdefault((job, attempt, kept), []).append(pid)
    return found


def left_of(facts: Facts, alive: Living) -> set[int]:
    """The processes of a journal that live."""
    pids = set(alive.get(key(facts), ()))
    return pids | ({facts["pid"]} if same(facts.get("pid"), facts.get("born")) else set())


def same(pid: int | None, its_born: int | None) -> bool:
    """Whether the process of this number lives, is the one that began then, and is ours."""
    return pid is not None and its_born is not None and born(pid) == its_born and owner(pid) == os.getuid()


def gpu_memory() -> dict[int, int]:
    """Bytes of GPU memory by process, as far as nvidia-smi shows them."""
    tool = find("nvidia-smi")
    if tool is None:
        return {}
    said = run([tool, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], 3.0)
    found: dict[int, int] = {}
    for line in said["out"].splitlines():
        pid, _, size = line.partition(",")
        if pid.strip().isdigit() and size.strip().isdigit():
            found[int(pid)] = found.get(int(pid), 0) + int(size) * 1024 * 1024
    return found


def use(those: Iterable[int], gpus: dict[int, int]) -> dict[str, float | None]:
    """CPU seconds so far, resident bytes, how many processes that are, and bytes of GPU memory (None: not known)."""
    hertz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    seen = [found for found in map(stat, those) if found]
    return {
        "cpu_s": sum(one.ticks for one in seen) / hertz,
        "rss": sum(one.pages for one in seen) * page,
        "processes": len(seen),
        "gpu_bytes": sum(gpus.get(pid, 0) for pid in those) if gpus else None,
    }


def end(damaged: list[Facts], number: int) -> None:
    """Signal living processes without a journal."""
    for one in damaged:
        send(one["pids"], number)


# Files.


def drop(folder: str, only: str | None = None) -> None:
    """Remove an empty folder; others may have something in it. With `only`, no other than that: the rest is not
    ours."""
    try:
        if only is None or folder == only:
            os.rmdir(folder)
    except OSError:
        pass


def sha256(path: str) -> str | None:
    try:
        with open(expanded(path), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def imported_from_beside(path: str) -> set[str]:
    """The modules that a Python file imports and that lie beside it: `model.py`, `data/__init__.py`."""
    try:
        with open(expanded(path), encoding="utf-8", errors="replace") as file:
            text = file.read(MOST_OF_A_PROGRAM)
    except OSError:
        return set()
    found = set()
    for name in IMPORTED.findall(text):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            stem = os.path.join(os.path.dirname(path), *parts[:depth])
            found |= {one for one in (stem + ".py", stem + "/__init__.py") if os.path.isfile(expanded(one))}
    return found - {path}


ORDERS = {"prepare": prepare, "watch": watch, "stop": stop, "kill": kill, "list": known, "clean": clean}
