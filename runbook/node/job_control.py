"""Controls the jobs of this node by their keepers' journals: which processes live, what they wrote, and how they end.
Only this user's files count, in a workdir where no other user could have put or changed them. A process is recognized
by its pid and the time of its start.

Argument: {"do": one of the orders below, ...}. A job's folder is `workdir/JOB/NODE`. In it are `job.json`, a file KEPT
that saves the folder from being removed with the run, and `attempt-NN/` with a journal, an `.out` and an `.err` for
each kept process.

prepare  {"folder", "attempt", "about", "hash": [paths]}: makes the folders; gives {"alive": kept processes that live
         from an earlier attempt of this job, "gpus": those of other jobs that have GPUs of this job, "sha256": {path:
         hash or None}, "beside": the same of the modules that these files import and that lie beside them}.
watch    {"folder": of an attempt, "at": {wanted log: offset}, "seen": from the last answer, "wait_s",
         "most": bytes, "look": bool}: waits until there is news; gives {"kept": journals, "read": {file: base64},
         "size": {file: bytes}, "steps": {file: contents of the file that RUNBOOK_PROGRESS names},
         "seen": [[file, bytes, time of the last write in ns]], "time"}. With `look`, which goes through all
         processes, the journals have `lives` and `keeper_lives`.
stop     {"folder": of an attempt, "why"}: TERM to the keepers, which end their processes and record why. Processes
         without a keeper get TERM directly.
kill     the same with KILL, and waits for the end. A journal whose keeper was killed gets the `why` that was left.
         The journals in the answers to `stop` and all orders below have `lives`.
list     {"workdir", "node", "job": only this job, or null}: the node's jobs in this workdir, with what each process of
         the latest attempt, and each living process, uses:
         {"jobs": [{"about", "folder", "attempts": {name: [...]}, "damaged": [{"name", "why", "pids"}]}]}. `damaged`:
         files whose contents are not valid, and living processes without a journal.
clean    {"folder": of the job, "whole": bool}: removes its attempts and the facts about it, and with `whole` the folder
         with all else in it, unless a process lives; gives {"removed": bool, "alive": names of living processes}.
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
    ATTEMPT_FOLDER,
    FILE_NAME_PATTERN,
    JOB_FIELDS,
    JOURNAL_FIELDS,
    MIN_LOG_ANSWER_BYTES,
    REQUIRED_JOURNAL_FIELDS,
    Odd,
    attempt_folder,
    checked_fields,
    node_in_name,
    serial_of,
    verify_journal_place,
)
from runbook.node.own_files import (
    KEPT_FILE,
    WHY_STOPPED,
    expanded_path,
    is_own_folder,
    names_in_folder,
    open_own_file,
    read_json_object,
    read_stop_reason,
    require_own_folder,
    require_safe_path,
    write_atomically,
)
from runbook.node.proc import (
    SLURM_JOB_VARIABLE,
    all_pids,
    boot_id,
    boot_time,
    digits_as_integer,
    process_environment,
    process_start_ticks,
    process_stat,
    process_uid,
    process_variable,
    signal_processes,
    sleep_seconds,
)
from runbook.node.tools import run_if_installed
from runbook.node.training_steps import USUAL_STEP_PATTERN, step_in_line

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from re import Pattern
    from typing import Any, BinaryIO

    from runbook.node.journal import DocumentFields
    from runbook.transport.node_answers import CleanAnswer, KeptAnswer, Listed, ListedJob, Prepared, Watched

    Living = dict[tuple[str, str, str], list[int]]
    """The pids of living processes, by job, attempt and name."""

LOG_END_BYTES = 16 * 1024  # bytes at each end of a log in which steps are looked for
IMPORT_LINE = re.compile(r"^[ \t]*(?:from|import)[ \t]+([A-Za-z_][\w.]{0,200})", re.MULTILINE)
MAX_HASHED_MODULES, MAX_SEARCHED_BYTES = 64, 1 << 20  # modules that are hashed, and bytes searched for imports
KEEPER_EXIT_TIMEOUT_S = 2.0  # seconds that a keeper may take to end after it recorded the end of its process


def look(arguments: dict[str, Any]) -> Any:
    return ORDERS[arguments["do"]](arguments)


# Orders.


def prepare(order: dict[str, Any]) -> Prepared:
    folder = require_own_job_folder(order["folder"], 2)
    attempt = os.path.join(folder, order["attempt"])
    try:
        os.mkdir(attempt, 0o700)
    except FileExistsError:
        require_own_folder(attempt)
    write_atomically(os.path.join(folder, KEPT_FILE), "")
    write_atomically(os.path.join(folder, "job.json"), json.dumps(order["about"]))
    alive = living_processes()
    mine, theirs = [], []
    gpus = set(order["about"].get("gpus") or ())
    for other in possible_job_folders(folder, alive):
        for facts in all_journals(other, alive)[0]:
            if facts["lives"] and other == folder:
                mine.append(facts)
            elif facts["lives"] and gpus & set(facts.get("gpus") or ()) and not is_in_other_slurm_job(facts["keeper"]):
                theirs.append(facts)
    paths = order.get("hash", ())
    modules = sorted({module for path in paths for module in imported_modules_beside(path)})[:MAX_HASHED_MODULES]
    hashes = {path: file_sha256(path) for path in paths}
    return {"alive": mine, "gpus": theirs, "sha256": hashes, "beside": {path: file_sha256(path) for path in modules}}


def is_in_other_slurm_job(keeper: int) -> bool:
    """Whether a keeper runs in another Slurm job than this program: each Slurm job numbers its own GPUs from 0."""
    ours, its = os.environ.get(SLURM_JOB_VARIABLE), process_variable(keeper, SLURM_JOB_VARIABLE)
    return ours is not None and its is not None and its != ours


def watch(order: dict[str, Any]) -> Watched:
    folder, offsets = require_own_job_folder(order["folder"], 3), order.get("at") or {}
    deadline = time.monotonic() + order.get("wait_s", 0.0)
    while folder_fingerprint(folder) == order.get("seen") and time.monotonic() < deadline:
        sleep_seconds(0.03)
    seen = folder_fingerprint(folder)
    kept, _ = attempt_journals(folder, living_processes() if order.get("look") else None)
    read, sizes, steps = {}, {}, {}
    for name in names_in_folder(folder):
        try:
            if name.endswith(".step"):
                with open_log(folder, name) as file:
                    steps[name] = file.read(64).decode("utf-8", "replace").strip()
            elif name.endswith((".out", ".err")):
                with open_log(folder, name) as file:
                    sizes[name] = os.fstat(file.fileno()).st_size
        except OSError:
            continue
    longer = [name for name in sizes if name in offsets and sizes[name] > offsets[name]]
    for name in longer:
        try:
            with open_log(folder, name) as file:
                file.seek(offsets[name])
                # An equal part for each log: a process that writes without end must not delay the others' lines.
                data = file.read(max(MIN_LOG_ANSWER_BYTES, order["most"] // len(longer)))
            read[name] = base64.b64encode(data).decode()
        except OSError:
            continue
    # `read` holds base64 here; the controller's type says bytes.
    return {
        "kept": kept,
        "read": read,  # type: ignore[typeddict-item]
        "size": sizes,
        "steps": steps,
        "seen": seen,
        "time": time.time(),
    }


def stop(order: dict[str, Any]) -> KeptAnswer:
    folder = require_own_job_folder(order["folder"], 3)
    alive = living_processes()
    found, damaged = attempt_journals(folder, alive)
    leave_stop_reason(folder, order, found)
    for facts in found:
        signal_processes([facts["keeper"]] if facts["keeper_lives"] else living_pids(facts, alive), signal.SIGTERM)
    signal_processes_without_journal(damaged, signal.SIGTERM)
    return {"kept": found}


def leave_stop_reason(folder: str, order: dict[str, Any], found: Iterable[DocumentFields]) -> None:
    """Leaves the reason of the end for the keepers, and for readers of a killed keeper's journal. The first reason
    stays. None is left if no keeper lives: those processes ended for another reason."""
    if order.get("why") and any(facts["keeper_lives"] for facts in found) and not read_stop_reason(folder):
        try:
            write_atomically(os.path.join(folder, WHY_STOPPED), order["why"])
        except OSError:
            pass  # no room, or the folder is gone: the processes are ended all the same


def kill(order: dict[str, Any]) -> KeptAnswer:
    folder = require_own_job_folder(order["folder"], 3)
    deadline = time.monotonic() + 5.0
    while True:
        alive = living_processes()
        chosen, damaged = attempt_journals(folder, alive)
        leave_stop_reason(folder, order, chosen)
        for facts in chosen:
            signal_processes([facts["keeper"]] if facts["keeper_lives"] else [], signal.SIGKILL)
            signal_processes(living_pids(facts, alive), signal.SIGKILL)
        signal_processes_without_journal(damaged, signal.SIGKILL)
        lives = any(facts["lives"] for facts in chosen) or any(one["pids"] for one in damaged)
        if not lives or time.monotonic() > deadline:
            return {"kept": chosen}
        sleep_seconds(0.02)


def list_jobs(order: dict[str, Any]) -> Listed:
    workdir = expanded_path(order["workdir"])
    require_safe_path(workdir)
    alive = living_processes()
    jobs: list[ListedJob] = []
    used: list[tuple[str, DocumentFields, Pattern[str]]] = []
    for folder in folders_of_jobs(workdir, order["node"]):
        job, node = job_and_node(folder)
        if order.get("job") not in (None, job):
            continue
        about: DocumentFields = {"job": job, "node": node}
        damaged: list[DocumentFields] = []
        try:
            found = checked_fields(read_json_object(os.path.join(folder, "job.json")), JOB_FIELDS, ("job", "node"))
            for field, here in about.items():
                if found[field] != here:
                    raise Odd(field, found[field], "`%s`" % here)
            about = found
        except (OSError, ValueError) as error:
            damaged.append(damaged_file_facts("job.json", error))
        attempts: dict[str, list[DocumentFields]] = {}
        finds = step_pattern(about)
        for name in sorted(attempts_of(folder), key=serial_of, reverse=True):
            path, latest = os.path.join(folder, name), not attempts
            attempts[name], bad = attempt_journals(path, alive)
            damaged += bad
            used += [(path, facts, finds) for facts in attempts[name] if latest or facts["lives"]]
        jobs.append({"about": about, "folder": folder, "attempts": attempts, "damaged": damaged})
    gone = removed_job_folders(workdir, order["node"], alive)
    jobs += [job_without_files(folder, alive) for folder in gone if order.get("job") in (None, job_and_node(folder)[0])]
    gpus = gpu_memory() if any(facts["lives"] and facts.get("gpus") for _, facts, _ in used) else {}
    for path, facts, finds in used:
        facts["use"] = {**resource_use(alive.get(journal_key(facts), ()), gpus), **step_progress(path, facts, finds)}
    return {"jobs": jobs, "time": time.time()}


def job_without_files(folder: str, alive: Living) -> ListedJob:
    """The description of a job of which processes live although somebody has removed its files."""
    job, node = job_and_node(folder)
    removed: DocumentFields = {"name": "job.json", "why": "the job's files were removed", "pids": []}
    return {
        "about": {"job": job, "node": node},
        "folder": folder,
        "attempts": {name: [] for name in living_attempts(folder, alive)},
        "damaged": [removed, *all_journals(folder, alive)[1]],
    }


def clean(order: dict[str, Any]) -> CleanAnswer:
    folder = require_own_job_folder(order["folder"], 2)
    deadline = time.monotonic() + KEEPER_EXIT_TIMEOUT_S
    while True:
        found, damaged = all_journals(folder, living_processes())
        left = [facts for facts in found if facts["lives"] or facts["keeper_lives"]]
        unknown = [one["name"] for one in damaged if one["pids"]]
        going = not unknown and all(facts["state"] == "ended" and not facts["lives"] for facts in left)
        if not (left and going) or time.monotonic() > deadline:
            break
        sleep_seconds(0.02)
    if left or unknown:
        return {"removed": False, "alive": [facts["name"] for facts in left] + unknown}
    for facts in found:
        if facts.get("barrier"):
            remove_barrier_folder(facts["barrier"], facts["job"], os.path.dirname(os.path.dirname(folder)))
    for name in attempts_of(folder):
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
    for name in ("job.json", KEPT_FILE):
        try:
            os.remove(os.path.join(folder, name))
        except OSError:
            pass
    if order.get("whole"):
        shutil.rmtree(folder, ignore_errors=True)
        remove_empty_folder(os.path.dirname(folder))
    return {"removed": not os.path.lexists(folder) if order.get("whole") else True, "alive": []}


def remove_barrier_folder(folder: str, job: str, workdir: str) -> None:
    """Removes the folder in which the nodes of one attempt met; any other folder that a journal names is left alone."""
    name = os.path.basename(folder)
    if not name.startswith(job + ".attempt-") or not FILE_NAME_PATTERN.match(name) or not is_own_folder(folder):
        return
    for entry in names_in_folder(folder):
        if entry in ("go", "abort") or entry.endswith(".ready") or entry.startswith("."):
            try:
                os.remove(os.path.join(folder, entry))
            except OSError:
                pass
    remove_empty_folder(folder)
    remove_empty_folder(os.path.dirname(folder), os.path.join(workdir, "barrier"))


# Journals.


def require_own_job_folder(folder: str, depth: int) -> str:
    """The folder, if it and the folders up to the workdir, which is `depth` levels above, are this user's. A folder
    that does not exist is safe. Raises NotSafe."""
    above, inner = folder, []
    for _ in range(depth):
        inner.append(above)
        above = os.path.dirname(above)
    require_safe_path(above)
    for one in reversed(inner):
        try:
            require_own_folder(one)
        except FileNotFoundError:
            break
    return folder


def folders_of_jobs(workdir: str, node: str) -> list[str]:
    """`workdir/JOB/NODE` of each of this user's jobs on this node; other users may share the workdir."""
    return [path for job in names_in_folder(workdir) if (path := job_folder(workdir, job, node))]


