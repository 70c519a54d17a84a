"""Keeps one process of a job: starts it on an order, records how it ended, and ends it when it is no longer wanted.

There is one keeper for each process that a launch script starts: a rank, or a launcher that starts the ranks of its
node. The output of the process goes straight into files, so that no network and no reader can stall it or lose a line.
The journal beside them records all that has to be known about the process later, so that any reader (the same
controller, another one, another machine) can go on from there.

Argument: JSON with
  argv, folder (of the attempt, where logs and journal go), name (of these files, without an ending),
  job, attempt, node, ranks [int], local_rank, gpus,
  each, logs  names of the files of the ranks that the process starts, and the folder where torchrun writes these,
  stacks      the folder of stack_on_signal.py, or null,
  grace_s     seconds that the process may take to end after TERM,
  detached    false: the end of stdin ends the process; true: only a signal to the keeper does,
  barrier     null: wait for `go` on stdin; or {"folder", "token", "node", "nodes", "first", "owner", "timeout_s"}:
              the journal then has that folder, the file system on which it lies, and the nodes that were met there.
Stdin: `go AT` starts the process at that time of this node's clock; `stop SECONDS WHY` ends it.
Stdout: one message a change: ready, running, ended.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time

from runbook.node.journal import (
    BARRIER_FOLDER_WHY_PREFIX,
    BARRIER_WHY_PREFIX,
    OOM_KILLS_INTERVAL_S,
    SIGNAL_WHY_PREFIX,
)
from runbook.node.message import write_message
from runbook.node.own_files import (
    expanded_path,
    names_in_folder,
    read_json_object,
    read_stop_reason,
    require_own_folder,
    require_safe_path,
    write_atomically,
)
from runbook.node.proc import (
    boot_id,
    descendant_pids,
    group_kills,
    kernel_kills,
    process_start_ticks,
    signal_processes,
    sleep_seconds,
    tagged_pids,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, BinaryIO

JOB_VARIABLE_PREFIX = "RUNBOOK_"  # the prefix of the variables by which processes of a job are known
BUSY_WAIT_S = 0.005  # seconds of busy waiting before the start
SWEEP_TIMEOUT_S = 5.0  # seconds that killed processes may take to end
POLL_INTERVAL_S = 0.2
BARRIER_INTERVAL_S = 0.1  # seconds between two looks at the barrier
FULL_RATE_NODES = 64
"""With more nodes than this, each looks less often at the barrier: one file server answers all of them."""
OWNER_TIMEOUT_S = 10.0  # seconds beyond the timeout, for the owner's `go` or `abort`


class Journal:
    """The facts about the process, in a file that is always complete; only on a full disk it is written over."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.path = os.path.join(order["folder"], order["name"] + ".json")
        self.lock = threading.Lock()
        self.facts: dict[str, Any] = {
            key: order.get(key)
            for key in ("name", "job", "attempt", "node", "ranks", "local_rank", "gpus", "each", "detached")
        }
        self.facts.update(keeper=os.getpid(), keeper_born=process_start_ticks(os.getpid()), boot=boot_id())
        if order.get("barrier"):
            self.facts.update(barrier=Barrier(order["barrier"]).folder, met=[])

    def note(self, **facts: Any) -> None:
        """Remembers facts that the next change of state reports as well."""
        with self.lock:
            self.facts.update(facts)

    def write(self, state: str, **facts: Any) -> None:
        """Changes the state, writes the journal, and reports it."""
        with self.lock:
            self.facts.update(facts, state=state)
            self.facts.pop("no_room", None)
            try:
                write_atomically(self.path, json.dumps(self.facts))
            except OSError as error:  # a full disk must not end the keeper, which ends the rank
                if error.errno in (errno.ENOSPC, errno.EDQUOT):
                    self.facts["no_room"] = error.strerror
                overwrite_file(self.path, json.dumps(self.facts))
            report_to_supervisor(dict(self.facts, event="kept"))


