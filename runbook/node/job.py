"""Looks after the jobs of this node by the journals of their keepers: what lives, what it wrote, and its end.

Argument: {"do": one of the orders below, ...}. A job's folder is `workdir/JOB/NODE`; in it lie `job.json`, a file KEPT
that saves the folder from being removed with the run, and `attempt-NN/` with a journal, an `.out` and an `.err` for each
kept process.

prepare  {"folder", "attempt", "about", "hash": [paths]}: makes the folders; gives {"alive": kept processes of this job
         that live from an earlier attempt, "gpus": those of other jobs with GPUs of ours, "sha256": {path: hash or None}}.
watch    {"folder": of an attempt, "at": {file: offset}, "seen": what it gave last, "wait_s", "most": bytes, "look": bool}:
         waits until there is news; gives {"kept": journals, "read": {file: base64}, "size": {file: bytes}, "seen", "time"};
         with `look`, which goes through all processes, the journals have `lives`, `keeper_lives` and `use`.
stop     {"folder": of an attempt, "grace_s", "why", "only": names or null}: TERM to the keepers, who end what they keep;
         what has no keeper any more is ended here.
kill     the same at once, and waits for it. Journals of both, and of all orders below, tell what `lives`.
list     {"workdir"}: the jobs of this workdir that this node knows: {"jobs": [{"about", "folder", "attempts": {name: [...]}}]}.
clean    {"folder": of the job}: removes it unless something lives; gives {"removed": bool, "alive": [...]}.
"""

import base64
import hashlib
import json
import os
import shutil
import signal
import threading
import time

from tool import find, run

KEPT = "KEPT"
ATTEMPT = "attempt-"
KEEPER_S = 2.0  # what a keeper may take to end after it wrote down the end of its process


def look(arguments):
    return ORDERS[arguments["do"]](arguments)


# Orders.


def prepare(order):
    folder = order["folder"]
    os.makedirs(os.path.join(folder, order["attempt"]), 0o700, exist_ok=True)
    with open(os.path.join(folder, KEPT), "w"):
        pass
    whole(os.path.join(folder, "job.json"), order["about"])
    alive = living()
    ours, theirs = [], []
    mine = set(order["about"].get("gpus") or ())
    for other in folders_of_jobs(os.path.dirname(os.path.dirname(folder))):
        for facts in all_journals(other, alive):
            if facts["lives"] and other == folder:
                ours.append(facts)
            elif facts["lives"] and mine & set(facts.get("gpus") or ()):
                theirs.append(facts)
    return {"alive": ours, "gpus": theirs, "sha256": {path: sha256(path) for path in order.get("hash", ())}}


