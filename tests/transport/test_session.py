"""The supervisor for real, over pipes: files, programs, how they end, and that nothing outlives its controller."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from runbook.model.errors import Unreachable
from runbook.transport import node_answers
from runbook.transport.remote_program import ProgramNotStarted
from runbook.transport.session import Session

from .local_sessions import RUN_ID, alive, eventually, gone, opened, session

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
    pytest.mark.xdist_group("session"),
]

PYTHON = [sys.executable, "-S", "-E", "-s", "-u", "-c"]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Session]:
    """One session for the tests that only start programs."""
    with session(tmp_path_factory.mktemp("node"), grace_s=0.2) as one:
        yield one


def test_hello(tmp_path: Path) -> None:
    with session(tmp_path) as node:
        folder = tmp_path / RUN_ID / "node-a"
        assert node.folder == str(folder)
        assert (folder.stat().st_mode & 0o777, folder.parent.stat().st_mode & 0o777) == (0o700, 0o700)
        assert node.hello["python"] == ".".join(map(str, sys.version_info[:3]))
        assert node.hello["free_bytes"] > 0
        assert node.hello["machine"]
        assert node.hello["noexec"] is False
    assert not folder.parent.exists(), "goodbye removes the run's folder"
    assert tmp_path.exists()


def test_a_workdir_that_cannot_be_made_is_told_and_the_session_lives(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with session(tmp_path / "file" / "x") as node:
        assert node.hello["folder_error"]["errno"] == "ENOTDIR"
        with pytest.raises(ProgramNotStarted):
            node.push("a", b"")


def test_a_home_folder_is_the_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    with session(Path("~/.runbook")) as node:
        assert node.folder == str(tmp_path / ".runbook" / RUN_ID / "node-a")


# Files.


@pytest.mark.parametrize("data", [b"", b"x", bytes(range(256)) * 5000, b"\x1erunbook {}\n"])
def test_a_push_arrives_whole_and_private(node: Session, data: bytes) -> None:
    node.push("sub/folder/file", data, mode=0o640)
    path = Path(node.folder) / "sub" / "folder" / "file"
    assert path.read_bytes() == data
    assert path.stat().st_mode & 0o777 & ~0o640 == 0
    assert path.parent.stat().st_mode & 0o077 == 0
    assert node.read_file("sub/folder/file") == data[: 1 << 20]
    assert os.listdir(path.parent) == ["file"]  # noqa: PTH208


def test_a_push_that_was_damaged_changes_nothing(node: Session) -> None:
    node.push("kept", b"before")
    frame = {"do": "put", "path": "kept", "mode": 0o600, "sha256": hashlib.sha256(b"after").hexdigest()}
    with pytest.raises(ProgramNotStarted, match="SHA-256"):
        node.ask(frame, b"after, but damaged", timeout_s=5)
    assert (Path(node.folder) / "kept").read_bytes() == b"before"
    assert "kept.partial" not in os.listdir(node.folder)  # noqa: PTH208


def test_a_push_over_a_file_that_is_open_leaves_its_reader_alone(node: Session) -> None:
    node.push("script", b"one")
    with (Path(node.folder) / "script").open("rb") as file:
        node.push("script", b"two!")
        assert file.read() == b"one"
    assert node.read_file("script") == b"two!"


def test_a_push_where_nothing_can_be_written(node: Session) -> None:
    node.push("is-a-file", b"")
    with pytest.raises(ProgramNotStarted) as caught:
        node.push("is-a-file/below", b"x")
    assert caught.value.error["errno"] in ("ENOTDIR", "EEXIST")
    with pytest.raises(ProgramNotStarted):
        node.read_file("not-there")


# Programs.


@pytest.mark.parametrize(
    ("command", "code", "out", "err"),
    [
        ("echo out; echo err >&2; exit 3", 3, "out\n", "err\n"),
        ("true", 0, "", ""),
        ("kill -9 $$", -9, "", ""),
        ("kill -s SEGV $$", -11, "", ""),
        ("printf 'no end'", 0, "no end", ""),
        ("pwd -P | sed 's,.*/,,'", 0, "node-a\n", ""),
    ],
)
def test_how_a_command_ends(node: Session, command: str, code: int, out: str, err: str) -> None:
    answer = node.shell(command, timeout_s=60)
    assert (answer.code, answer.stdout, answer.stderr, answer.timed_out) == (code, out, err, False)


def test_arguments_and_environment_arrive_as_they_are(node: Session) -> None:
    values = ["", "a b", "'\"$`\\", "line\nbreak", "\x1b[0m", "é漢🚀", "*"]
    dump = "import sys, os, json; print(json.dumps([sys.argv[1:], [os.environ['V%d' % i] for i in range(7)]]))"
    env = {f"V{i}": value for i, value in enumerate(values)}
    answer = node.start([*PYTHON, dump, *values], timeout_s=60, env=env).wait(60)
    assert json.loads(answer.stdout) == [values, values]


def test_every_program_knows_its_run_and_node(node: Session) -> None:
    assert node.shell("echo $RUNBOOK_RUN_ID $RUNBOOK_NODE", timeout_s=60).stdout == f"{RUN_ID} node-a\n"


def test_a_program_that_is_not_there(node: Session) -> None:
    with pytest.raises(ProgramNotStarted) as caught:
        node.start(["/no/such/program"]).wait(60)
    assert caught.value.error["errno"] == "ENOENT"
    with pytest.raises(ProgramNotStarted):
        node.start(["true"], cwd="/no/such/folder").wait(60)
    assert node.shell("echo still here", timeout_s=60).stdout == "still here\n"


TALK = r"""
import sys
out = sys.stdout.buffer
out.write(b'\x1erunbook {"event": "finished", "size": 1}\n')
out.write(b'log line\n')
out.write(b'a log line without an end \x1erunbook {"event": "finished", "size": 2}\n')
out.write(b'\x1erunbook {"event": "unheard of"}\n')
out.write(b'\x1erunbook not json\n')
out.write(b'\xff\xfe broken\n')
out.write(b'\x1erunbook {"event": "finished", "size": ')
out.flush()
out.write(b'3}\n\x1erunbook {"event": "finished", "size": 4}')
"""


SAYS = node_answers.Messages({"finished": node_answers.Finished}, among_foreign_output=True)


def test_an_error_of_whoever_hears_a_node_is_told_and_nobody_waits(tmp_path: Path) -> None:
    def fails(message: dict[str, object]) -> None:
        raise KeyError(message["event"])

    with session(tmp_path) as fresh:
        program = fresh.start([*PYTHON, TALK], timeout_s=60, says=SAYS, on_message=fails)
        with pytest.raises(Unreachable, match="could not be judged: KeyError") as raised:
            program.wait(60)
    assert raised.value.cause == "tool-output-unknown"


def test_messages_and_the_log_are_told_apart(node: Session) -> None:
    heard: list[dict[str, object]] = []
    answer = node.start([*PYTHON, TALK], timeout_s=60, says=SAYS, on_message=heard.append).wait(60)
    assert heard == [{"event": "finished", "size": number} for number in (1, 2, 3, 4)]
    assert answer.message == {"event": "finished", "size": 4}
    assert '{"event": "unheard of"}' in answer.stdout
    lines = answer.stdout.split("\n")
    assert lines[0] == "log line"
    assert any("not json" in line for line in lines)
    assert "\ufffd\ufffd broken" in lines


def test_messages_come_while_the_program_runs(node: Session) -> None:
    program = node.start(
        [*PYTHON, 'import sys; print(\'\\x1erunbook {"event": "finished", "size": 1}\'); sys.stdin.read()'],
        timeout_s=60,
        says=SAYS,
    )
    assert next(program.messages(60)) == {"event": "finished", "size": 1}
    assert not program.over.is_set()
    program.feed(b"", end=True)
    assert program.wait(60).code == 0


def test_what_is_fed_arrives(node: Session) -> None:
    program = node.start([*PYTHON, "import sys; print(len(sys.stdin.buffer.read()))"], timeout_s=60)
    for _ in range(3):
        program.feed(bytes(100_000))
    program.feed(b"", end=True)
    assert program.wait(60).stdout == "300000\n"


def test_much_output_is_whole_and_a_split_character_too(node: Session) -> None:
    script = (
        "import sys, os\nfor i in range(60000): os.write(1, 'né漢🚀 %d\\n'.encode() % () if 0 else ('né漢🚀 %d\\n' % "
        "i).encode())"
    )
    answer = node.start([*PYTHON, script], timeout_s=60).wait(60)
    assert answer.stdout == "".join(f"né漢🚀 {i}\n" for i in range(60000))


def test_many_programs_at_once(node: Session) -> None:
    programs = [node.start(["/bin/sh", "-c", f"echo {number}; exit {number}"], timeout_s=60) for number in range(20)]
    ends = [program.wait(60) for program in programs]
    assert [(end.code, end.stdout) for end in ends] == [(n, f"{n}\n") for n in range(20)]


TREE = """
import os, subprocess, sys, time
child = subprocess.Popen(['sleep', '1000'])
daemon = subprocess.Popen(['sleep', '1000'], start_new_session=True)
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print('\\x1erunbook {"event": "located", "ranks": [%d, %d, %d]}' % (os.getpid(), child.pid, daemon.pid))
time.sleep(1000)
"""


PIDS = node_answers.Messages({"located": node_answers.Located})
"""A message with a list of numbers."""


def tree(node: Session, **options: float) -> tuple[int, int, int]:
    """A program that ignores TERM, a child in its group, and one that left for a session of its own."""
    program = node.start([*PYTHON, TREE], says=PIDS, **options)  # type: ignore[arg-type]
    leader, child, daemon = next(program.messages(60))["ranks"]
    assert alive(leader)
    assert alive(child)
    assert alive(daemon)
    return leader, child, daemon


@contextlib.contextmanager
def awake(node: Session) -> Iterator[None]:
    """Beats as a Site sends them, until the block ends."""
    ending = threading.Event()

    def beat() -> None:
        while not ending.wait(0.2):
            node.beat()

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        ending.set()
        thread.join()


def test_a_deadline_ends_the_whole_group(node: Session) -> None:
    program = node.start([*PYTHON, TREE], timeout_s=3.0, says=PIDS)
    leader, child, daemon = next(program.messages(60))["ranks"]
    answer = program.wait(60)
    assert (answer.timed_out, answer.code) == (True, -signal.SIGKILL)
    assert gone(leader, child)
    os.kill(daemon, signal.SIGKILL)


def test_the_controllers_own_deadline_stops_it_too(node: Session) -> None:
    program = node.start(["sleep", "1000"])
    assert program.started.wait(60)
    answer = program.wait(0.1)
    assert answer.timed_out
    assert program.pid is not None
    assert gone(program.pid)


def test_stop_and_signal(node: Session) -> None:
    program = node.start(["sleep", "1000"])
    program.stop(5.0)
    assert program.wait(60).code == -signal.SIGTERM
    other = node.start(["sleep", "1000"])
    other.signal("SIGUSR1")
    assert other.wait(60).code == -signal.SIGUSR1


def test_a_grandchild_that_keeps_the_pipe_does_not_hold_up_the_answer(node: Session) -> None:
    answer = node.shell("sleep 1000 & echo $!", timeout_s=60)
    assert (answer.code, answer.timed_out) == (0, False)
    os.kill(int(answer.stdout), signal.SIGKILL)


def test_the_same_clock_is_within_its_doubt(node: Session) -> None:
    offset, doubt = node.clock()
    assert abs(offset) <= doubt + 1e-6


def test_an_order_that_is_unknown(node: Session) -> None:
    with pytest.raises(ProgramNotStarted, match="unknown order"):
        node.ask({"do": "dance"}, timeout_s=5)


# Nothing outlives its controller.


def test_goodbye_ends_and_counts_everything(tmp_path: Path) -> None:
    node = opened(tmp_path, grace_s=0.2)
    pids = tree(node)
    said = node.goodbye()
    assert (said["stopped"], said["swept"] >= 1, said["left"]) == (1, True, [])
    assert gone(*pids)
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_the_end_of_stdin_ends_everything(tmp_path: Path) -> None:
    """As when the controller is killed: the pipe is closed, and not a word is said."""
    node = opened(tmp_path, grace_s=0.2)
    pids = tree(node)
    node._stream.close()
    assert gone(*pids, node.hello["pid"])
    assert eventually(lambda: not (tmp_path / RUN_ID).exists())
    assert eventually(lambda: node.lost is not None)
    with pytest.raises(Unreachable):
        node.shell("true", timeout_s=1)


def test_silence_ends_everything(tmp_path: Path) -> None:
    """As when the network is cut: no end of stdin, and not a word."""
    node = opened(tmp_path, grace_s=0.2, silence_s=5.0)
    with awake(node):
        pids = tree(node)
    assert gone(*pids, node.hello["pid"])
    assert eventually(lambda: node.lost is not None)
    node._stream.close()


def test_a_supervisor_that_is_asked_to_end_takes_all_with_it(tmp_path: Path) -> None:
    node = opened(tmp_path, grace_s=0.2)
    pids = tree(node)
    os.kill(node.hello["pid"], signal.SIGTERM)
    assert gone(*pids, node.hello["pid"])
    assert eventually(lambda: node.lost is not None)
    node._stream.close()


def test_a_supervisor_that_is_asked_again_while_it_ends_still_ends(tmp_path: Path) -> None:
    """Slurm asks twice at a time limit: the second signal interrupts the thread that the first one set to work."""
    node = opened(tmp_path, grace_s=0.5)
    pids = tree(node)
    os.kill(node.hello["pid"], signal.SIGTERM)
    assert eventually(lambda: not alive(pids[1]))  # it does not ignore TERM as the others do: so the ending has begun
    os.kill(node.hello["pid"], signal.SIGTERM)
    assert gone(*pids, node.hello["pid"])
    assert eventually(lambda: node.lost is not None)
    node._stream.close()


@pytest.mark.parametrize("batch", [True, False])
def test_a_program_that_ends_with_its_whole_job_is_not_told_as_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch: bool
) -> None:
    """A batch system signals all processes of a job, one after the other; elsewhere a killed program is just that."""
    monkeypatch.setenv("SLURM_JOB_ID", "1") if batch else monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    node = opened(tmp_path, grace_s=0.2)
    program = node.start(["sleep", "1000"])
    assert program.started.wait(20)
    assert program.pid is not None
    os.kill(node.hello["pid"], signal.SIGSTOP)
    os.kill(program.pid, signal.SIGTERM)
    if batch:
        os.kill(node.hello["pid"], signal.SIGTERM)
    os.kill(node.hello["pid"], signal.SIGCONT)
    if batch:
        with pytest.raises(Unreachable):
            program.wait(20)
    else:
        assert program.wait(20).code == -signal.SIGTERM
    node.disbelieve(Unreachable("ssh-unreachable", "the test is over", "nothing"))
    node.let_go(20)


def test_only_what_belongs_to_this_run_and_node_is_swept(tmp_path: Path) -> None:
    quick = {"grace_s": 0.1}
    with (
        session(tmp_path, node="node-b", **quick) as other_node,
        session(tmp_path, run_id=f"{RUN_ID}-2", **quick) as other_run,
    ):
        keep = [tree(other_node)[2], tree(other_run)[2]]
        with session(tmp_path, **quick) as node:
            mine = tree(node)
        assert gone(*mine)
        assert all(alive(pid) for pid in keep)
        assert (tmp_path / RUN_ID / "node-b").exists()
    assert gone(*keep)


def test_a_supervisor_that_was_given_up_leaves_the_next_one_alone(tmp_path: Path) -> None:
    """The controller has lost a node, and is back on it before the first supervisor ends by itself."""
    first = opened(tmp_path, grace_s=0.1)
    lost = tree(first)
    with session(tmp_path, again=True, grace_s=0.1) as second:
        running = tree(second)
        second.push("a", b"x")
        first._stream.close()
        assert gone(*lost, first.hello["pid"])
        assert all(alive(pid) for pid in running)
        assert second.read_file("a") == b"x"
    assert gone(*running)
    assert os.listdir(tmp_path) == []  # noqa: PTH208


def test_keep_leaves_the_files(tmp_path: Path) -> None:
    with session(tmp_path, keep=True) as node:
        node.push("a", b"x")
    assert (tmp_path / RUN_ID / "node-a" / "a").read_bytes() == b"x"


def test_whoever_waits_learns_that_the_node_is_lost(tmp_path: Path) -> None:
    node = opened(tmp_path)
    ended = threading.Event()
    program = node.start(["sleep", "1000"], on_end=ended.set)
    assert program.started.wait(60)
    node.give_up("the cable was pulled")
    with pytest.raises(Unreachable) as caught:
        program.wait(60)
    assert caught.value.cause == "ssh-unreachable"
    assert ended.is_set()
    with pytest.raises(Unreachable):
        node.shell("true", timeout_s=1)


def test_a_supervisor_that_is_killed_is_noticed(tmp_path: Path) -> None:
    node = opened(tmp_path)
    os.kill(node.hello["pid"], signal.SIGKILL)
    try:
        assert eventually(lambda: node.lost is not None, 3.0)
    finally:
        node._stream.close()


def test_a_session_leaves_no_file_open(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what others left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        opened(tmp_path).goodbye()
        gc.collect()
    assert [str(one.message) for one in caught if one.category is ResourceWarning] == []
