"""The supervisor runs on a node only as long as the controller holds its end of the pipe.

It is sent over the wire and executed from memory; it needs Python 3.8 and the standard library. It speaks frames in
both directions: one JSON object a line, followed by a payload if the object has `bytes`, its length. Payloads from the
controller are compressed (zlib); payloads to the controller are not.

It keeps a promise: if stdin ends, or nothing arrives for `silence_s` seconds of its own time (a cut network gives no
EOF), every program that it started gets TERM, then KILL. Processes that left their process group are found by the run
id in their environment and killed as well. Then the run's folder is removed, and the supervisor ends. Two things are
left alone: a program that was started to be spared, which outlives the supervisor on purpose, and a folder with a file
KEPT in it, which holds logs that nobody has fetched yet.
"""

# Every import costs time on every node: hashlib and shutil are imported when they are needed.
from __future__ import annotations

import errno
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import types
import zlib

from runbook.node.own_files import KEPT_FILE, expanded_path, make_folders, require_own_folder, require_safe_path
from runbook.node.proc import (
    RUN_ID_VARIABLE,
    SLURM_JOB_VARIABLE,
    account_name,
    bounded_amount,
    signal_processes,
    sleep_seconds,
    tagged_pids,
    this_machine,
)

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

    from runbook.transport.node_answers import Failure, WorkdirFacts

    Frame = dict[str, Any]

SUPERVISOR_MARK = b"\x1erunbook-supervisor "
NODE_VARIABLE = "RUNBOOK_NODE"
SUPERVISOR_VARIABLE = "RUNBOOK_SUPERVISOR"
READ_CHUNK_BYTES = 65536  # bytes read at a time
REMOVAL_TIMEOUT_S = 5.0  # seconds that an earlier supervisor may take to remove its folder
SILENCE_POLL_INTERVAL_S = 0.25  # seconds between two looks for silence
# Seconds from the end of stdin within which a program that leads to another supervisor has to end.
CARRIER_EXIT_TIMEOUT_S = 6.0
# Seconds: a batch system that ends a job signals its processes, this one included, one after another.
OWN_SIGNAL_TIMEOUT_S = 1.0
# That wait is made in short turns: on a busy machine each takes longer, and leaves time to the thread with the signal.
OWN_SIGNAL_TURNS = 20
SIGNAL_ARRIVED = threading.Event()  # a signal has arrived

KILLED_EXIT_CODES = (
    -signal.SIGTERM,
    -signal.SIGKILL,
    128 + signal.SIGTERM,
    128 + signal.SIGKILL,
)  # exit codes after TERM or KILL


class Pipe:
    """Reads and writes frames. Each frame is written under a lock, because every program has its own reader thread."""

    def __init__(self) -> None:
        self.source: Any = sys.stdin.buffer
        self.sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb", 0)
        self.lock = threading.Lock()
        self.mute = False
        self.last_heard = time.monotonic()

    def read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self.source.read1(min(count, READ_CHUNK_BYTES))
            if not part:
                raise EOFError
            self.last_heard = time.monotonic()
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def receive(self) -> tuple[Frame, bytes] | None:
        """The next frame and its payload, or None at the end of the pipe."""
        line = self.source.readline()
        if not line.endswith(b"\n"):
            return None
        self.last_heard = time.monotonic()
        frame = json.loads(line)
        try:
            return frame, zlib.decompress(self.read(frame["bytes"])) if frame.get("bytes") else b""
        except EOFError:
            return None

    def send(self, frame: Frame, payload: bytes = b"") -> None:
        if payload:
            frame["bytes"] = len(payload)
        data = json.dumps(frame).encode() + b"\n" + payload
        with self.lock:
            view = memoryview(b"" if self.mute else data)
            while view:
                view = view[self.sink.write(view) or 0 :]