def job_folder(workdir: str, job: str, node: str) -> str | None:
    """`workdir/JOB/NODE`, if this user has such a job; else None."""
    above = os.path.join(workdir, job)
    path = os.path.join(above, node)
    if not (
        FILE_NAME_PATTERN.match(job) and FILE_NAME_PATTERN.match(node) and is_own_folder(above) and is_own_folder(path)
    ):
        return None
    return path if os.path.lexists(os.path.join(path, "job.json")) else None


def removed_job_folders(workdir: str, node: str, alive: Living) -> list[str]:
    """`workdir/JOB/NODE` of the jobs of which processes live on this node although somebody has removed their files."""
    found = set()
    for (job, serial, name), those in alive.items():
        folder = os.path.join(workdir, job, node)
        if (
            node_in_name(name) != node
            or not FILE_NAME_PATTERN.match(job)
            or os.path.lexists(os.path.join(folder, "job.json"))
        ):
            continue
        for attempt in living_attempts(folder, {(job, serial, name): those}):
            steps = os.path.join(folder, attempt, name + ".step")
            if any(
                process_variable(pid, "RUNBOOK_PROGRESS") == steps for pid in those
            ):  # otherwise its workdir is another
                found.add(folder)
    return sorted(found)


def living_attempts(folder: str, alive: Living) -> list[str]:
    """The names of a job's attempts of which processes live, whether or not the attempts have files."""
    place = job_and_node(folder)
    return sorted(
        {
            attempt_folder(int(serial))
            for job, serial, name in alive
            if (job, node_in_name(name)) == place and digits_as_integer(serial) is not None
        }
    )