def report_to_supervisor(told: dict[str, Any]) -> None:
    try:
        write_message(told)
    except OSError:
        pass  # the supervisor is gone; the journal has all facts


class Keeper:
    """Starts, watches and ends the one process. Events from all threads arrive in `news`."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.journal = Journal(order)
        self.news: queue.SimpleQueue[tuple[Any, ...]] = queue.SimpleQueue()
        self.process: subprocess.Popen[bytes] | None = None
        self.finished: float | None = None
        self.kills = Kills()
        self.tags = {
            JOB_VARIABLE_PREFIX + "JOB": order["job"],
            JOB_VARIABLE_PREFIX + "ATTEMPT": str(order["attempt"]),
            JOB_VARIABLE_PREFIX + "KEPT": order["name"],
        }

    @property
    def kept(self) -> subprocess.Popen[bytes]:
        """The process, once it has been started."""
        assert self.process is not None
        return self.process

    def keep(self) -> None:
        """Waits for events and carries them out, until the process has ended or is not wanted any more."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.signalled)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if self.order["detached"] else self.signalled)
        self.journal.write("waiting", pid=None, born=None, code=None, started=None, ended=None, why=None, left=[])
        threading.Thread(target=self.listen, daemon=True).start()
        if self.order.get("barrier"):
            threading.Thread(target=self.meet, daemon=True).start()
        while True:
            what, *more = self.next()
            if what == "go":
                if self.process is None:
                    self.start(*more)
            elif what == "stop":
                return self.stop(*more)
            elif what == "alone":
                waits = self.process is None and not self.order.get("barrier")
                if waits or not self.order["detached"]:
                    return self.stop(self.order["grace_s"], "the controller is gone")
            elif what == "ended":
                return self.ended(None)

    # Events.

    def next(self) -> tuple[Any, ...]:
        while True:
            try:
                return self.news.get(timeout=OOM_KILLS_INTERVAL_S)
            except queue.Empty:
                self.kills.look()

    def signalled(self, number: int, _frame: object) -> None:
        self.news.put(
            ("stop", self.order["grace_s"], read_stop_reason(self.order["folder"]) or SIGNAL_WHY_PREFIX + str(number))
        )

    def listen(self) -> None:
        """Takes orders from stdin; the end of stdin ends the process, unless it is detached."""
        for line in sys.stdin:
            words = line.split(None, 2)
            if words[:1] == ["go"]:
                self.news.put(("go", float(words[1])))
            elif words[:1] == ["stop"]:
                self.news.put(("stop", float(words[1]), words[2].strip() if len(words) > 2 else "requested"))
        self.news.put(("alone",))

    def meet(self) -> None:
        """Waits at the barrier of files: every node says that it is ready; the owner says go, or names absent nodes."""
        barrier = Barrier(self.order["barrier"])
        absent = barrier.pass_through(
            lambda met: self.journal.note(met=met, met_on=mounted_file_system(barrier.folder))
        )
        if absent is None:
            self.news.put(("go", 0.0))
        else:
            self.news.put(("stop", 0.0, BARRIER_WHY_PREFIX + absent))

    def watch_siblings(self) -> None:
        """Ends the process when another process of this node fails. A detached job has no controller that does it."""
        me = self.order["name"] + ".json"
        while self.kept.poll() is None:
            sleep_seconds(5 * POLL_INTERVAL_S)
            for entry in names_in_folder(self.order["folder"]):
                if entry.endswith(".json") and entry != me and has_failed(os.path.join(self.order["folder"], entry)):
                    self.news.put(("stop", self.order["grace_s"], entry[:-5] + " failed"))
                    return

    # The process.

    def start(self, at: float) -> None:
        """Starts the process at this time of the node's clock."""
        sleep_seconds(max(0.0, min(60.0, at - time.time()) - BUSY_WAIT_S))
        while time.time() < at and at - time.time() < 60.0:
            pass  # a busy wait: the scheduler's timer is too coarse for the last milliseconds
        order = self.order
        environment = {name: value for name, value in os.environ.items() if name != JOB_VARIABLE_PREFIX + "AGENT"}
        environment.update(self.tags)
        path = os.path.join(order["folder"], order["name"])
        environment["RUNBOOK_PROGRESS"] = path + ".step"
        environment.setdefault("PYTHONUNBUFFERED", "1")  # otherwise Python writes to a file only after each 8 KiB
        if order.get("stacks"):
            environment["RUNBOOK_STACKS"] = order["stacks"]  # the launch script puts it before any other PYTHONPATH
        adopts = become_subreaper()
        begun = time.time()
        try:
            with open_for_append(path + ".out") as out, open_for_append(path + ".err") as err:
                self.process = subprocess.Popen(
                    order["argv"],
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=out,
                    stderr=err,
                    start_new_session=True,
                    preexec_fn=None
                    if order["detached"]
                    else parent_death_signal_setter(launcher=bool(order.get("each"))),
                )
        except OSError as error:
            self.journal.write("ended", started=begun, ended=time.time(), code=127, why=str(error))
            sys.exit(0)
        self.journal.write("running", pid=self.kept.pid, born=process_start_ticks(self.kept.pid), started=begun)
        threading.Thread(target=self.wait, daemon=True).start()
        if adopts:
            threading.Thread(target=self.reap, daemon=True).start()
        if order.get("each"):
            threading.Thread(target=self.name_logs, daemon=True).start()
        if order["detached"]:
            threading.Thread(target=self.watch_siblings, daemon=True).start()

    def name_logs(self) -> None:
        """Links the logs of the ranks that a launcher started to the names that they would have without a launcher."""
        while not self.name_logs_now() and self.kept.poll() is None:
            sleep_seconds(POLL_INTERVAL_S / 4)

    def name_logs_now(self) -> bool:
        """Makes links to torchrun's logs, LOGS/ID_RANDOM/attempt_0/LOCAL_RANK/stdout.log; whether all links are
        there."""
        done, logs = 0, self.order["logs"]
        for local_rank, name in enumerate(self.order["each"]):
            for stream, end in (("stdout", ".out"), ("stderr", ".err")):
                link = os.path.join(self.order["folder"], name + end)
                for run in [] if os.path.islink(link) else names_in_folder(logs):
                    path = os.path.join(logs, run, "attempt_0", str(local_rank), stream + ".log")
                    if os.path.exists(path):
                        try:
                            os.symlink(path, link)
                        except OSError:
                            pass  # the other thread was first
                done += os.path.islink(link)
        return done == 2 * len(self.order["each"])

    def wait(self) -> None:
        self.kept.wait()
        self.finished = time.time()
        self.news.put(("ended",))

    def stop(self, grace_s: float, why: str) -> None:
        """Ends the process: TERM, the grace, KILL; or notes that it was never started."""
        if self.process is None:
            self.journal.write("ended", why=why, ended=time.time())
            return
        before, deadline = self.has_ended(), time.monotonic() + grace_s
        if not before:
            self.journal.write("stopping", why=why)
            self.signal(signal.SIGTERM)
            try:
                self.kept.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.signal(signal.SIGKILL)
        try:
            self.kept.wait(SWEEP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            pass  # in uninterruptible sleep: the journal says that the process is left
        self.ended(None if before else why, deadline)

    def has_ended(self) -> bool:
        """Whether the process has ended, even if the thread that waits for it, and so `poll`, has not noticed yet."""
        if self.kept.poll() is not None:
            return True
        try:
            return os.waitid(os.P_PID, self.kept.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        except ChildProcessError:
            return True
        except AttributeError:  # macOS before Python 3.13
            return False

    def ended(self, why: str | None, deadline: float | None = None) -> None:
        """Records how the process ended, and ends all that it started, within the same grace. Its children get TERM at
        once if it failed, as a launcher that is killed leaves its ranks behind, or if the job is to end."""
        code = self.kept.poll()
        if self.order.get("each"):
            self.name_logs_now()
        facts = {"code": code, "ended": self.finished or time.time(), "why": why, **self.kills.lately()}
        left = self.alive()
        self.journal.write("ended", left=left, **facts)
        if code != 0 or deadline is not None:
            signal_processes(left, signal.SIGTERM)
        if deadline is None:
            deadline = time.monotonic() + self.order["grace_s"]
        while left and time.monotonic() < deadline:
            try:
                what, *more = self.news.get(timeout=POLL_INTERVAL_S / 2)
                if what in ("stop", "alone"):
                    deadline = min(deadline, time.monotonic() + (more[0] if more else self.order["grace_s"]))
                    signal_processes(left, signal.SIGTERM)
            except queue.Empty:
                pass
            left = self.alive()
        deadline = time.monotonic() + SWEEP_TIMEOUT_S
        self.journal.note(swept=len(left))
        while left and time.monotonic() < deadline:
            signal_processes(left, signal.SIGKILL)
            sleep_seconds(0.02)
            left = self.alive()
        if left or self.journal.facts["left"]:
            self.journal.write("ended", left=left)

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.kept.pid, number)
        except OSError:
            pass

    def alive(self) -> list[int]:
        """The pids of this process's family that live: by inherited variables (also if they left the group), by session
        (also if they wrote over their environment), and by descent from this keeper (also if they left both)."""
        return sorted({*tagged_pids(self.tags, self.kept.pid), *descendant_pids(os.getpid())})

    def reap(self) -> None:
        """Reaps the orphans that this keeper adopts, until the process itself has ended."""
        while True:
            try:
                gone = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
                if gone is None or gone.si_pid == self.kept.pid:
                    return
                os.waitpid(gone.si_pid, 0)
            except ChildProcessError:
                return


class Kills:
    """How many processes the kernel killed for lack of memory lately: in the last one to two OOM_KILLS_INTERVAL_S. A
    kill days ago is not the reason why this process was killed. The time is that long because a large process takes
    long to end.
    """

    def __init__(self) -> None:
        self.before = self.since = self.now()

    def now(self) -> dict[str, int | None]:
        """The kernel's counts by the names of the journal's fields: of our control group, and of the whole node."""
        return {"group_kills": group_kills(), "node_kills": kernel_kills()}

    def look(self) -> None:
        self.before, self.since = self.since, self.now()

    def lately(self) -> dict[str, int | None]:
        more = {}
        for name, now in self.now().items():
            before = self.before[name]
            more[name] = None if now is None or before is None else max(0, now - before)
        return more


class Barrier:
    """A shared folder in which nodes meet without a controller. Its name is new for every attempt; the token in each
    file distinguishes it from a file that an older attempt left there. Files appear complete, by a rename."""

    def __init__(self, order: dict[str, Any]) -> None:
        self.order = order
        self.folder = expanded_path(order["folder"])

    def pass_through(self, met: Callable[[list[str]], object] = lambda names: None) -> str | None:
        """Waits until all nodes have come. None if they did; else, in words, which did not, or what prevented it. `met`
        is called with the nodes that have come, each time there are more."""
        order = self.order
        came = set()
        deadline = time.monotonic() + order["timeout_s"]
        try:
            os.makedirs(self.folder, 0o700, exist_ok=True)
            require_own_folder(self.folder)
            if order["first"]:
                self.put(order["node"] + ".ready")
            while True:
                names = set(os.listdir(self.folder))  # asks the file server anew, while stat() may be cached
                new = [
                    n
                    for n in order["nodes"]
                    if n not in came and n + ".ready" in names and (not order["owner"] or self.valid(n + ".ready"))
                ]
                if new:
                    came.update(new)
                    met([n for n in order["nodes"] if n in came])
                if "abort" in names and self.valid("abort"):
                    return str(self.read("abort").get("why") or "aborted")
                if "go" in names and self.valid("go"):
                    return None
                if order["owner"]:
                    absent = [n for n in order["nodes"] if n not in came]
                    if not absent:
                        self.put("go")
                        return None
                    if time.monotonic() > deadline:
                        why = "%s did not come within %g s" % (", ".join(absent), order["timeout_s"])
                        self.put("abort", why=why)
                        return why
                elif time.monotonic() > deadline + OWNER_TIMEOUT_S:
                    return "neither `go` nor `abort` came within %g s" % (order["timeout_s"] + OWNER_TIMEOUT_S)
                sleep_seconds(
                    BARRIER_INTERVAL_S
                    if order["owner"]
                    else BARRIER_INTERVAL_S * max(1.0, len(order["nodes"]) / FULL_RATE_NODES)
                )
        except OSError as error:
            return BARRIER_FOLDER_WHY_PREFIX + "%s: %s" % (self.folder, error.strerror or error)

    def put(self, name: str, **facts: str) -> None:
        partial = os.path.join(self.folder, ".%s.%d" % (name, os.getpid()))  # a node's files have its name
        with open(partial, "w") as file:
            json.dump(dict(facts, token=self.order["token"]), file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(partial, os.path.join(self.folder, name))

    def read(self, name: str) -> dict[str, Any]:
        try:
            with open(os.path.join(self.folder, name)) as file:
                found: object = json.load(file)
        except (OSError, ValueError, RecursionError):
            return {}
        return found if isinstance(found, dict) else {}

    def valid(self, name: str) -> bool:
        return bool(self.read(name).get("token") == self.order["token"])


def open_for_append(path: str) -> BinaryIO:
    """A file open for appending, with mode 0600; links are not followed."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600), "ab", 0)


def overwrite_file(path: str, text: str) -> None:
    """Writes over the contents of a file: on a full disk its own block can still be written, but no second file. A
    reader may find it half written, and reads again; otherwise it would never learn of the end."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW)
        with os.fdopen(descriptor, "w") as file:
            file.write(text)
            file.truncate()
    except OSError:
        pass


def has_failed(path: str) -> bool:
    try:
        facts = read_json_object(path)
        return bool(facts["state"] == "ended" and facts["code"] != 0)
    except (OSError, ValueError, KeyError):
        return False


def parent_death_signal_setter(launcher: bool) -> Callable[[], object] | None:
    """A function to call in the child, so that the kernel ends it when the keeper is killed (Linux; else None). A
    launcher gets TERM, since it has ranks to end; a rank gets KILL."""
    prctl = prctl_function()
    return prctl and (lambda: prctl(1, signal.SIGTERM if launcher else signal.SIGKILL))  # PR_SET_PDEATHSIG


def become_subreaper() -> bool:
    """Makes this keeper the parent of orphans among its descendants, which have no tag if they cleared their
    environment; whether the kernel can do that."""
    prctl = prctl_function()
    return prctl is not None and prctl(36, 1, 0, 0, 0) == 0  # PR_SET_CHILD_SUBREAPER


def prctl_function() -> Any | None:
    """The function prctl(2), on Linux; else None."""
    try:
        import ctypes

        return ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None


def mounted_file_system(path: str) -> str | None:
    """The file system on which a path lies, as the kernel names it: `server:/export (nfs4) at /shared` (Linux)."""
    found = None
    try:
        path = os.path.realpath(path)
        with open("/proc/self/mountinfo", errors="replace") as file:
            for line in file:
                fields, _, more = line.partition(" - ")
                point = fields.split()[4].replace("\\040", " ")
                if path == point or path.startswith(point.rstrip("/") + "/"):
                    if found is None or len(point) >= len(found[0]):
                        found = point, "%s (%s) at %s" % (more.split()[1], more.split()[0], point)
    except (OSError, IndexError):
        pass
    return found and found[1]


if __name__ == "__main__":
    order = json.loads(sys.argv[1])
    require_safe_path(order["folder"])
    Keeper(order).keep()
