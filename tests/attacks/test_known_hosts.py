"""known_hosts files of every kind, against what OpenSSH makes of the same ones: `ssh-keygen -F` for whom a line is for, `ssh`
itself for which host key is taken."""

from __future__ import annotations

import base64
import hashlib
import hmac
import multiprocessing
import os
import resource
import shutil
import signal
import socket
import stat
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import paramiko
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from profiles import examples, one_in

from runbook.model.errors import Unreachable
from runbook.model.inventory import Node, Ssh
from runbook.transport.ssh import Logins
from runbook.transport.ssh_keys import MAX_KEY_FILE_BYTES, MAX_LINE_BYTES, KnownHosts

needs_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
needs_sshd = pytest.mark.skipif(SSHD is None or shutil.which("ssh") is None, reason="ssh or sshd is not installed")


@dataclass(frozen=True)
class Key:
    private: str
    public: str  # its type and its base64

    @property
    def kind(self) -> str:
        return self.public.split()[0]

    @property
    def blob(self) -> bytes:
        return base64.b64decode(self.public.split()[1])

    @property
    def fingerprint(self) -> str:
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.blob).digest()).decode().rstrip("=")


def new_key(kind: str) -> Key:
    secret: ed25519.Ed25519PrivateKey | ec.EllipticCurvePrivateKey
    secret = ed25519.Ed25519PrivateKey.generate() if kind == "ed25519" else ec.generate_private_key(ec.SECP256R1())
    own = serialization.PrivateFormat.OpenSSH
    private = secret.private_bytes(serialization.Encoding.PEM, own, serialization.NoEncryption())
    public = secret.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Key(private.decode(), public.decode())


ED25519, ED25519_B, ECDSA, ECDSA_B = (new_key(kind) for kind in ("ed25519", "ed25519", "ecdsa", "ecdsa"))
KEYS = (ED25519, ED25519_B, ECDSA, ECDSA_B)


def hashed(host: str, salt: bytes = b"01234567890123456789") -> str:
    digest = hmac.new(salt, host.encode(), hashlib.sha1).digest()
    return f"|1|{base64.b64encode(salt).decode()}|{base64.b64encode(digest).decode()}"


# Whom a line is for.

HOSTS = ("node-1", "node-12", "10.0.0.1", "10.0.0.12", "fe80::1", "[node-1]:2222", "[10.0.0.1]:2222", "a")
PIECES = (
    *HOSTS,
    "*",
    "?",
    "node-*",
    "*1",
    "10.0.0.?",
    "10.*.0.1*",
    "[node-*]:2222",
    "[*]:*",
    "NODE-1",
    "**a**",
    "",
    "no such",
)
PATTERN = st.builds(lambda sign, piece: sign + piece, st.sampled_from(["", "", "", "!"]), st.sampled_from(PIECES))
NAMES = st.one_of(
    st.lists(PATTERN, min_size=1, max_size=4).map(",".join),
    st.builds(hashed, st.sampled_from(HOSTS), st.binary(min_size=20, max_size=20)),
    st.just("|1|bm8=|base64"),
    st.sampled_from(HOSTS).map(lambda host: f"{host},{'x' * 1023}"),
    st.sampled_from(HOSTS).map(lambda host: f"{'x' * 1022},{host}"),
)
MARKER = st.sampled_from(["", "", "", "@revoked ", "@cert-authority ", "@unknown ", "@revoked @revoked "])
BLANK = st.sampled_from([" ", "\t", "  ", " \t"])
COMMENT = st.sampled_from(["", " root@somewhere", " a b c", "\t#"])


@st.composite
def lines(draw: st.DrawFn) -> str:
    if draw(st.integers(0, 5)) == 0:
        return draw(
            st.sampled_from(["", "# a comment", "junk", "node-1", "node-1 ssh-ed25519", "node-1 x y", "\v", "🙂 é"])
        )
    key = draw(st.sampled_from(KEYS))
    public = draw(
        st.sampled_from([key.public] * 8 + [f"ssh-rsa {key.public.split()[1]}", f"{key.kind} AAAA", f"{key.kind} %%%"])
    )
    lead = draw(st.sampled_from(["", "", "", " ", "\t "]))
    names = draw(NAMES).replace("no such", "no-such")
    return f"{lead}{draw(MARKER)}{names}{draw(BLANK)}{public}{draw(COMMENT)}"


FILES = st.builds(
    lambda listed, ending, last: ending.join(listed) + (ending if last else ""),
    st.lists(lines(), max_size=8),
    st.sampled_from(["\n", "\n", "\r\n"]),
    st.booleans(),
)