def possible_job_folders(folder: str, alive: Living) -> list[str]:
    """The folders of jobs of which processes may live here: those of this node, and of nodes that are the same machine.
    A workdir that a thousand nodes share has folders of all of them, so not all are looked at."""
    above, node = os.path.split(folder)
    workdir = os.path.dirname(above)
    others = (job_folder(workdir, job, node_in_name(name)) for job, _, name in alive)
    return sorted({*folders_of_jobs(workdir, node), *filter(None, others)})


def job_and_node(folder: str) -> tuple[str, str]:
    """The job and the node of a job's folder."""
    above, node = os.path.split(folder)
    return os.path.basename(above), node


def attempts_of(folder: str) -> list[str]:
    return [
        name
        for name in names_in_folder(folder)
        if ATTEMPT_FOLDER.match(name) and is_own_folder(os.path.join(folder, name))
    ]


def all_journals(folder: str, alive: Living) -> tuple[list[DocumentFields], list[DocumentFields]]:
    """The journals of all attempts of a job, and the damaged ones."""
    found, damaged = [], []
    for name in sorted({*attempts_of(folder), *living_attempts(folder, alive)}):
        good, bad = attempt_journals(os.path.join(folder, name), alive)
        found += good
        damaged += bad
    return found, damaged


def attempt_journals(folder: str, alive: Living | None = None) -> tuple[list[DocumentFields], list[DocumentFields]]:
    """The journals of an attempt; with `alive`, also whether processes of each live now. And what is damaged: journals
    that are not valid, and living processes without a journal."""
    attempt = os.path.basename(folder)
    job, node = job_and_node(os.path.dirname(folder))
    why = read_stop_reason(folder)
    found, damaged = [], []

    def written(name: str) -> DocumentFields:
        facts: DocumentFields = verify_journal_place(
            checked_fields(read_json_object(os.path.join(folder, name)), JOURNAL_FIELDS, REQUIRED_JOURNAL_FIELDS),
            node,
            job,
            attempt,
        )
        if facts["name"] + ".json" != name:
            raise Odd("name", facts["name"], "that of its file")
        return facts

    for name in names_in_folder(folder):
        if not name.endswith(".json"):
            continue
        try:
            facts = written(name)
            keeper_lives = alive is None or is_same_process(facts["keeper"], facts.get("keeper_born"))
            if not keeper_lives and facts["state"] != "ended":
                facts = written(name)  # the keeper may have recorded the end between the reading and its own end
            if facts["state"] != "ended":  # a keeper that is killed does not record why
                facts["why"] = facts.get("why") or why or None
            if alive is not None:
                # Its pid counts as well: a program may have written over its environment, as programs do that change
                # their title.
                facts["lives"] = bool(alive.get(journal_key(facts))) or is_same_process(
                    facts.get("pid"), facts.get("born")
                )
                facts["keeper_lives"] = keeper_lives
                facts["restarted"] = restart_time(facts)
            found.append(facts)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            damaged.append(damaged_file_facts(name, error, attempt))
    if alive is None:
        return found, damaged
    told, serial = {journal_key(facts) for facts in found}, str(serial_of(attempt))
    for kept, those in alive.items():
        name = kept[2]
        if kept in told or kept[:2] != (job, serial) or node_in_name(name) != node or not FILE_NAME_PATTERN.match(name):
            continue
        ours = [pid for pid in those if process_uid(pid) == os.getuid()]
        mine = [one for one in damaged if one["name"] == os.path.join(attempt, name + ".json")]
        if mine:
            mine[0]["pids"] = ours
        elif ours:
            damaged.append({"name": os.path.join(attempt, name), "why": "it lives, and has no journal", "pids": ours})
    return found, damaged