def watch(order):
    folder, offsets = order["folder"], order.get("at") or {}
    deadline = time.monotonic() + order.get("wait_s", 0.0)
    while fingerprint(folder) == order.get("seen") and time.monotonic() < deadline:
        threading.Event().wait(0.03)
    seen = fingerprint(folder)
    kept = journals(folder, living() if order.get("look") else None)
    read, sizes = {}, {}
    for name in entries(folder):
        try:
            if name.endswith((".out", ".err")):
                sizes[name] = os.path.getsize(os.path.join(folder, name))
        except OSError:
            continue
    longer = [name for name in sizes if sizes[name] > offsets.get(name, 0)]
    for name in longer:
        try:
            with open(os.path.join(folder, name), "rb") as file:
                file.seek(offsets.get(name, 0))
                # An equal part for each: one that writes without end must not keep the others' lines back.
                data = file.read(max(4096, order.get("most", 1 << 18) // len(longer)))
            read[name] = base64.b64encode(data).decode()
        except OSError:
            continue
    return {"kept": kept, "read": read, "size": sizes, "seen": seen, "time": time.time()}


def stop(order):
    alive = living()
    chosen = [f for f in journals(order["folder"], alive) if order.get("only") is None or f["name"] in order["only"]]
    for facts in chosen:
        for pid in [facts["keeper"]] if facts["keeper_lives"] else left_of(facts, alive):
            send(pid, signal.SIGTERM)
    return {"kept": chosen}


def kill(order):
    deadline = time.monotonic() + 5.0
    while True:
        alive = living()
        chosen = journals(order["folder"], alive)
        for facts in chosen:
            if facts["keeper_lives"]:
                send(facts["keeper"], signal.SIGKILL)
            for pid in left_of(facts, alive):
                send(pid, signal.SIGKILL)
        if not any(facts["lives"] for facts in chosen) or time.monotonic() > deadline:
            return {"kept": chosen}
        threading.Event().wait(0.02)


def known(order):
    alive, jobs = living(), []
    for folder in folders_of_jobs(expanded(order["workdir"])):
        attempts = {
            name: journals(os.path.join(folder, name), alive) for name in entries(folder) if name.startswith(ATTEMPT)
        }
        jobs.append({"about": content(os.path.join(folder, "job.json")), "folder": folder, "attempts": attempts})
    return {"jobs": jobs, "time": time.time()}


def clean(order):
    folder = order["folder"]
    deadline = time.monotonic() + KEEPER_S
    while True:
        left = [facts for facts in all_journals(folder, living()) if facts["lives"] or facts["keeper_lives"]]
        going = all(facts["state"] == "ended" and not facts["lives"] for facts in left)
        if not (left and going) or time.monotonic() > deadline:
            break
        threading.Event().wait(0.02)
    if left:
        return {"removed": False, "alive": left}
    for facts in all_journals(folder, None):
        if facts.get("barrier"):  # where the nodes met: a folder of this attempt alone
            shutil.rmtree(facts["barrier"], ignore_errors=True)
            drop(os.path.dirname(facts["barrier"]), os.path.join(os.path.dirname(os.path.dirname(folder)), "barrier"))
    for name in entries(folder):
        if name.startswith(ATTEMPT):
            shutil.rmtree(os.path.join(folder, name), ignore_errors=True)
        elif name in ("job.json", KEPT):
            os.remove(os.path.join(folder, name))
    if order.get("whole"):
        shutil.rmtree(folder, ignore_errors=True)
        drop(os.path.dirname(folder))
    return {"removed": True, "alive": []}


# Journals.


def folders_of_jobs(workdir):
    """`workdir/JOB/NODE` of every job of this workdir."""
    found = []
    for job in entries(workdir):
        for node in entries(os.path.join(workdir, job)):
            path = os.path.join(workdir, job, node)
            if os.path.isfile(os.path.join(path, "job.json")):
                found.append(path)
    return found


def all_journals(folder, alive):
    """Those of all attempts."""
    attempts = [name for name in entries(folder) if name.startswith(ATTEMPT)]
    return [facts for name in attempts for facts in journals(os.path.join(folder, name), alive)]


def journals(folder, alive=None):
    """What the keepers of an attempt wrote; with `alive`, also whether anything of it lives now, and what that uses."""
    found = [content(os.path.join(folder, name)) for name in entries(folder) if name.endswith(".json")]
    found = [facts for facts in found if facts.get("name") and facts.get("keeper")]
    gpus = gpu_memory() if alive and any(facts.get("gpus") for facts in found) else {}
    for facts in found if alive is not None else ():
        pids = alive.get(key(facts), ())
        # By its number as well: a program may have written over its environment, as one does that changes its title.
        facts["lives"] = bool(pids) or same(facts.get("pid"), facts.get("born"))
        facts["keeper_lives"] = same(facts["keeper"], facts.get("keeper_born"))
        facts["use"] = use(pids, gpus)
    return found


def fingerprint(folder):
    """Changes with every journal and every byte of output."""
    seen = []
    for name in entries(folder):
        try:
            status = os.stat(os.path.join(folder, name))
            seen.append([name, status.st_size, status.st_mtime_ns])
        except OSError:
            continue
    return seen


# Processes.


def key(facts):
    return facts["job"], str(facts["attempt"]), facts["name"]


def living():
    """Living processes of all jobs by (job, attempt, name): the kept ones, what they started, and what left their session."""
    found = {}
    for name in entries("/proc"):
        if not name.isdigit():
            continue
        try:
            with open("/proc/%s/environ" % name, "rb") as file:
                words = file.read()
        except OSError:
            continue  # another user's, or gone
        if b"RUNBOOK_KEPT=" not in words:
            continue
        tags = dict(word.partition(b"=")[::2] for word in words.split(b"\0"))
        job, attempt, kept = (tags.get(b"RUNBOOK_" + word, b"").decode() for word in (b"JOB", b"ATTEMPT", b"KEPT"))
        if born(int(name)) is not None:
            found.setdefault((job, attempt, kept), []).append(int(name))
    return found


def left_of(facts, alive):
    """The processes of a journal that live."""
    pids = set(alive.get(key(facts), ()))
    return pids | ({facts["pid"]} if same(facts.get("pid"), facts.get("born")) else set())


def same(pid, its_born):
    """Whether the process of this number lives and is the one that was born then."""
    return pid is not None and its_born is not None and born(pid) == its_born


def gpu_memory():
    """Bytes of GPU memory by process, as far as nvidia-smi tells."""
    tool = find("nvidia-smi")
    if tool is None:
        return {}
    said = run([tool, "--query-compute-apps=pid,used_memory", "--format=csv,noheader,nounits"], 3.0)
    found = {}
    for line in said["out"].splitlines():
        pid, _, size = line.partition(",")
        if pid.strip().isdigit() and size.strip().isdigit():
            found[int(pid)] = found.get(int(pid), 0) + int(size) * 1024 * 1024
    return found


def use(pids, gpus):
    """CPU seconds so far, resident bytes, how many processes that are, and bytes of GPU memory (None: not told)."""
    hertz, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    fields = [found for found in map(stat, pids) if found]
    cpu = sum(int(one[11]) + int(one[12]) for one in fields) / hertz
    return {
        "cpu_s": cpu,
        "rss": sum(int(one[21]) for one in fields) * page,
        "processes": len(fields),
        "gpu_bytes": sum(gpus.get(pid, 0) for pid in pids) if gpus else None,
    }


def stat(pid):
    """The fields of /proc/PID/stat behind the name, or None."""
    try:
        with open("/proc/%d/stat" % pid, "rb") as file:
            return file.read().rpartition(b")")[2].split()
    except OSError:
        return None


def born(pid):
    """When a living process started, in ticks since boot."""
    fields = stat(pid)
    return int(fields[19]) if fields and fields[0] not in (b"Z", b"X") else None


def send(pid, number):
    try:
        os.kill(pid, number)
    except OSError:
        pass


# Files.


def entries(folder):
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def content(path):
    try:
        with open(path) as file:
            found = json.load(file)
        return found if isinstance(found, dict) else {}
    except (OSError, ValueError):
        return {}


def whole(path, facts):
    with open(path + ".partial", "w") as file:
        json.dump(facts, file)
    os.replace(path + ".partial", path)


def drop(folder, only=None):
    """Remove an empty folder; others may have something in it. With `only`, no other than that: the rest is not ours."""
    try:
        if only is None or folder == only:
            os.rmdir(folder)
    except OSError:
        pass


def sha256(path):
    try:
        with open(expanded(path), "rb") as file:
            return hashlib.sha256(file.read()).hexdigest()
    except OSError:
        return None


def expanded(path):
    return os.path.join(os.path.expanduser("~"), os.path.expanduser(path))


ORDERS = {
    "prepare": prepare,
    "watch": watch,
    "stop": stop,
    "kill": kill,
    "list": known,
    "clean": clean,
}