class Program:
    """One started program. It has its own session and process group; its output is pumped to the controller."""

    def __init__(self, pipe: Pipe, tags: dict[str, str], folder: str | None, frame: Frame) -> None:
        self.id = frame["id"]
        self.pipe = pipe
        self.spared = bool(frame.get("spare"))
        self.carries = bool(frame.get("carries"))
        self.grace = frame.get("grace", CARRIER_EXIT_TIMEOUT_S if self.carries else 0.0)
        environment = dict(os.environ)
        environment.update(frame.get("env") or {})
        environment.update(tags)
        for name in tags if self.spared else ():
            del environment[name]  # processes with these tags are ended with the supervisor
        self.process = subprocess.Popen(
            frame["argv"],
            cwd=frame.get("cwd") or folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.ended = threading.Event()  # the program itself has ended
        self.over = threading.Event()  # the program has ended, and all of its output has been sent
        self.timed_out = False
        self.stopped = False  # whether the supervisor stopped it
        self.streams = {1: self.process.stdout, 2: self.process.stderr}
        self.taking = threading.Lock()  # held while bytes are read from a stream and counted
        self.taken = {1: 0, 2: 0}
        self.sent = {1: 0, 2: 0}
        self.pumps = {
            number: threading.Thread(target=self.pump, args=(number,), daemon=True) for number in self.streams
        }
        pipe.send({"id": self.id, "event": "started", "pid": self.process.pid})
        threads = [*self.pumps.values(), threading.Thread(target=self.wait, daemon=True)]
        if frame.get("timeout") is not None:
            threads.append(threading.Thread(target=self.limit, args=(frame["timeout"],), daemon=True))
        try:
            for thread in threads:
                thread.start()
        except RuntimeError:  # the login may start no more threads, so this program could not be watched
            self.signal(signal.SIGKILL)
            raise

    def pump(self, number: int) -> None:
        """Sends the output of one stream to the controller until it ends."""
        stream: Any = self.streams[number]
        readable = select.poll()
        readable.register(stream, select.POLLIN)
        while True:
            readable.poll()
            with self.taking:
                data = stream.read1(READ_CHUNK_BYTES)
                self.taken[number] += len(data)
            if not data:
                return
            try:
                self.pipe.send({"id": self.id, "event": "output", "stream": number}, data)
            except OSError:
                return
            self.sent[number] += len(data)

    def limit(self, seconds: float) -> None:
        if not self.ended.wait(seconds):
            self.timed_out = True
            self.stop(1.0)

    def wait(self) -> None:
        """Waits for the end of the program, and reports it once all output has been sent."""
        code = self.process.wait()
        self.ended.set()
        # A grandchild may hold the pipes open for ever. The program's own output is in them by now; it is sent, however
        # long that takes on a busy machine.
        with self.taking:
            owed = {number: self.taken[number] + unread_bytes(stream) for number, stream in self.streams.items()}
        for number, pump in self.pumps.items():
            while pump.is_alive() and self.sent[number] < owed[number]:
                pump.join(0.1)
            pump.join(0.5)
        if code in KILLED_EXIT_CODES and not self.stopped and SLURM_JOB_VARIABLE in os.environ:
            for _ in range(OWN_SIGNAL_TURNS):
                if SIGNAL_ARRIVED.wait(OWN_SIGNAL_TIMEOUT_S / OWN_SIGNAL_TURNS):
                    break
        self.over.set()
        if SIGNAL_ARRIVED.is_set():
            return  # the same signal ends the supervisor and the program, so the end says nothing about the program
        try:
            self.pipe.send({"id": self.id, "event": "exit", "code": code, "timed_out": self.timed_out})
        except OSError:
            pass

    def feed(self, data: bytes, end: bool) -> None:
        stdin = self.process.stdin
        assert stdin is not None
        try:
            if data:
                stdin.write(data)
                stdin.flush()
            if end:
                stdin.close()
        except OSError:
            pass  # the program closed its stdin or is gone: its exit is reported

    def is_done(self) -> bool:
        """Whether the program is over, and no process that it started holds its pipes."""
        return self.over.is_set() and not any(pump.is_alive() for pump in self.pumps.values())

    def close(self) -> None:
        for stream in (self.process.stdin, *self.streams.values()):
            assert stream is not None
            try:
                stream.close()
            except OSError:
                pass  # unwritten input is lost: the program no longer reads

    def signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except OSError:
            pass

    def end(self) -> None:
        """Asks the program to end. A program that leads to another supervisor gets the end of its stdin instead of a
        signal, so that the other supervisor cleans up first."""
        if self.carries:
            # In a thread: a program that does not read blocks the writer.
            threading.Thread(target=self.feed, args=(b"", True), daemon=True).start()
        else:
            self.signal(signal.SIGTERM)

    def stop(self, grace: float) -> None:
        self.stopped = True
        self.signal(signal.SIGTERM)
        self.ended.wait(grace)
        self.signal(signal.SIGKILL)


class Supervisor:
    """Obeys the controller's orders, and ends everything that it started when the controller is gone."""

    def __init__(self) -> None:
        self.pipe = Pipe()
        self.programs: dict[int, Program] = {}
        self.compiled: dict[str, types.CodeType] = {}  # by source, the programs that were called
        self.tags: dict[str, str] = {}
        self.folder: str | None = None
        self.used: int | None = None
        self.keep = False
        self.silence_s = 6.0
        self.grace_s = 2.0
        self.ending = threading.Lock()

    def greet(self, config: Frame) -> None:
        """Makes the run's private folder and sends the hello frame."""
        self.tags = {RUN_ID_VARIABLE: config["run_id"], NODE_VARIABLE: config["node"]}
        self.tags[SUPERVISOR_VARIABLE] = "%d-%d" % (os.getpid(), time.time_ns())
        os.environ.update(self.tags)  # so that tools which called programs start are found at the end, too
        self.keep = bool(config.get("keep"))
        self.silence_s = config.get("silence_s", self.silence_s)
        self.grace_s = config.get("grace_s", self.grace_s)
        hostname = os.uname().nodename
        hello = {
            "event": "hello",
            "python": "%d.%d.%d" % sys.version_info[:3],
            "executable": sys.executable,
            "rejected": sys.argv[1:],
            "hostname": hostname,
            "pid": os.getpid(),
            "machine": this_machine() or hostname,
        }
        workdir = expanded_path(config["workdir"])
        # Each node has its own folder in the run's: nodes may share their home over NFS, or be one machine.
        above = os.path.join(workdir, config["run_id"])
        folder = os.path.join(above, config["node"])
        try:
            require_safe_path(workdir)
            make_folders(above)
            require_safe_path(above)  # in a folder like /tmp another user may have made it first
            require_own_folder(above)
            if not (config.get("again") and os.path.isdir(folder)):  # `again`: the controller is back on this node
                os.mkdir(folder, 0o700)
            require_own_folder(folder)
            self.used = mark_used(folder)
            if config.get("again") and not is_same_folder(self.used, folder):  # an earlier supervisor was removing it
                make_folders(folder)
                require_own_folder(folder)
                self.used = mark_used(folder)
            self.folder = hello["folder"] = folder
            room = os.statvfs(folder)
            hello["free_bytes"] = bounded_amount(room.f_bavail * room.f_frsize)
            hello["free_files"] = (
                bounded_amount(room.f_favail) if room.f_files else None
            )  # some file systems count none
            hello["noexec"] = bool(room.f_flag & getattr(os, "ST_NOEXEC", 8))
        except OSError as error:
            hello["folder_error"] = failure_facts(error, folder)
        hello["place"] = workdir_facts(workdir)
        self.pipe.send(hello)

    def serve(self) -> NoReturn:
        while True:
            received = self.pipe.receive()
            if received is None:
                self.end()
            frame, payload = received
            try:
                self.obey(frame, payload)
            except Exception as error:
                self.pipe.send({"id": frame.get("id"), "event": "failed", "error": failure_facts(error)})

    def obey(self, frame: Frame, payload: bytes) -> None:
        """Carries out one order of the controller."""
        order = frame["do"]
        if order == "config":
            self.greet(frame)
        elif order == "beat":
            self.silence_s = frame.get("silence_s", self.silence_s)  # a controller that is short of CPU asks for more
            self.pipe.send({"event": "beat", "time": time.time(), "echo": frame.get("echo")})
        elif order == "call":
            threading.Thread(target=self.call, args=(frame, payload), daemon=True).start()
        elif order == "put":
            self.put(frame, payload)
        elif order == "start":
            self.forget()
            program = Program(self.pipe, self.tags, self.folder, frame)
            self.programs[program.id] = program
        elif order in ("feed", "signal", "stop"):
            self.steer(order, self.programs.get(frame["program"]), frame, payload)
        elif order == "read":
            with open(os.path.join(str(self.folder), frame["path"]), "rb") as file:
                self.pipe.send({"id": frame["id"], "event": "done"}, file.read(1 << 20))
        elif order == "bye":
            self.end(frame)
        else:
            raise ValueError("unknown order " + repr(order))

    def steer(self, order: str, program: Program | None, frame: Frame, payload: bytes) -> None:
        """Passes an order to a program; a program that is over gets none."""
        if program is None:
            return
        if order == "feed":
            program.feed(payload, bool(frame.get("end")))
        elif order == "signal":
            program.signal(getattr(signal, frame["signal"]))
        else:
            threading.Thread(target=program.stop, args=(frame.get("grace", self.grace_s),), daemon=True).start()

    def forget(self) -> None:
        """Forgets programs that are over, before another is started: each holds three descriptors, and a job with many
        attempts starts hundreds."""
        for program in [*self.programs.values()]:
            if program.is_done():
                program.close()
                del self.programs[program.id]

    def call(self, frame: Frame, payload: bytes) -> None:
        """Runs `look(arguments)` of a node program, whose source is the payload, in a thread of this process.

        A second interpreter would cost more than most programs do. The programs start tools in process groups of their
        own, with deadlines, so that a hanging thread blocks nothing else; the caller has a deadline too.
        """
        try:
            space = {"__name__": frame["program"]}
            sources = json.loads(payload.decode())
            for name in sources:
                if name != frame["program"] and name not in sys.modules:
                    module = types.ModuleType(name)
                    exec(compile(sources[name], name, "exec"), module.__dict__)
                    sys.modules[name] = module
            source = sources[frame["program"]]
            if source not in self.compiled:  # `job_control` is called twice a second, for days
                self.compiled[source] = compile(source, frame["program"], "exec")
            exec(self.compiled[source], space)
            answer = {"event": "done", "answer": space["look"](frame["arguments"])}
        except Exception as error:
            answer = {"event": "failed", "error": failure_facts(error)}
        try:
            self.pipe.send(dict(answer, id=frame["id"]))
        except OSError:
            pass

    def put(self, frame: Frame, payload: bytes) -> None:
        """Writes a file completely or not at all: checks its hash, writes under a temporary name, renames."""
        import hashlib

        if hashlib.sha256(payload).hexdigest() != frame["sha256"]:
            raise ValueError("the pushed bytes do not match their SHA-256")
        path = os.path.join(str(self.folder), frame["path"])  # absolute, as the folder is
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
        partial = path + ".partial"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, frame["mode"])
        try:
            view = memoryview(payload)
            while view:
                view = view[os.write(descriptor, view) :]
        finally:
            os.close(descriptor)
        if os.stat(partial).st_size != len(payload):
            raise OSError(errno.EIO, "short write", path)
        os.replace(partial, path)
        self.pipe.send({"id": frame["id"], "event": "done"})

    def watch(self) -> NoReturn:
        """Ends the supervisor after `silence_s` of silence: a network that was cut sends no EOF.

        Silence counts only while this process ran and could have noticed data: not while it got no CPU or was stopped,
        and not while unread data waits in the pipe.
        """
        silent_s, looked, heard, unread = 0.0, time.monotonic(), self.pipe.last_heard, 0
        while True:
            sleep_seconds(SILENCE_POLL_INTERVAL_S)
            now = time.monotonic()
            silent_s, looked = silent_s + min(now - looked, 2 * SILENCE_POLL_INTERVAL_S), now
            if self.pipe.last_heard != heard:
                silent_s, heard = 0.0, self.pipe.last_heard
            elif silent_s > self.silence_s:
                before, unread = unread, unread_bytes(0)
                if unread == before:
                    self.end()
                silent_s = 0.0  # data is arriving, or has arrived

    def end(self, frame: Frame | None = None) -> NoReturn:
        """Ends programs and processes, removes the run's folder, and exits. With `frame`, the order to end, these are
        all of the run on this node. Without it only those of this supervisor: the controller may already have another
        one here, whose programs and folder stay."""
        if not self.ending.acquire(blocking=False):
            sleep_seconds(3600)  # another thread is already ending this process
        # Programs that the supervisor ends by itself have not failed, so their exits are not reported: a controller
        # that comes back must not take them for failures.
        self.pipe.mute = frame is None
        # A copy, made in one step: another thread may just be starting a program.
        running = [one for one in list(self.programs.values()) if not one.over.is_set() and not one.spared]
        for program in running:
            program.end()
        deadline = time.monotonic() + max([self.grace_s] + [one.grace for one in running] if running else [0.0])
        while time.monotonic() < deadline and not all(program.ended.is_set() for program in running):
            sleep_seconds(0.02)
        for program in running:
            program.signal(signal.SIGKILL)
        # The tags include the node's name, since two nodes of an inventory may be one machine.
        tags = {name: value for name, value in self.tags.items() if frame is None or name != SUPERVISOR_VARIABLE}
        swept = tagged_pids(tags) if tags else []
        deadline = time.monotonic() + 2.0
        left = swept
        while left and time.monotonic() < deadline:
            signal_processes(left, signal.SIGKILL)
            sleep_seconds(0.02)
            left = tagged_pids(tags)
        kept = self.keep or not self.folder or os.path.exists(os.path.join(self.folder, KEPT_FILE))
        if self.folder and not kept and not (frame is None and used_by_others(self.used)):
            remove(self.folder)
            try:
                os.rmdir(os.path.dirname(self.folder))
            except OSError:
                pass  # another node's folder is still in there
        if frame is not None:
            try:
                self.pipe.send(
                    {"id": frame["id"], "event": "bye", "stopped": len(running), "swept": len(swept), "left": left}
                )
            except OSError:
                pass
        os._exit(0)