def restart_time(facts: DocumentFields) -> float | None:
    """When this machine was started, if that was after the journal's process was started; else None."""
    if facts.get("boot") in (None, boot_id()):
        return None
    since = boot_time()
    # If it was started earlier, the journal is another machine's, which shares the home folder.
    return since if since is not None and since > (facts.get("started") or 0.0) else None


def damaged_file_facts(name: str, error: Exception, attempt: str = "") -> DocumentFields:
    """The facts about a file that cannot be read."""
    why = error.strerror if isinstance(error, OSError) else str(error)
    shown = name.encode("utf-8", "replace").decode("utf-8", "replace")
    return {"name": os.path.join(attempt, shown), "why": str(why or error)[:1000], "pids": []}


def open_log(folder: str, name: str) -> BinaryIO:
    """A log of a process, open for reading. A link must lead to a launcher's log in the same folder. Raises OSError."""
    path = os.path.realpath(os.path.join(folder, name))
    if not path.startswith(os.path.realpath(folder) + "/"):
        raise OSError("it leads out of its folder")
    return open_own_file(path, strict=False)


def step_pattern(about: DocumentFields) -> Pattern[str]:
    """The pattern that finds the number of a step in a job's lines: the job's own if it is valid, else
    USUAL_STEP_PATTERN."""
    try:
        return re.compile(about.get("progress") or USUAL_STEP_PATTERN)
    except (re.error, RecursionError, OverflowError):
        return USUAL_STEP_PATTERN


