"""A conversation with the supervisor on one node: push files, start programs, watch them, say goodbye.

Threads: one reader per session dispatches what arrives; callers block on events, always with a deadline.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import itertools
import json
import queue
import threading
import time
import traceback
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Protocol, overload

from runbook.causes.catalogue import unreachable_for
from runbook.model.errors import Unreachable
from runbook.transport import bootstrap, node_answers, node_programs
from runbook.transport.frames import Frame, FrameReader, UnexpectedAnswer, decode_json
from runbook.transport.pause_detector import Awake, cpu_pressure_evidence
from runbook.transport.remote_program import MAX_PROGRAM_OUTPUT_BYTES, Answer, Message, ProgramNotStarted, Remote
from runbook.transport.stream import Stream

if TYPE_CHECKING:
    from runbook.transport.container import AskedOnHost

BEAT_INTERVAL_S = 1.0

SILENCE_TIMEOUT_S = 6.0
"""After this long without a byte each end counts the other as lost (beats are sent every BEAT_INTERVAL_S)."""

CLOCK_TIMEOUT_S = 3.0
"""How long `Session.clock` waits for the answer to one beat."""

MAX_EXPLAINING_PAUSE_AGE_S = 30.0
"""A node that is lost within this time after a pause of this machine is explained by the pause."""

MAX_UNASKED_ANSWERS = 1_000
"""The most answers that a node may send beyond two for each order; a node that sends more is not believed. (A program
that is started gives two answers.)"""

MAX_FRAMES_PER_SECOND = 5_000
"""The most frames that are read from a node in a second. A node that sends more is held back by its own full pipe."""


class Hears(Protocol):
    """A receiver of the frames about one started program. The session's reader thread calls both methods, so they must
    not wait."""

    # A frame about the program: started, output, failed or exit.
    def handle(self, frame: Frame, payload: bytes) -> None: ...

    # The node is lost: no further frame will come.
    def lose(self, reason: Unreachable) -> None: ...


class Session:
    """The session with one node, for the length of a run. The constructor starts the supervisor and waits for its
    hello; raises Unreachable when none comes within `timeout_s`."""

    def __init__(
        self,
        node: str,
        stream: Stream,
        config: Mapping[str, object],
        python: str,
        timeout_s: float,
        awake: Awake | None = None,
        *,
        outside: Session | None = None,
        place: str | None = None,
    ) -> None:
        """`config` is the supervisor's first order, `python` the interpreter to start it with. `awake` knows the pauses
        of this machine, if they are watched. For a session in a container, `outside` is the session on its host, and
        `place` names the container in sentences."""
        self.node = node
        self.outside = outside
        self._place = place or node
        self._awake = awake
        self._stream = stream
        self._numbers = itertools.count(1)
        self._write_lock = threading.Lock()
        self._lock = threading.Lock()
        self._replies: dict[int, queue.SimpleQueue[tuple[Frame, bytes] | None]] = {}
        self._remotes: dict[int, Hears] = {}
        self._echo: str | None = None  # of the beat whose answer `clock` waits for
        self._beats: queue.SimpleQueue[tuple[float, Frame]] = queue.SimpleQueue()
        self._lost: Unreachable | None = None
        self._letting_go = False
        self._closed = threading.Event()
        self._given_up = False
        self._leaving = False  # we said goodbye: why the stream ends need not be found out
        self._noise = b""
        self._last_heard = self._last_said = time.monotonic()
        self._listening = False  # the reader waits for the node, and nothing waits for the reader
        self._unanswered = 0  # beats sent since the last byte came
        self._hello: queue.SimpleQueue[Message | Unreachable] = queue.SimpleQueue()
        self._greeted = False
        self._for_nobody = 0
        self._sent = 0
        self._answered = 0
        self._pushed: set[str] = set()
        self._push_lock = threading.Lock()
        threading.Thread(target=self._read, name=f"session {node}", daemon=True).start()
        with contextlib.suppress(OSError):  # the reader thread finds the reason and its evidence
            self._write(bootstrap.bootstrap_input(python) + _frame_bytes({"do": "config", **config}))
        try:
            hello = self._hello.get(timeout=timeout_s)
        except queue.Empty:
            reason = self._stream.why(f"nothing was started on {self._place} within {timeout_s:g} s")
            self._stream.kill()
            self._stream.close()
            raise bootstrap.supervisor_timeout_failure(
                node, self._place, python, self._noise, self._stream.complaint(), timeout_s=timeout_s, reason=reason
            ) from None
        if isinstance(hello, Unreachable):
            self._stream.close()
            raise hello
        self.hello = hello
        self.complaint = bootstrap.last_evidence_lines(self._stream.complaint()) if hello.get("rejected") else ()
        """The last lines on stderr of the login and of the interpreters that did not start; empty if all started."""

    # Sending.

    def _write(self, data: bytes) -> None:
        with self._write_lock:
            self._sent += 1
            self._last_said = time.monotonic()
            self._stream.write(data)

    def order(self, frame: Message, payload: bytes = b"") -> None:
        """Send a frame without waiting for an answer. Raises Unreachable when the node is lost."""
        if self._lost:
            raise self._lost
        try:
            self._write(_frame_bytes(frame, payload))
        except OSError as error:
            raise self._lose(self._broken(f"writing to {self.node} failed: {error}")) from None

    def ask(self, frame: Message, payload: bytes = b"", *, timeout_s: float) -> tuple[Frame, bytes]:
        """Send a frame, and wait for its one answer. Raises Unreachable, or ProgramNotStarted with the node's error."""
        return self._asked(frame, payload)(timeout_s)

    def _asked(self, frame: Message, payload: bytes = b"") -> Callable[[float], tuple[Frame, bytes]]:
        """Send a frame; returns a function that waits so many seconds for its one answer, and raises as `ask` does."""
        number = next(self._numbers)
        replies: queue.SimpleQueue[tuple[Frame, bytes] | None] = queue.SimpleQueue()
        with self._lock:
            self._replies[number] = replies

        def answer(timeout_s: float) -> tuple[Frame, bytes]:
            try:
                reply = replies.get(timeout=timeout_s)
            except queue.Empty:
                raise NoReply(
                    self._stream.unanswered,
                    f"{self.node} did not answer `{frame['do']}` within {timeout_s:g} s",
                    f"check the load and the network of {self.node}",
                ) from None
            finally:
                with self._lock:
                    self._replies.pop(number, None)
            if reply is None:
                raise self._lost or Unreachable(self._stream.unanswered, f"lost {self.node}", f"check {self.node}")
            if reply[0].event == "failed":
                raise ProgramNotStarted(reply[0].error)
            return reply

        try:
            self.order({**frame, "id": number}, payload)
        except BaseException:
            with self._lock:
                self._replies.pop(number, None)
            raise
        return answer

    # Doing.

    @property
    def folder(self) -> str:
        """The run's own folder on the node. Raises ProgramNotStarted where it could not be made."""
        if "folder" not in self.hello:
            raise ProgramNotStarted(self.hello["folder_error"])
        return str(self.hello["folder"])

    def push(self, path: str, data: bytes, *, mode: int = 0o600) -> None:
        """Write one file below the run's folder: verified, atomic, private."""
        _ = self.folder
        digest = hashlib.sha256(data).hexdigest()
        self.ask({"do": "put", "path": path, "mode": mode, "sha256": digest}, data, timeout_s=30.0)

    def start(
        self,
        argv: Sequence[str],
        *,
        timeout_s: float | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        says: node_answers.Messages | None = None,
        on_message: Callable[[Message], None] | None = None,
        on_log: Callable[[str], None] | None = None,
        on_end: Callable[[], None] | None = None,
        on_output: Callable[[str], None] | None = None,
        grace_s: float = 0.0,
        spared: bool = False,
    ) -> Remote:
        """Start a program on the node, in a process session of its own. The node ends it after `timeout_s`.

        `says` describes the program's messages; without `says` all that the program prints is output. `on_log` gets the
        output, and the answer then has no stdout; `on_output` gets it as well, and takes nothing from the answer.
        `grace_s` is how long the program may take to end when the run ends; a `spared` program outlives the run.
        """
        number = next(self._numbers)
        remote = Remote(self, number, says, on_message=on_message, on_log=on_log, on_end=on_end, on_output=on_output)
        with self._lock:
            self._remotes[number] = remote
        how = {"timeout": timeout_s, "cwd": cwd, "grace": grace_s, "spare": spared}
        self.order({"do": "start", "id": number, "argv": list(argv), "env": dict(env or {}), **how})
        return remote

    def carry(self, argv: Sequence[str], hears: Hears) -> int:
        """Start a program that leads to another supervisor; returns its number, by which `feed` writes to its stdin.
        Its output goes to `hears` as it comes. At the end of the run its stdin is closed before it gets any signal, so
        that the other supervisor can clean up."""
        number = next(self._numbers)
        with self._lock:
            self._remotes[number] = hears
        self.order({"do": "start", "id": number, "argv": list(argv), "carries": True})
        return number

    def feed(self, program: int, data: bytes, *, end: bool = False) -> None:
        """Write to the stdin of a program. Raises Unreachable."""
        self.order({"do": "feed", "program": program, "end": end}, data)

    @overload
    def call(  # type: ignore[overload-overlap]  # the first that fits is meant
        self, name: node_answers.Asked[node_answers.AnswerType], arguments: Message, *, timeout_s: float
    ) -> node_answers.AnswerType: ...

    @overload
    def call(self, name: str, arguments: Message, *, timeout_s: float) -> Message: ...

    def call(self, name: str, arguments: Message, *, timeout_s: float) -> Any:
        """The answer of the node program `name` to `arguments`. Its `look` runs inside the supervisor; for a node in a
        container, inside the supervisor there, on the host or both, as PROGRAMS_ON_HOST of `container.py` says.

        Raises Unreachable, also for an answer that no program of ours gives; ProgramNotStarted when `look` raised;
        TimeoutError.
        """
        if (there := self._there(name)) is None:
            return self._called(name, arguments)(timeout_s)
        outside, how = there
        deadline = time.monotonic() + timeout_s
        theirs = None if how.in_turn else outside._called(name, how.theirs(arguments))
        answer = self._called(name, how.ours(arguments))(timeout_s)
        try:
            theirs = theirs or outside._called(name, how.theirs(arguments))
            return how.merged(answer, theirs(max(0.1, deadline - time.monotonic())))
        except (Unreachable, ProgramNotStarted, TimeoutError):  # the answer from inside is used alone
            whole = how.ours(arguments) == arguments
            return answer if whole else self._called(name, arguments)(max(0.1, deadline - time.monotonic()))

    def _there(self, name: str) -> tuple[Session, AskedOnHost] | None:
        """The session on the container's host, and what this program is asked there; None for a program that looks only
        where this session's supervisor runs."""
        if self.outside is None:
            return None
        from runbook.transport.container import PROGRAMS_ON_HOST

        if (how := PROGRAMS_ON_HOST.get(name)) is None:
            return None
        apart = self.hello["machine"] != self.outside.hello["machine"]
        return None if apart and how.network else (self.outside, how)

    def _called(self, name: str, arguments: Message) -> Callable[[float], Message]:
        """Send the call of a node program; returns a function that waits so many seconds for its checked answer."""
        frame: Message = {"do": "call", "program": name, "arguments": arguments}
        waited = self._asked(frame, node_programs.in_supervisor_program(name))

        def answer(timeout_s: float) -> Message:
            try:
                reply, _ = waited(timeout_s)
            except NoReply as late:
                raise TimeoutError(str(late)) from None
            try:
                return node_answers.decode_answer(name, arguments, bytes(reply.answer))
            except UnexpectedAnswer as error:
                raise self.unexpected(f"the program `{name}`", error) from None

        return answer

    def program(
        self, name: str, arguments: Message, *, timeout_s: float, python: Sequence[str] | None = None
    ) -> Remote:
        """Start a program of `runbook/node/` as a process of its own, with `python` or else the supervisor's own
        interpreter; on the container's host if PROGRAMS_ON_HOST of `container.py` names the program."""
        if there := self._there(name):
            return there[0].program(name, arguments, timeout_s=timeout_s, python=python)
        self.push_program(name)
        interpreter = list(python or (str(self.hello["executable"]), "-S", "-E", "-s"))
        argv = [*interpreter, "-u", f"{self.folder}/{name}.py", json.dumps(arguments)]
        return self.start(argv, timeout_s=timeout_s, says=node_answers.PROGRAM_MESSAGES[name])

    def push_program(self, name: str) -> None:
        """Write the file of a node program into the run's folder, unless it is there already."""
        with self._push_lock:
            if name not in self._pushed:
                self.push(f"{name}.py", node_programs.standalone_program(name))
                self._pushed.add(name)

    def shell(self, command: str, *, timeout_s: float, on_output: Callable[[str], None] | None = None) -> Answer:
        """Run one line under /bin/sh in the run's folder."""
        program = self.start(["/bin/sh", "-c", command], timeout_s=timeout_s, cwd=self.folder, on_output=on_output)
        return program.wait(timeout_s + 5.0)

    def read_file(self, path: str, *, timeout_s: float = 5.0) -> bytes:
        """The first MiB of a file below the run's folder."""
        return self.ask({"do": "read", "path": path}, timeout_s=timeout_s)[1]

    def clock(self) -> tuple[float, float]:
        """The node's clock minus ours and the uncertainty of that difference (half the quickest of three round trips),
        both in seconds."""
        found: list[tuple[float, float]] = []
        for _ in range(3):
            self._echo = f"clock-{next(self._numbers)}"
            before = time.time()
            self.order({"do": "beat", "echo": self._echo})
            deadline = time.monotonic() + CLOCK_TIMEOUT_S
            while True:
                try:
                    after, beat = self._beats.get(timeout=max(0.0, deadline - time.monotonic()))
                except queue.Empty:
                    raise self._broken(f"{self.node} stopped answering") from None
                if beat.echo == self._echo:
                    break
            found.append((beat.time - (before + after) / 2, (after - before) / 2))
        return min(found, key=lambda one: one[1])

    def beat(self, *, patience_s: float = SILENCE_TIMEOUT_S, in_time: bool = True) -> None:
        """Send a beat, and give the node up when it has not answered beats for SILENCE_TIMEOUT_S. A beat counts as
        unanswered only if our reader was listening and the caller was `in_time`: a caller that was late itself has to
        ask once more. `patience_s` tells the node how long it is to accept silence from now on. Raises RuntimeError if
        this process may start no more threads; the next call tries again."""
        if self.outside:
            with contextlib.suppress(RuntimeError):
                self.outside.beat(patience_s=patience_s, in_time=in_time)
        if self._lost:
            return
        now = time.monotonic()
        if self._unanswered * BEAT_INTERVAL_S >= SILENCE_TIMEOUT_S and now - self._last_heard > SILENCE_TIMEOUT_S:
            self._give_up_aside(f"nothing has come from {self.node} for {now - self._last_heard:.0f} s")
            return
        if patience_s == SILENCE_TIMEOUT_S and now - min(self._last_said, self._last_heard) < BEAT_INTERVAL_S / 2:
            return  # both sides have just exchanged frames
        # A full pipe must not block the one thread that sends all beats; if the lock is held, another thread is
        # sending.
        if self._write_lock.acquire(blocking=False):
            self._sent += 1
            if self._stream.shared:
                # The jump host may be dead, and its connection full of what was sent to other nodes.
                name = f"beat to {self.node}"
                try:
                    threading.Thread(target=self._write_beat, args=(patience_s,), name=name, daemon=True).start()
                except RuntimeError:
                    self._write_lock.release()
                    raise
            else:
                self._write_beat(patience_s)
        if in_time and self._listening:
            self._unanswered += 1

    def _write_beat(self, patience_s: float) -> None:
        """Write a beat; the caller has acquired the lock for writing, which is released here."""
        try:
            self._stream.write(_beat_frame(patience_s))
        except OSError as error:
            with contextlib.suppress(RuntimeError):  # no thread could be started: the next beat finds the same
                self._give_up_aside(f"writing to {self.node} failed: {error}")
        finally:
            self._write_lock.release()

    def _give_up_aside(self, why: str) -> None:
        """As `give_up`, in a thread of its own: finding the reason takes seconds, in which the thread that sends all
        beats must not keep the other nodes waiting for theirs."""
        if not self._given_up:
            threading.Thread(target=self.give_up, args=(why,), name=f"loss of {self.node}", daemon=True).start()
            self._given_up = True

    def give_up(self, why: str) -> None:
        """Count the node as lost: every caller that waits for it gets the reason."""
        self.disbelieve(self._broken(why))

    def disbelieve(self, reason: Unreachable) -> None:
        """Read nothing more from the node, for this reason."""
        self._letting_go = True  # before `_lose` wakes callers, who may then call `let_go`
        self._lose(reason)
        threading.Thread(target=self._close, daemon=True).start()

    def _close(self) -> None:
        try:
            self._stream.close()
        finally:
            self._closed.set()

    def let_go(self, timeout_s: float) -> None:
        """Wait until the local processes of the connection to a lost node have ended."""
        if self._letting_go:
            self._closed.wait(timeout_s)

    def goodbye(self, *, timeout_s: float = 8.0) -> Message:
        """Have the supervisor stop and remove everything of this run; returns the number of programs that were
        `stopped` and of stray processes `swept`, and the pids that are `left`. Raises Unreachable without an answer:
        the supervisor then cleans up by itself after SILENCE_TIMEOUT_S."""
        return self.say_goodbye()(timeout_s)

    def say_goodbye(self) -> Callable[[float], Message]:
        """Say goodbye without waiting: the returned function waits so many seconds for the answer of `goodbye`, and
        closes the connection."""

        self._leaving = True

        def answered(timeout_s: float) -> Message:
            try:
                bye = answer(timeout_s)[0]
                return {"stopped": bye.stopped, "swept": bye.swept, "left": bye.left}
            finally:
                self._stream.close()

        try:
            answer = self._asked({"do": "bye"})
        except BaseException:
            self._stream.close()
            raise
        return answered

    @property
    def silence_s(self) -> float:
        """The seconds since the last byte came from the node; a healthy node answers a beat every second."""
        return time.monotonic() - self._last_heard

    @property
    def shared(self) -> bool:
        """Whether streams to other nodes use the same connection (`Stream.shared`)."""
        return self._stream.shared

    @property
    def lost(self) -> Unreachable | None:
        """Why the node is lost; None while it is not."""
        return self._lost

    def why_lost(self) -> Unreachable | None:
        """Why the node is lost, or what the transport knows about why it soon will be; None when nothing is known."""
        return self._lost or self._stream.why(f"{self.node} is about to be lost")

    # Receiving.

    def _read(self) -> None:
        """The reader thread: reads until the stream ends or the node is no longer believed, and dispatches frames."""
        opening = bootstrap.Opening()
        frames = FrameReader()
        pace = FrameLimit(MAX_FRAMES_PER_SECOND)
        while True:
            self._listening = True
            try:
                data = self._stream.read()
            except OSError:
                data = b""
            self._listening = False
            if not data:
                break
            self._last_heard = time.monotonic()
            self._unanswered = 0
            if not opening.over:
                data = opening.feed(data)
                self._noise = opening.noise
                if opening.refused:
                    break
            try:
                for frame, payload in frames.feed(data):
                    self._dispatch(frame, payload, frames.line)
                    pace.keep()
            except UnexpectedAnswer as error:
                reason = self.unexpected("it", error)
            except Exception as error:  # noqa: BLE001  of any receiver: without a reader all callers would wait in vain
                reason = self._not_judged(error)
            else:
                continue
            self._hello.put(reason)
            self.disbelieve(reason)
            return
        self._ended(opening)

    def _dispatch(self, frame: Frame, payload: bytes, line: bytes) -> None:
        """Give a frame to the receiver or caller that waits for it. Raises UnexpectedAnswer."""
        if frame.event != "output":
            self._answered += 1
            if self._answered > MAX_UNASKED_ANSWERS + 2 * self._sent:
                raise UnexpectedAnswer(f"{self._answered} answers to {self._sent} orders")
        if frame.event == "hello":
            if not self._greeted:
                self._greeted = True
                self._hello.put(decode_json(line, node_answers.Hello))
        elif frame.event == "failed" and not self._greeted:
            raise UnexpectedAnswer(f"{frame.error['type']}: {frame.error['text']}")
        elif frame.event == "beat":
            if frame.echo is not None and frame.echo == self._echo:
                self._beats.put((time.time(), frame))
        elif frame.id is not None:
            with self._lock:
                remote = self._remotes.get(frame.id)
                replies = self._replies.pop(frame.id, None) if remote is None else None
                if remote and frame.event in ("exit", "failed"):
                    del self._remotes[frame.id]
            if remote:
                remote.handle(frame, payload)
            elif replies:
                replies.put((frame, payload))
            else:
                self._for_nobody += len(payload)  # a child of a program that has ended may still print
                if self._for_nobody > MAX_PROGRAM_OUTPUT_BYTES:
                    raise UnexpectedAnswer(
                        f"more than {MAX_PROGRAM_OUTPUT_BYTES >> 20} MiB of programs that have ended"
                    )

    def _ended(self, opening: bootstrap.Opening) -> None:
        """Count the node as lost, or, when no supervisor has answered yet, give the constructor the reason."""
        if opening.over:
            closed = self._broken(f"the connection to {self._place} was closed")
            if not self._greeted:  # the supervisor has ended before it said hello, for which the constructor waits
                self._hello.put(closed)
            if self._leaving:
                self._lose(closed)
            else:
                self.disbelieve(closed)
            return
        reason = None if opening.codes else self._stream.why(f"nothing was started on {self._place}")
        self._hello.put(
            reason or bootstrap.no_supervisor_failure(self.node, self._place, opening, self._stream.complaint())
        )

    def _broken(self, says: str) -> Unreachable:
        """Why the connection broke: the transport's reason, else a pause of this machine, else the sentence `says`."""
        if reason := None if self._leaving else self._stream.why(says):
            return reason
        pause = self._awake.longest(time.monotonic() - MAX_EXPLAINING_PAUSE_AGE_S) if self._awake else None
        if pause and pause.seconds > SILENCE_TIMEOUT_S - BEAT_INTERVAL_S:
            # No fault of the nodes. Every node gets the same words, so that the finding is printed once.
            return unreachable_for(
                "controller-paused",
                f"{pause}: nodes without a beat for this long end what runs there, as they do when a controller dies",
                cpu_pressure_evidence(),
                way="live",
            )
        last = bootstrap.last_evidence_lines(self._stream.complaint())
        if last and last[-1].strip().startswith("MemoryError"):
            # The supervisor may live on without answering: what it had no memory for may have been one of its threads.
            refused = f"{says}, and before that it reported that it got no more memory"
            return unreachable_for("tool-output-unknown", refused, last, way="memory", node=self.node)
        return Unreachable(
            self._stream.unanswered,
            says,
            f"check that {self.node} is up and that the network between it and this machine holds",
            last,
        )

    def _not_judged(self, error: Exception) -> Unreachable:
        """The failure for a frame on which a receiver of ours raised `error`."""
        where = traceback.extract_tb(error.__traceback__)[-1:]
        return unreachable_for(
            "tool-output-unknown",
            f"what {self.node} said could not be judged: {type(error).__name__}: {error}",
            tuple(f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}" for frame in where),
            way="stranger",
            node=self.node,
        )

    def unexpected(self, who: str, error: UnexpectedAnswer) -> Unreachable:
        """The failure for a node that sends what none of our programs sends. `who` names the program in a sentence; the
        caller has to `disbelieve` the node."""
        return unreachable_for(
            "tool-output-unknown",
            f"{self.node}: what {who} said is not what our programs say: {error}",
            bootstrap.last_evidence_lines(self._stream.complaint()),
            way="odd",
            node=self.node,
        )

    def _lose(self, reason: Unreachable) -> Unreachable:
        """Tell all receivers and waiting callers that the node is lost; returns the first reason, which stays."""
        with self._lock:
            if self._lost is None:
                self._lost = reason
            remotes, self._remotes = list(self._remotes.values()), {}
            replies = list(self._replies.values())
        for remote in remotes:
            remote.lose(self._lost)
        for waiting in replies:
            waiting.put(None)
        return self._lost


class FrameLimit:
    """Holds a reader back to `most` frames a second."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._since = time.monotonic()

    def keep(self) -> None:
        """Count a frame, and wait if there were too many in this second."""
        self._count += 1
        if self._count < self._most:
            return
        time.sleep(max(0.0, self._since + 1.0 - time.monotonic()))
        self._count, self._since = 0, time.monotonic()


def _frame_bytes(frame: Message, payload: bytes = b"") -> bytes:
    """The bytes of a frame as a supervisor reads it: a JSON line, and its payload compressed by zlib."""
    if payload:
        payload = _compressed_payload(payload)
        frame = {**frame, "bytes": len(payload)}
    return json.dumps(frame).encode() + b"\n" + payload


@functools.cache
def _beat_frame(patience_s: float) -> bytes:
    """The frame of a beat, made once for all nodes."""
    return _frame_bytes({"do": "beat", "silence_s": patience_s})


@functools.lru_cache(maxsize=32)
def _compressed_payload(payload: bytes) -> bytes:
    """The payload compressed, once for all nodes. Fewer packets matter on a path that loses some: each lost one costs a
    fraction of a second."""
    return zlib.compress(payload, 6)


class NoReply(Unreachable):
    """One question was not answered in time; the connection is still open."""