def mark_used(folder: str) -> int | None:
    """A descriptor that marks a folder as used by this process, as long as it lives; None where this cannot be done.
    Waits for a supervisor that is just removing the folder."""
    deadline = time.monotonic() + REMOVAL_TIMEOUT_S
    while True:
        try:
            import fcntl

            descriptor = os.open(folder, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return descriptor
        except BlockingIOError:
            os.close(descriptor)
            if time.monotonic() > deadline:
                return None
            sleep_seconds(0.05)
        except (ImportError, OSError):
            return None


def is_same_folder(mark: int | None, folder: str) -> bool:
    """Whether the folder is there, and is still the one that was marked, if one was."""
    try:
        there = os.stat(folder)
    except OSError:
        return False
    return mark is None or os.path.samestat(there, os.fstat(mark))


def used_by_others(mark: int | None) -> bool:
    """Whether another process has marked the same folder as used."""
    try:
        import fcntl

        if mark is not None:
            fcntl.flock(mark, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except (ImportError, OSError):
        pass
    return False


def unread_bytes(stream: Any) -> int:
    """Bytes that have arrived in a stream and are not read yet; 0 if the system does not say."""
    try:
        import fcntl
        import termios

        return int.from_bytes(fcntl.ioctl(stream, termios.FIONREAD, bytes(4)), sys.byteorder)
    except (ImportError, OSError, ValueError):
        return 0


def remove(folder: str) -> None:
    try:
        os.rmdir(folder)  # the folder of a run with only shell stages is mostly empty
    except OSError:
        import shutil

        shutil.rmtree(folder, ignore_errors=True)


def failure_facts(error: BaseException, path: str | None = None) -> Failure:
    """An exception as data; the controller turns its errno into a cause."""
    code = getattr(error, "errno", None)
    return {
        "type": type(error).__name__,
        "errno": errno.errorcode.get(code) if code else None,
        "text": getattr(error, "strerror", None) or str(error),
        "path": str(getattr(error, "filename", None) or path or ""),
    }


def workdir_facts(workdir: str) -> WorkdirFacts:
    """Facts about the workdir: how much of its path exists, who owns that part, and the file system below it."""
    home = os.path.expanduser("~")
    said: WorkdirFacts = {
        "workdir": workdir,
        "home": home,
        "user": str(os.getuid()),
        "owner": None,
        "mode": None,
        "link": None,
        "there": workdir,
        "folder": os.path.isdir(workdir),
    }
    there = workdir
    try:
        if os.path.islink(workdir) and not os.path.exists(workdir):
            said["link"] = os.path.realpath(workdir)
        while not os.path.exists(there) and os.path.dirname(there) != there:
            there = os.path.dirname(there)
        said["there"], said["folder"] = there, os.path.isdir(there)
        status = os.stat(there)
        said["owner"], said["mode"] = str(status.st_uid), "%04o" % (status.st_mode & 0o7777)
        room = os.statvfs(there)
        said["full_of_files"] = bool(room.f_files and not room.f_favail)
        said["free_bytes"] = bounded_amount(room.f_bavail * room.f_frsize)
        mount = os.path.realpath(there)
        while not os.path.ismount(mount):
            mount = os.path.dirname(mount)
        said["mount"] = mount
        said["owner"] = account_name(status.st_uid) or said["owner"]  # without a name, the number stays
        said["user"] = account_name(os.getuid()) or said["user"]
    except OSError:
        pass  # the facts that are known by now are reported
    return said


def open_signal_pipe() -> int:
    """A file descriptor that gives the number of each signal that this process has taken, one byte each."""
    numbers, taken = os.pipe()
    os.set_blocking(taken, False)
    signal.set_wakeup_fd(taken, warn_on_full_buffer=False)
    return numbers


def wake_main_thread(ends_us: list[signal.Signals], numbers: int) -> NoReturn:
    """Wakes the main thread when a signal that ends the supervisor was taken. Any thread may take a signal (after
    SIGCONT often not the main one), but Python handles it only in the main thread, which waits for a frame: a second
    signal, sent to that thread alone, ends the wait."""
    while True:
        for number in os.read(numbers, 64):
            if number in ends_us:
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGURG)


def main() -> None:
    supervisor = Supervisor()

    def stop(_number: int, _frame: object) -> None:
        SIGNAL_ARRIVED.set()
        if not supervisor.ending.locked():  # otherwise this would interrupt the thread that is ending the process
            supervisor.end()

    ends_us = [signal.SIGTERM, signal.SIGHUP, signal.SIGINT]
    for number in ends_us:
        signal.signal(number, stop)
    try:
        signal.signal(signal.SIGURG, lambda _number, _frame: None)  # its only effect is to interrupt a waiting call
        threading.Thread(target=wake_main_thread, args=(ends_us, open_signal_pipe()), daemon=True).start()
        threading.Thread(target=supervisor.watch, daemon=True).start()
    except RuntimeError as error:
        # Another Python would not help, so the controller must not try one: hence no mark, and exit code 0.
        sys.stderr.write("%s\n" % error)
        sys.exit(0)
    supervisor.pipe.sink.write(SUPERVISOR_MARK)
    try:
        supervisor.serve()
    except (OSError, ValueError, KeyError):
        supervisor.end()


if __name__ == "__main__":
    main()