def step_progress(folder: str, facts: DocumentFields, finds: Pattern[str]) -> dict[str, float]:
    """The highest step that a process, or a rank that it started, reported, the seconds since then, and the first step;
    empty if there was none."""
    told = []
    for name in [facts["name"]] + (facts.get("each") or []):
        for end in (".step", ".out", ".err"):
            try:
                with open_log(folder, name + end) as file:
                    age = max(0.0, time.time() - os.fstat(file.fileno()).st_mtime)
                    first, last = (first_step(part, end, finds) for part in head_and_tail_lines(file))
            except OSError:
                continue
            if last is not None:
                told.append((last, -age, first))
    if not told:
        return {}
    last, age, first = max(told, key=lambda one: one[:2])
    return {"step": last, "step_age_s": -age, "first_step": last if first is None else first}


def head_and_tail_lines(file: BinaryIO) -> tuple[list[str], list[str]]:
    """The lines in the first LOG_END_BYTES of a file, and those in its last LOG_END_BYTES, the last line first."""
    first = file.read(LOG_END_BYTES)
    file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_END_BYTES))
    last = file.read(LOG_END_BYTES)
    begin, end = (part.decode("utf-8", "replace").splitlines() for part in (first, last))
    return begin, end[::-1]


def first_step(lines: list[str], end: str, finds: Pattern[str]) -> int | None:
    """The first step that these lines show, or None. `end` is the ending of their file."""
    found = (digits_as_integer(line.strip()) if end == ".step" else step_in_line(line, finds) for line in lines)
    return next((step for step in found if step is not None), None)


