"""Finds the node's own tools, and runs them so that neither a tool that hangs nor one that prints without end does
harm."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import threading
import time

from runbook.node.proc import process_stat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import IO, Any, Literal, Protocol

    from runbook.transport.node_answers import Ran

    class Sink(Protocol):
        """Takes a tool's output, piece by piece."""

        def feed(self, data: bytes) -> None: ...

        def text(self) -> str: ...


MAX_TOOL_OUTPUT_BYTES = 16 << 20  # the most bytes of a tool's output that are kept
MAX_SENT_CHARACTERS = 1 << 20
"""The most characters of a tool's output that an answer carries."""

OUTPUT_END_TIMEOUT_S = 1.0  # seconds to wait for the rest of the output of a tool that has ended or was killed
TOOL_FOLDERS = (
    *("/usr/sbin", "/sbin", "/usr/local/sbin", "/usr/local/bin", "/usr/bin", "/bin"),
    # nvidia-smi in WSL, on nodes of GKE, and on CoreOS
    *("/usr/lib/wsl/lib", "/usr/local/nvidia/bin", "/opt/bin"),
)

SHORTAGE_ERRNOS = (
    errno.EAGAIN,
    errno.ENOMEM,
    errno.EMFILE,
    errno.ENFILE,
)  # errors because this login may start nothing more; they say nothing about the tool

DENIAL_TEXTS = (
    "a password",
    "terminal is required",
    "not allowed",
    "not in the sudoers",
    "may not run sudo",
    "must be root",
    "need to be root",
    "permission denied",
    "operation not permitted",
    "not authorized",
    "no new privileges",
    "must be owned by uid 0",
)
"""Texts that sudo, nft, iptables, ufw and others print if their caller lacks root's rights."""


def tool_folders() -> list[str]:
    """The folders of tools: those of PATH, and others that an ordinary user's PATH may lack."""
    return [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if folder] + list(TOOL_FOLDERS)


def find_tool(name: str) -> str | None:
    for folder in tool_folders():
        path = os.path.abspath(os.path.join(folder, name))  # absolute, since tools run in another folder
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return None


class Beginning:
    """Keeps the first bytes of an output: a tool that prints without end must not use up the node's memory."""

    def __init__(self, most: int = MAX_TOOL_OUTPUT_BYTES) -> None:
        self.most = most
        self.size = 0
        self.pieces: list[bytes] = []

    def feed(self, data: bytes) -> None:
        self.size += len(data)
        if self.size <= self.most:
            self.pieces.append(data)

    def text(self) -> str:
        return b"".join(self.pieces).decode("utf-8", "replace")


def run(
    argv: Sequence[str],
    seconds: float,
    text: str | None = None,
    sudo: str | None = None,
    env: Mapping[str, str] | None = None,
    out: Sink | None = None,
    err: Sink | None = None,
) -> Ran:
    """Runs a tool in a process group of its own, and kills the whole group after `seconds`. `text`: its stdin, short
    enough for a pipe. `sudo`: the path of sudo, run so that it never asks. `out`, `err`: take the tool's output, also
    what it printed before it was killed.

    Raises OSError or RuntimeError if this login may start nothing more: then the tool was not run.
    """
    if env is None:
        env = dict(os.environ, LC_ALL="C", LANG="C", PATH=os.pathsep.join(tool_folders()))
    try:
        process = subprocess.Popen(
            [sudo, "-n", *argv] if sudo else argv,
            stdin=subprocess.DEVNULL if text is None else subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=env,
            start_new_session=True,
            cwd="/",
        )
    except OSError as error:
        if error.errno in SHORTAGE_ERRNOS:
            raise
        return {"code": None, "out": "", "err": str(error)}
    out, err = out or Beginning(), err or Beginning()
    ended = threading.Thread(target=process.wait, daemon=True)
    readers = [
        threading.Thread(target=feed_from_stream, args=(stream, sink), daemon=True)
        for stream, sink in ((process.stdout, out), (process.stderr, err))
    ]
    try:
        for thread in [ended, *readers]:
            thread.start()
    except RuntimeError:  # this login may start no more threads, so the tool could not be waited for
        kill_group(process.pid, sudo)
        raise
    if process.stdin is not None:
        try:
            process.stdin.write((text or "").encode())
            process.stdin.close()
        except OSError:
            pass  # the tool has ended: its own output says why
    ended.join(seconds)
    if ended.is_alive():
        its = process_stat(process.pid)
        kill_group(process.pid, sudo)
        # A process in uninterruptible sleep does not even die of KILL, so the wait for it is limited.
        last = time.monotonic() + OUTPUT_END_TIMEOUT_S
        for thread in [ended, *readers]:
            thread.join(max(0.0, last - time.monotonic()))
        return {"timed_out": True, "state": its.state if its else "", "code": None, "out": "", "err": ""}
    last = time.monotonic() + OUTPUT_END_TIMEOUT_S
    for reader in readers:
        reader.join(max(0.0, last - time.monotonic()))  # a child that it left running may hold the pipes for ever
    return {"code": process.returncode, "out": out.text(), "err": err.text()}


def feed_from_stream(stream: IO[bytes], sink: Sink) -> None:
    """Feeds a stream to a sink until the stream ends."""
    try:
        with stream:
            while True:
                data = os.read(stream.fileno(), 1 << 16)
                if not data:
                    return
                sink.feed(data)
    except (OSError, ValueError):
        return


def kill_group(leader: int, sudo: str | None = None) -> None:
    """Kills a process group; through sudo if that runs it as root, since only root may kill it then."""
    try:
        os.killpg(leader, signal.SIGKILL)
    except ProcessLookupError:
        pass
    except OSError:
        if sudo:
            try:
                subprocess.call(
                    [sudo, "-n", "kill", "-KILL", "--", "-%d" % leader],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    timeout=2,
                )
            except (OSError, subprocess.TimeoutExpired):
                pass


def was_denied(said: Ran) -> bool:
    """Whether a tool failed because its caller lacks root's rights."""
    words = (said["err"] + said["out"][:1000]).lower()
    return bool(said["code"]) and any(one in words for one in DENIAL_TEXTS)


def run_status(said: Ran) -> Literal["ok", "denied", "timeout", "failed"]:
    """The status of a run of a tool. It may be `ok` with an exit code other than 0."""
    if said["code"] is None:
        return "timeout" if said.get("timed_out") else "failed"
    return "denied" if was_denied(said) else "ok"


def run_if_installed(name: str, arguments: Sequence[str], seconds: float) -> Ran:
    """The result of running the tool with this name, or {"missing": True}."""
    path = find_tool(name)
    return {"missing": True} if path is None else run([path, *arguments], seconds)


def sendable_result(said: Ran) -> Ran:
    """The result as an answer carries it. Output that is too long is left out, since its beginning could pass as
    all."""
    if "err" in said:
        said["err"] = said["err"][:MAX_SENT_CHARACTERS]
    if len(said.get("out", "")) > MAX_SENT_CHARACTERS:
        return {
            "code": None,
            "out": "",
            "err": "it printed more than %d MiB" % (MAX_SENT_CHARACTERS >> 20),
            "too_long": True,
        }
    return said


def printed_json(said: Ran) -> Any:
    """The JSON that a tool printed, or None."""
    try:
        return json.loads(said.get("out") or "null")
    except ValueError:
        return None