def by_openssh(file: Path, host: str) -> set[tuple[int, str, str]]:
    """(line, marker, fingerprint) of every line that is for the host."""
    done = subprocess.run(
        ["ssh-keygen", "-l", "-F", host, "-f", str(file)], capture_output=True, text=True, check=False, timeout=20
    )
    found, number, marker = set(), 0, ""
    for line in done.stdout.splitlines():
        if line.startswith("# Host "):
            words = line.rpartition("found: line ")[2].split()
            number, marker = (
                int(words[0]),
                {"CA": "cert-authority", "REVOKED": "revoked"}[words[1]] if words[1:] else "",
            )
        else:
            found.add((number, marker, next(word for word in line.split() if word.startswith("SHA256:"))))
    return found


@needs_keygen
@examples(150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=FILES, host=st.sampled_from(HOSTS))
def test_a_line_is_for_whom_openssh_says_it_is(text: str, host: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(text.encode())
    ours = {
        (int(entry.place.rpartition(":")[2]), entry.marker, entry.fingerprint)
        for entry in KnownHosts([str(file)]).of(host).named
    }
    assert ours == by_openssh(file, host)


@examples(300, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=400), host=st.sampled_from(HOSTS))
def test_bytes_of_any_kind_are_read_without_harm(data: bytes, host: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(data + f"\n{host} {ED25519.public}\n".encode())
    known = KnownHosts([str(file)]).of(host)
    assert known.has(ED25519.blob)
    assert bool(known.unread) is (b"\0" in data)


# Which host key is taken.


@dataclass(frozen=True)
class Server:
    port: int
    home: Path
    login: Path

    @property
    def named(self) -> str:
        return f"[127.0.0.1]:{self.port}"

    @property
    def known_hosts(self) -> Path:
        return self.home / ".ssh" / "known_hosts"

    def openssh(self, host_keys: str, file: Path | None = None) -> bool:
        """Whether `ssh` takes the host key."""
        option = {"strict": "yes", "accept-new": "accept-new"}[host_keys]
        done = subprocess.run(
            [
                *("ssh", "-F", "none", "-i", str(self.login), "-p", str(self.port), "-o", "BatchMode=yes"),
                *("-o", f"UserKnownHostsFile={file or self.known_hosts}", "-o", "GlobalKnownHostsFile=none"),
                *("-o", f"StrictHostKeyChecking={option}", "-o", "UpdateHostKeys=no", "-o", "IdentitiesOnly=yes"),
                *("127.0.0.1", "true"),
            ],
            capture_output=True,
            text=True,
            check=False,
            timeout=30,
        )
        assert done.returncode == 0 or "Host key verification failed" in done.stderr, done.stderr
        return done.returncode == 0

    def runbook(self, host_keys: str) -> Unreachable | None:
        """Why the login fails, or None."""
        ssh = Ssh(port=self.port, key=str(self.login), host_keys=host_keys, connect_timeout_s=10.0)
        try:
            Logins().connect(Node("node-a", "127.0.0.1", ssh=ssh)).close()
        except Unreachable as error:
            return error
        return None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """A real sshd on loopback with one ed25519 host key, which lets us in."""
    assert SSHD is not None
    folder = tmp_path_factory.mktemp("sshd")
    login = folder / "id"
    for path, text in ((login, new_key("ed25519").private), (folder / "host", ED25519.private)):
        path.touch(mode=0o600)
        path.write_text(text)
    public = subprocess.run(["ssh-keygen", "-y", "-f", str(login)], capture_output=True, text=True, check=True).stdout
    (folder / "authorized").write_text(public)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1\nPort {port}\nHostKey {folder / 'host'}\nAuthorizedKeysFile {folder / 'authorized'}\n"
        "StrictModes no\nPermitRootLogin yes\nUsePAM no\nPidFile none\nPasswordAuthentication no\nMaxStartups 100\n"
    )
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with (folder / "log").open("w") as log:
        process = subprocess.Popen([SSHD, "-D", "-e", "-f", str(folder / "config")], stderr=log)
    try:
        deadline = time.monotonic() + 20
        while "Server listening" not in (folder / "log").read_text():
            assert process.poll() is None, (folder / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)
        yield port, login
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def server(served: tuple[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    port, login = served
    (tmp_path / ".ssh").mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return Server(port, tmp_path, login)


SAID: dict[str, Callable[[str], str]] = {
    "its key": lambda name: f"{name} {ED25519.public}",
    "another key": lambda name: f"{name} {ED25519_B.public}",
    "a key of another type": lambda name: f"{name} {ECDSA.public}",
    "its key, hashed": lambda name: f"{hashed(name)} {ED25519.public}",
    "another type, hashed": lambda name: f"{hashed(name)} {ECDSA.public}",
    "its key by a wildcard": lambda name: f"*127.0.0.* {ED25519.public}",
    "another type by a wildcard": lambda name: f"*127.0.?.1* {ECDSA_B.public}",
    "excepted from another": lambda name: f"*,!{name} {ECDSA.public}",
    "its key, revoked": lambda name: f"@revoked {name} {ED25519.public}",
    "another, revoked": lambda name: f"@revoked {name} {ECDSA.public}",
    "an authority": lambda name: f"@cert-authority {name} {ED25519.public}",
    "no key": lambda name: f"{name} ssh-ed25519 {ECDSA.public.split()[1]}",
    "another host": lambda name: f"10.9.8.7 {ED25519_B.public}",
    "its key without the port": lambda name: f"127.0.0.1 {ED25519.public}",
    "another without the port": lambda name: f"127.0.0.1 {ED25519_B.public}",
    "another type without the port": lambda name: f"127.0.0.1 {ECDSA.public}",
}
"""What a line says of the server."""

COMBINED = st.lists(st.sampled_from(sorted(SAID)), max_size=3, unique=True)


@needs_sshd
@pytest.mark.parametrize("host_keys", one_in(3, ["strict", "accept-new"]))
@pytest.mark.parametrize("said", [(), *((one,) for one in SAID)], ids=lambda said: ", ".join(said) or "nothing")
def test_a_host_key_is_taken_where_openssh_takes_it(server: Server, said: tuple[str, ...], host_keys: str) -> None:
    judge(server, said, host_keys)


@needs_sshd
@examples(30, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(said=COMBINED, host_keys=st.sampled_from(["strict", "accept-new"]))
def test_so_with_several_lines(server: Server, said: list[str], host_keys: str) -> None:
    judge(server, tuple(said), host_keys)


def judge(server: Server, said: tuple[str, ...], host_keys: str) -> None:
    text = "".join(f"{SAID[one](server.named)}\n" for one in said)
    copy = server.home / "for_openssh"
    copy.write_text(text)
    server.known_hosts.write_text(text)
    theirs = server.openssh(host_keys, copy)
    error = server.runbook(host_keys)
    assert (error is None) is theirs, f"{said}: {error}"
    kept = server.known_hosts.read_text()
    assert kept == copy.read_text(), "and keeps what OpenSSH keeps"
    if error is not None:
        assert error.cause in ("ssh-host-key-unknown", "ssh-host-key-changed")
        assert any(ED25519.fingerprint in line for line in error.evidence)


@needs_sshd
@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
def test_a_key_that_is_revoked_without_its_port_is_not_taken_though_openssh_does(
    server: Server, host_keys: str
) -> None:
    server.known_hosts.write_text(f"@revoked 127.0.0.1 {ED25519.public}\n")
    error = server.runbook(host_keys)
    assert error is not None
    assert "revoked" in error.says


# Files that are none.


def sparse(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as sock:
        here = Path.cwd()
        os.chdir(path.parent)  # a socket's path may be no longer than 108 bytes
        try:
            sock.bind(path.name)
        finally:
            os.chdir(here)


def on_a_file(path: Path) -> None:
    """Its folder is none."""
    path.parent.rmdir()
    path.parent.write_text("")


ODD: dict[str, tuple[Callable[[Path], object], str]] = {
    "directory": (lambda path: path.mkdir(), "it is a directory"),
    "named pipe": (lambda path: os.mkfifo(path), "it is a named pipe"),
    "socket": (unix_socket, "No such device"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "it is a device"),
    "dangling link": (lambda path: path.symlink_to("nowhere/known_hosts"), "it is a link to nowhere/known_hosts"),
    "link to itself": (lambda path: path.symlink_to(path), "symbolic links"),
    "folder that is a file": (on_a_file, "Not a directory"),
    "binary": (lambda path: path.write_bytes(os.urandom(64) + b"\0\n"), "it is no text"),
    "a hole": (lambda path: sparse(path, 4096), "it is no text"),
    "UTF-16": (lambda path: path.write_text(f"node {ED25519.public}\n", encoding="utf-16"), "it is no text"),
    "1 GB": (lambda path: sparse(path, 1 << 30), "1 GiB"),
    "a line of 1 MB": (lambda path: path.write_text(f"{'x' * 1_000_000} {ECDSA.public}\n"), "a line of 977 KiB"),
    "many names": (
        lambda path: path.write_text(",".join(["a*b"] * 100_000) + f" {ECDSA.public}\n"),
        "a line of 391 KiB",
    ),
}


@needs_sshd
@pytest.mark.parametrize("host_keys", ["strict", "accept-new"])
@pytest.mark.parametrize("kind", ODD)
def test_what_is_no_known_hosts_file_is_named_and_nothing_is_trusted_for_it(
    server: Server, kind: str, host_keys: str
) -> None:
    make, reason = ODD[kind]
    make(server.known_hosts)
    before = server.known_hosts.lstat() if server.known_hosts.parent.is_dir() else None
    error = server.runbook(host_keys)
    assert error is not None
    assert error.cause == "ssh-host-key-unknown"
    assert any(str(server.known_hosts) in line and reason in line for line in error.evidence), error.evidence
    assert reason in error.says
    if before is not None:
        after = server.known_hosts.lstat()
        assert (after.st_mode, after.st_size, after.st_mtime_ns) == (before.st_mode, before.st_size, before.st_mtime_ns)


@pytest.mark.parametrize("kind", ODD)
def test_what_the_other_files_know_still_counts(kind: str, tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    odd, good = tmp_path / ".ssh" / "known_hosts", tmp_path / "good"
    ODD[kind][0](odd)
    good.write_text(f"node {ED25519.public}\n")
    known = KnownHosts([str(odd), str(good)]).of("node")
    assert known.has(ED25519.blob)
    assert known.unread


def test_a_file_that_may_not_be_read(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"node {ED25519.public}\n")
    file.chmod(0)
    pid = os.fork()
    if pid == 0:
        try:
            if os.getuid() == 0:
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            found = KnownHosts([str(file)]).of("node")
            os._exit(0 if not found.named and "Permission denied" in found.unread[0] else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


# New keys.


BEFORE = {
    "nothing": b"",
    "a comment": b"# a comment",
    "half a line": b"node ssh-ed25519",
    "an empty line": b"\n",
    "a line of Windows": b"a\r\n",
    "a key without a host": ED25519.public.encode(),
}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE)
def test_a_new_key_is_a_line_of_its_own_whatever_was_there(before: bytes, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_bytes(before)
    assert KnownHosts([str(file)]).learn(str(file), "new", ED25519.kind, ED25519.blob) is None
    between = b"" if not before or before.endswith(b"\n") else b"\n"
    assert file.read_bytes() == before + between + f"new {ED25519.public}\n".encode()


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o640, 0o666])
def test_mode_and_link_stay_as_they_were(mode: int, tmp_path: Path) -> None:
    real, file = tmp_path / "elsewhere", tmp_path / "known_hosts"
    real.write_text("")
    real.chmod(mode)
    file.symlink_to(real)
    KnownHosts([str(file)]).learn(str(file), "new", ED25519.kind, ED25519.blob)
    assert file.is_symlink()
    assert stat.S_IMODE(real.stat().st_mode) == mode
    assert real.read_text() == f"new {ED25519.public}\n"


def test_a_file_that_was_not_there_is_the_users_alone(tmp_path: Path) -> None:
    file = tmp_path / ".ssh" / "known_hosts"
    KnownHosts([str(file)]).learn(str(file), "new", ED25519.kind, ED25519.blob)
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)


@pytest.mark.parametrize("name", ["a b", "a\nb", "*", "a,b", "node?", "!a", "|1|a", "#a", "@revoked", "a\tb", "a\rb"])
def test_no_line_is_written_for_a_name_that_would_mean_another(name: str, tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    with pytest.raises(OSError, match="cannot hold a host of the name"):
        KnownHosts([str(file)]).learn(str(file), name, ED25519.kind, ED25519.blob)
    assert not file.exists()


def test_what_another_run_has_learned_meanwhile_counts(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"other {ECDSA.public}")
    one, other = KnownHosts([str(file)]), KnownHosts([str(file)])
    assert one.learn(str(file), "new", ED25519.kind, ED25519.blob) is None
    assert other.learn(str(file), "new", ED25519.kind, ED25519.blob) is None
    refused = other.learn(str(file), "new", ECDSA.kind, ECDSA.blob)
    assert refused is not None
    assert (refused.key, refused.place) == (ED25519.blob, f"{file}:2")
    assert file.read_text() == f"other {ECDSA.public}\nnew {ED25519.public}\n"
    replaced = tmp_path / "replaced"  # as ssh-keygen -R leaves it
    replaced.write_text(f"third {ECDSA.public}\n")
    replaced.replace(file)
    assert other.learn(str(file), "third", ED25519.kind, ED25519.blob) is not None


def write_many(file: str, worker: int) -> None:
    known = KnownHosts([file])
    for number in range(60):
        known.learn(file, f"node-{worker}-{number}", ED25519.kind, ED25519.blob)
        known.learn(file, f"shared-{number}", ED25519.kind, ED25519.blob)


def test_runs_that_write_at_once_do_not_get_between_each_other(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"first {ECDSA.public}")
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=write_many, args=(str(file), number)) for number in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        assert worker.exitcode == 0
    names = [line.split()[0] for line in file.read_text().splitlines()]
    wanted = ["first", *(f"node-{w}-{n}" for w in range(4) for n in range(60)), *(f"shared-{n}" for n in range(60))]
    assert sorted(names) == sorted(wanted)
    assert all(line.split(" ", 1)[1] in (ED25519.public, ECDSA.public) for line in file.read_text().splitlines())


def test_a_line_that_does_not_fit_on_the_disk_leaves_nothing_behind(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"first {ECDSA.public}\n")
    before = file.read_text()
    pid = os.fork()
    if pid == 0:
        try:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 20, len(before) + 20))
            try:
                KnownHosts([str(file)]).learn(str(file), "new", ED25519.kind, ED25519.blob)
            except OSError:
                os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert file.read_text() == before


# What it costs.


def cpu_s(work: Callable[[], object]) -> float:
    """The least of some tries: other programs can only add to it."""
    tries = []
    for _ in range(5):
        begun = time.process_time()
        work()
        tries.append(time.process_time() - begun)
    return min(tries)


@pytest.mark.cost
def test_a_host_costs_the_same_however_many_others_are_known(tmp_path: Path) -> None:
    spent = []
    for count in (10_000, 40_000):
        file = tmp_path / f"known_hosts.{count}"
        file.write_text("".join(f"node-{n},10.1.{n >> 8}.{n & 255} {ED25519.public}\n" for n in range(count)))
        known = KnownHosts([str(file)])
        wanted = [f"node-{n * 9}" for n in range(1000)]
        assert all(known.of(name).has(ED25519.blob) for name in wanted)
        spent.append(cpu_s(lambda known=known, wanted=wanted: [known.of(name) for name in wanted]))  # type: ignore[misc]
    assert spent[1] < 3 * spent[0]


@pytest.mark.cost
@pytest.mark.parametrize(
    "line",
    [
        lambda n: f"node-{n} {ED25519.public}\n",
        lambda n: f"{hashed(f'node-{n}', n.to_bytes(20, 'big'))} {ED25519.public}\n",
        lambda n: f"node-{n}*,*-{n}?,!*{n} {ED25519.public}\n",
        lambda n: "*a" * (MAX_LINE_BYTES // 1024) + f" {ED25519.public}\n",
        lambda n: ",".join(["a?" * 100] * 20) + f" {ED25519.public}\n",
        lambda n: "@revoked " * 100 + "\n",
        lambda n: " \t" * 200 + "\n",
        lambda n: "\n",
    ],
)
def test_reading_and_asking_cost_no_more_than_in_proportion(line: Callable[[int], str], tmp_path: Path) -> None:
    name = "a" * 60
    spent = []
    for count in (1000, 2000):
        file = tmp_path / f"known_hosts.{count}"
        file.write_text("".join(line(n) for n in range(count)))
        spent.append(cpu_s(lambda file=file: KnownHosts([str(file)]).of(name)))  # type: ignore[misc]
    assert spent[1] < 4 * spent[0] + 0.02


def test_no_more_than_its_share_is_read_of_a_file_that_grows(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"node {ED25519.public}\n")
    known = KnownHosts([str(file)])
    sparse(file, MAX_KEY_FILE_BYTES + 1)
    with pytest.raises(OSError, match="too large"):
        known.learn(str(file), "new", ED25519.kind, ED25519.blob)


def test_the_types_that_are_known_are_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "known_hosts"
    file.write_text(f"@revoked node {ED25519.public}\nnode {ECDSA.public}\nbare {ED25519.public}\n")
    known = KnownHosts([str(file)])
    assert known.of("node", "bare").kinds == (ECDSA.kind,)
    assert known.of("[bare]:22", "bare").kinds == (ED25519.kind,)
    assert paramiko.ECDSAKey(data=ECDSA.blob).get_name() == ECDSA.kind