def folder_fingerprint(folder: str) -> list[Any]:
    """Name, size and time of the last write of every file in a folder: changes with every journal and every output."""
    seen = []
    for name in names_in_folder(folder):
        try:
            status = os.stat(os.path.join(folder, name))
            seen.append([name, status.st_size, status.st_mtime_ns])
        except OSError:
            continue
    return seen


# Processes.


def journal_key(facts: DocumentFields) -> tuple[str, str, str]:
    """The key of a journal in `Living`."""
    return facts["job"], str(facts["attempt"]), facts["name"]


def living_processes() -> Living:
    """The living processes of all jobs: the kept ones and all that they started, also those that left their session."""
    found: Living = {}
    for pid in all_pids():
        try:
            words = process_environment(pid)
        except OSError:
            continue  # another user's, or gone
        tags = dict(word.partition(b"=")[::2] for word in words if word.startswith(b"RUNBOOK_"))
        if b"RUNBOOK_KEPT" not in tags or process_start_ticks(pid) is None or process_uid(pid) != os.getuid():
            continue  # root sees the processes of all users, and they may name themselves as they like
        job, attempt, kept = (
            tags.get(b"RUNBOOK_" + word, b"").decode("utf-8", "replace") for word in (b"JOB", b"ATTEMPT", b"KEPT")
        )
        found.setdefault((job, attempt, kept), []).append(pid)
    return found


def living_pids(facts: DocumentFields, alive: Living) -> set[int]:
    """The pids of the living processes that belong to a journal."""
    pids = set(alive.get(journal_key(facts), ()))
    return pids | ({facts["pid"]} if is_same_process(facts.get("pid"), facts.get("born")) else set())


def is_same_process(pid: int | None, its_born: int | None) -> bool:
    """Whether the process with this pid lives, was started at `its_born` (ticks since boot), and is this user's."""
    return (
        pid is not None
        and its_born is not None
        and process_start_ticks(pid) == its_born
        and process_uid(pid) == os.getuid()
    )


def gpu_memory() -> dict[int, int]:
    """Bytes of GPU memory by pid, as far as nvidia-smi shows them."""
    said = run_if_installed(
        "nvidia-smi", ["--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], 3.0
    )
    found: dict[int, int] = {}
    for line in said.get("out", "").splitlines():
        pid, _, size = line.partition(",")
        if pid.strip().isdecimal() and size.strip().isdecimal():
            found[int(pid)] = found.get(int(pid), 0) + int(size) * 1024 * 1024
    return found


def resource_use(those: Iterable[int], gpus: dict[int, int]) -> dict[str, float | None]:
    """What these processes use: CPU seconds so far, resident bytes, their number, and bytes of GPU memory (None: not
    known)."""
    hertz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    seen = [found for found in map(process_stat, those) if found]
    return {
        "cpu_s": sum(one.ticks for one in seen) / hertz,
        "rss": sum(one.pages for one in seen) * page,
        "processes": len(seen),
        "gpu_bytes": sum(gpus.get(pid, 0) for pid in those) if gpus else None,
    }


def signal_processes_without_journal(damaged: list[DocumentFields], number: int) -> None:
    """Signals the living processes without a journal."""
    for one in damaged:
        signal_processes(one["pids"], number)


# Files.


def remove_empty_folder(folder: str, only: str | None = None) -> None:
    """Removes a folder if it is empty. With `only`, the folder has to be that one: any other is not ours to remove."""
    try:
        if only is None or folder == only:
            os.rmdir(folder)
    except OSError:
        pass


def file_sha256(path: str) -> str | None:
    try:
        with open(expanded_path(path), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def imported_modules_beside(path: str) -> set[str]:
    """The paths of the modules that a Python file imports from its own folder: `model.py`, `data/__init__.py`."""
    try:
        with open(expanded_path(path), encoding="utf-8", errors="replace") as file:
            text = file.read(MAX_SEARCHED_BYTES)
    except OSError:
        return set()
    found = set()
    for name in IMPORT_LINE.findall(text):
        parts = name.split(".")
        for depth in range(1, len(parts) + 1):
            stem = os.path.join(os.path.dirname(path), *parts[:depth])
            found |= {one for one in (stem + ".py", stem + "/__init__.py") if os.path.isfile(expanded_path(one))}
    return found - {path}


ORDERS = {"prepare": prepare, "watch": watch, "stop": stop, "kill": kill, "list": list_jobs, "clean": clean}
