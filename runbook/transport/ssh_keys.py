"""The keys of SSH: the private keys that a login may offer, or why they cannot be used, and the host keys in
known_hosts. Each file is read once for all nodes.

known_hosts is read and written as OpenSSH does it (sshd(8), SSH_KNOWN_HOSTS FILE FORMAT): paramiko's own reader fails
on markers and on any line that is not a key, knows no wildcards, and keeps one key of a kind for a host.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import errno
import fcntl
import hashlib
import hmac
import io
import os
import re
import stat
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import paramiko

from runbook.model.command_quoting import shell_word
from runbook.model.units import bytes_text


@dataclass(frozen=True)
class KeyFile:
    """A private key's file. `wrong` says why it cannot be used, and `remedy` what to do about it.

    With neither `key` nor `wrong`, the key has a certificate beside it, and paramiko reads both files by itself.
    """

    path: str
    key: paramiko.PKey | None = None
    wrong: str | None = None
    remedy: str = ""

    @property
    def label(self) -> str:
        return f"{self.path} ({self.key.get_name()} {self.key.fingerprint})" if self.key else self.path


class Keys:
    """The key files of one run, each of them read once: `keys(path)` gives a KeyFile."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, KeyFile] = {}

    def __call__(self, path: str) -> KeyFile:
        with self._lock:
            if path not in self._read:
                self._read[path] = _read_key_file(path)
            return self._read[path]


def _read_key_file(path: str) -> KeyFile:
    """The private key in a file, or why it cannot be used."""
    try:
        status = os.stat(path)  # noqa: PTH116 - beside os.getuid
        text = Path(path).read_bytes()
    except OSError as error:
        remedy = "name the right file in the inventory: `ssh: {key: ~/.ssh/id_ed25519}`"
        if isinstance(error, PermissionError):
            remedy = f"run as the user whose key it is, or `sudo chown $USER {shell_word(path)}`"
        return KeyFile(path, wrong=error.strerror or str(error), remedy=remedy)
    if text.startswith((b"ssh-", b"ecdsa-", b"sk-", b"---- BEGIN SSH2 PUBLIC", b"-----BEGIN PUBLIC")):
        if key := _agents_copy(_public_half_bytes(text)):
            return KeyFile(path, key)  # as ssh takes it: the private half never leaves the agent
        private = path.removesuffix(".pub")
        other = f": `ssh: {{key: {private}}}`" if private != path else ""
        return KeyFile(path, wrong="it is the public half of a key", remedy=f"name the private half{other}")
    if text.startswith(b"PuTTY-User-Key-File"):
        remedy = (
            f"convert it: `puttygen {shell_word(path)} -O private-openssh -o "
            f"{shell_word(path)}.openssh`, and name that file"
        )
        return KeyFile(path, wrong="it is a key of PuTTY's", remedy=remedy)
    # OpenSSH does not offer such a key either: a key of ours that others may read is not secret.
    if os.name != "nt" and status.st_uid == os.getuid() and status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return KeyFile(
            path, wrong=f"others may read it (its mode is {mode:04o})", remedy=f"`chmod 600 {shell_word(path)}`"
        )
    if Path(f"{path}-cert.pub").exists():
        return KeyFile(path)
    try:
        return KeyFile(path, paramiko.PKey.from_path(path))
    except Exception as error:  # noqa: BLE001 - a dozen kinds, by version of paramiko and cryptography
        locked = isinstance(error, paramiko.PasswordRequiredException) or "password" in str(error).lower()
        if locked:
            key = _agent_key(path, text)
            remedy = (
                f"`ssh-add {shell_word(path)}`, in the shell that starts runbook (first `eval "
                "$(ssh-agent)` if no agent runs)"
            )
            return KeyFile(
                path, key, None if key else "it has a passphrase, and no agent holds it", "" if key else remedy
            )
        return KeyFile(
            path,
            wrong=f"it is not a private key that can be read here ({str(error) or type(error).__name__})",
            remedy="name another in the inventory, `ssh: {key: …}`; `ssh-keygen -t ed25519` makes one",
        )


def _agent_key(path: str, text: bytes) -> paramiko.PKey | None:
    """The ssh-agent's copy of a key that is locked by a passphrase, found by its public half; None without one."""
    return _agents_copy(_public_key_bytes(path, text))


def _agents_copy(public: bytes | None) -> paramiko.PKey | None:
    """The key in the ssh-agent with this public half; None without one."""
    if public is None:
        return None
    with contextlib.suppress(paramiko.SSHException, OSError):
        agent = paramiko.Agent()
        for key in agent.get_keys():
            if key.asbytes() == public:
                return key  # signs through this connection to the agent, so the connection stays open
        agent.close()
    return None


def _public_half_bytes(text: bytes) -> bytes | None:
    """The key in a file of one line, `ssh-ed25519 AAAA... comment`; None in another form."""
    with contextlib.suppress(ValueError, IndexError):
        return base64.b64decode(text.split()[1])
    return None


def _public_key_bytes(path: str, text: bytes) -> bytes | None:
    """The public half of a private key: from the `.pub` file beside it, else out of the private file, where OpenSSH's
    own format holds it unencrypted. None when neither has it."""
    with contextlib.suppress(OSError):
        if (public := _public_half_bytes(Path(f"{path}.pub").read_bytes())) is not None:
            return public
    with contextlib.suppress(ValueError, struct.error):
        _, _, body = text.partition(b"-----BEGIN OPENSSH PRIVATE KEY-----")
        data = base64.b64decode(body.partition(b"-----END")[0])
        at = len(b"openssh-key-v1\0")
        for _ in ("cipher", "key derivation", "its options"):
            at += 4 + struct.unpack_from(">I", data, at)[0]
        at += 4  # how many keys: one
        (size,) = struct.unpack_from(">I", data, at)
        return data[at + 4 : at + 4 + size] or None
    return None


MAX_KEY_FILE_BYTES = 32 << 20
"""The most bytes of a known_hosts file: some 60,000 RSA keys. A larger file is not read, and is reported."""

MAX_LINE_BYTES = 64 << 10
"""The most bytes of a line of known_hosts. A longer line is not read, and is reported."""

MAX_HOST_NAME_BYTES = 1023
"""A line with a longer name matches no host (match_pattern_list in OpenSSH's match.c)."""

SALT_BYTES = 20
"""The length of the salt of a hashed name, which is hashed by HMAC-SHA1."""

LOCK_TIMEOUT_S = 5.0
"""How long we wait for other programs that write into the same file, before a new key fails to be written."""

UNWRITABLE_CHARACTER = re.compile(r"[\s,*?!|#@]")
"""Characters in a host's name that would change the meaning of a line."""


@dataclass(frozen=True, slots=True)
class KnownHost:
    """A line of known_hosts. `place` is FILE:LINE; `marker` is `revoked`, `cert-authority` or empty; `key` has the
    bytes of the wire format."""

    place: str
    marker: str
    hosts: str
    kind: str
    key: bytes

    @property
    def fingerprint(self) -> str:
        return "SHA256:" + base64.b64encode(hashlib.sha256(self.key).digest()).decode().rstrip("=")


@dataclass(frozen=True, slots=True)
class Known:
    """The lines of known_hosts about one host.

    `named` are those under its name as OpenSSH spells it, port included. `portless` are those under its bare name: when
    `named` has no key, a key among them is known as well, and any other key is unknown, not changed.
    `unread` says which parts of the files could not be read, and why.
    """

    named: tuple[KnownHost, ...]
    portless: tuple[KnownHost, ...] = ()
    unread: tuple[str, ...] = ()

    @property
    def keys(self) -> tuple[KnownHost, ...]:
        """The keys under the host's own name. A server that shows another key, of whatever type, shows a changed
        one."""
        return _entries_with_marker("", self.named)

    @property
    def authorities(self) -> tuple[KnownHost, ...]:
        return _entries_with_marker("cert-authority", self.named)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The types of the known keys: to be asked for first, since a server may have several keys."""
        return tuple(dict.fromkeys(entry.kind for entry in self.keys or _entries_with_marker("", self.portless)))

    def has(self, key: bytes) -> bool:
        """Whether this is a known key of the host."""
        return any(entry.key == key for entry in self.keys or _entries_with_marker("", self.portless))

    def revokes(self, key: bytes) -> KnownHost | None:
        """The line that revokes this key; None if no line does."""
        return next(
            (one for one in _entries_with_marker("revoked", (*self.named, *self.portless)) if one.key == key), None
        )


def _entries_with_marker(marker: str, entries: Iterable[KnownHost]) -> tuple[KnownHost, ...]:
    return tuple(entry for entry in entries if entry.marker == marker)


class _Line(NamedTuple):
    """A line of known_hosts that is split into fields but not decoded: most lines of a large file are never needed."""

    file: str
    number: int
    marker: bytes
    hosts: bytes
    kind: bytes
    key: bytes

    def entry(self) -> KnownHost | None:
        """The decoded line; None when its key is invalid: OpenSSH ignores such a line."""
        try:
            key = base64.b64decode(self.key, validate=True)
            (size,) = struct.unpack_from(">I", key)
        except (binascii.Error, struct.error):
            return None
        if key[4 : 4 + size] != self.kind:
            return None
        place, kind = f"{self.file}:{self.number}", self.kind.decode(errors="replace")
        return KnownHost(place, self.marker.decode().removeprefix("@"), self.hosts.decode(errors="replace"), kind, key)


@dataclass(slots=True)
class _ReadSoFar:
    """How far a file has been read: its identity (device and inode), and the bytes and lines read so far."""

    identity: tuple[int, int] = (0, 0)
    size: int = 0
    lines: int = 0


class KnownHosts:
    """The lines of some known_hosts files. Plain names are found in a table, hashed names by one HMAC for each salt,
    and the few lines with wildcards are tried one by one."""

    def __init__(self, files: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._plain: dict[str, list[_Line]] = defaultdict(list)
        self._patterns: list[tuple[_Patterns, _Line]] = []
        self._hashed: dict[bytes, dict[bytes, list[_Line]]] = defaultdict(dict)
        self._seen: dict[str, _ReadSoFar] = {}
        self._unread: list[str] = []
        for file in dict.fromkeys(files):
            self._read(file)

    def of(self, name: str, *portless: str) -> Known:
        """The lines about the host `name` (as OpenSSH spells it), in the order of the files; `portless` are its names
        without the port."""
        with self._lock:
            bare = tuple(entry for other in portless for entry in self._named(other))
            return Known(self._named(name), bare, tuple(self._unread))

    def learn(self, file: str, name: str, kind: str, key: bytes) -> KnownHost | None:
        """Append a line with a new key to a file, in one piece: other runs may do the same at this moment.

        If another program has written a different key for this name meanwhile, returns its line and writes nothing.
        Raises OSError when the file cannot be written.
        """
        if UNWRITABLE_CHARACTER.search(name):
            raise OSError(errno.EINVAL, f"known_hosts cannot hold a host of the name {name!r}")
        Path(file).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with _opened_known_hosts(file, os.O_RDWR | os.O_APPEND | os.O_CREAT) as descriptor:
            _wait_for_lock(descriptor)
            with self._lock:
                self._take(file, descriptor)
                keys = _entries_with_marker("", self._named(name))
            if keys:
                return None if any(entry.key == key for entry in keys) else keys[0]
            _append_line(descriptor, f"{name} {kind} {base64.b64encode(key).decode()}\n".encode())
        return None

    def _named(self, name: str) -> tuple[KnownHost, ...]:
        """The lines about a name, in the order of the files."""
        wanted = _ascii_lowercase(name.encode())
        lines = list(self._plain.get(wanted, ()))
        lines += [line for patterns, line in self._patterns if patterns.match(wanted)]
        for salt, digests in self._hashed.items():
            lines += digests.get(hmac.digest(salt, wanted.encode("latin-1"), "sha1"), ())
        order = {file: at for at, file in enumerate(self._seen)}
        lines.sort(key=lambda line: (order[line.file], line.number))
        return tuple(entry for line in lines if (entry := line.entry()) is not None)

    def _read(self, file: str) -> None:
        """Read a file, or note why it cannot be read. A missing file counts as empty, unless a link leads to it."""
        self._seen[file] = _ReadSoFar()
        try:
            with _opened_known_hosts(file, os.O_RDONLY) as descriptor:
                self._take(file, descriptor)
        except FileNotFoundError:
            if Path(file).is_symlink():
                target = os.readlink(file)  # noqa: PTH115
                self._unread.append(f"{file}: it is a link to {target}, which does not exist")
        except OSError as error:
            if error.errno in (errno.EMFILE, errno.ENFILE):
                raise  # a limit of this machine, which says nothing about the file
            self._unread.append(f"{file}: {error.strerror or error}")

    def _take(self, file: str, descriptor: int) -> None:
        """Read the part of the file that was not read yet: all of it, or what was appended since."""
        status = os.fstat(descriptor)
        seen = self._seen.setdefault(file, _ReadSoFar())
        if seen.identity != (status.st_dev, status.st_ino) or status.st_size < seen.size:
            seen = self._seen[file] = _ReadSoFar((status.st_dev, status.st_ino))
        data = _read_from_offset(descriptor, seen.size)
        if seen.size + len(data) > MAX_KEY_FILE_BYTES:
            self._unread.append(
                f"{file}: it is larger than {bytes_text(MAX_KEY_FILE_BYTES)}: only its beginning was read"
            )
        if b"\0" in data:
            line = seen.lines + 1 + data.count(b"\n", 0, data.index(b"\0"))
            self._unread.append(f"{file}:{line}: it is no text: there is a NUL byte")
        for number, text in enumerate(io.BytesIO(data), seen.lines + 1):
            if len(text) > MAX_LINE_BYTES:
                self._unread.append(f"{file}:{number}: a line of {bytes_text(len(text))}, which was not read")
            else:
                self._add(text, file, number)
            if text.endswith(b"\n"):  # a last line without its end may still grow
                seen.lines, seen.size = number, seen.size + len(text)

    def _add(self, text: bytes, file: str, number: int) -> None:
        """Enter a line into the tables, unless it is a comment or malformed: OpenSSH ignores such lines as well."""
        words = text.replace(b"\t", b" ").strip(b" \r\n").split(b" ", 1)
        marker = b""
        if words[0] in (b"@revoked", b"@cert-authority") and len(words) > 1:
            marker, words = words[0], words[1].lstrip(b" ").split(b" ", 1)
        if len(words) < 2 or words[0].startswith((b"#", b"@")):
            return
        hosts, rest = words[0], words[1].split(None, 2)
        if len(rest) < 2 or any(len(name) >= MAX_HOST_NAME_BYTES for name in hosts.split(b",")):
            return
        line = _Line(file, number, marker, hosts, rest[0], rest[1])
        if hosts.startswith(b"|"):
            with contextlib.suppress(ValueError):
                _, version, text, digest = hosts.split(b"|")
                salt = base64.b64decode(text, validate=True)
                if version == b"1" and len(salt) == SALT_BYTES:
                    self._hashed[salt].setdefault(base64.b64decode(digest, validate=True), []).append(line)
        elif any(sign in hosts for sign in b"*?!"):
            self._patterns.append((_Patterns(_ascii_lowercase(hosts)), line))
        else:
            for name in set(_ascii_lowercase(hosts).split(",")):
                self._plain[name].append(line)


class _Patterns:
    """The list of patterns of a line, with wildcards. A name matches if a plain pattern matches it and no negated (`!`)
    pattern does."""

    def __init__(self, hosts: str) -> None:
        patterns = hosts.split(",")
        self._wanted = [one.split("*") for one in patterns if not one.startswith("!")]
        self._not = [one[1:].split("*") for one in patterns if one.startswith("!")]

    def match(self, name: str) -> bool:
        return any(_matches_host_pattern(one, name) for one in self._wanted) and not any(
            _matches_host_pattern(one, name) for one in self._not
        )


def _matches_host_pattern(parts: list[str], name: str) -> bool:
    """Whether a name matches a pattern, which is given as its parts between `*`. The first and the last part must stand
    at the ends of the name, the others between them in order. Takes no backtracking."""
    first, *middle, last = parts if len(parts) > 1 else (*parts, "")
    at, end = len(first), len(name) - len(last)
    if (
        end < at
        or (len(parts) == 1 and at != end)
        or not _has_pattern_part_at(first, name, 0)
        or not _has_pattern_part_at(last, name, end)
    ):
        return False
    for part in middle:
        at = next((place for place in range(at, end - len(part) + 1) if _has_pattern_part_at(part, name, place)), -1)
        if at < 0:
            return False
        at += len(part)
    return True


def _has_pattern_part_at(part: str, name: str, at: int) -> bool:
    """Whether `part`, in which `?` is any character, is in `name` at this place."""
    if "?" not in part:
        return name.startswith(part, at)
    return all(sign in ("?", name[place]) for place, sign in enumerate(part, at))


def _ascii_lowercase(text: bytes) -> str:
    """The text in lower case as OpenSSH folds it: ASCII letters only, and one character for each byte."""
    return text.lower().decode("latin-1")


@contextlib.contextmanager
def _opened_known_hosts(file: str, flags: int) -> Iterator[int]:
    """A context that gives a descriptor of the file, which must be regular or /dev/null. Raises OSError; does not wait
    on a named pipe."""
    descriptor = os.open(file, flags | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    try:
        if wrong := _unfit_file_reason(os.fstat(descriptor)):
            raise OSError(errno.EINVAL, wrong)
        yield descriptor
    finally:
        os.close(descriptor)


def _unfit_file_reason(status: os.stat_result) -> str | None:
    """Why this file cannot hold host keys; None if it can. /dev/null is allowed: people write it to mean no file."""
    if os.path.samestat(status, Path(os.devnull).stat()):
        return None
    if not stat.S_ISREG(status.st_mode):
        return {
            stat.S_IFDIR: "it is a directory",
            stat.S_IFIFO: "it is a named pipe",
            stat.S_IFCHR: "it is a device",
            stat.S_IFBLK: "it is a device",
        }.get(stat.S_IFMT(status.st_mode), "it is no file")
    if status.st_size > MAX_KEY_FILE_BYTES:
        return f"it is too large ({bytes_text(status.st_size)}): up to {bytes_text(MAX_KEY_FILE_BYTES)} are read"
    return None


def _read_from_offset(descriptor: int, start: int) -> bytes:
    """The bytes of the file from `start` to its end, but at most up to the offset MAX_KEY_FILE_BYTES + 1."""
    pieces: list[bytes] = []
    at = start
    while at <= MAX_KEY_FILE_BYTES and (piece := os.pread(descriptor, min(1 << 20, MAX_KEY_FILE_BYTES + 1 - at), at)):
        pieces.append(piece)
        at += len(piece)
    return b"".join(pieces)


def _append_line(descriptor: int, line: bytes) -> None:
    """Append a line by one write, after a line break if the last line has none. Raises OSError when it was written only
    in part, and removes that part."""
    end = os.fstat(descriptor).st_size
    if end and os.pread(descriptor, 1, end - 1) != b"\n":
        line = b"\n" + line
    if (written := os.write(descriptor, line)) != len(line):
        os.ftruncate(descriptor, end)  # half a line would spoil the next one
        raise OSError(errno.ENOSPC, f"only {written} of {len(line)} bytes could be written")


def _wait_for_lock(descriptor: int) -> None:
    """Lock the file, as other runs do. On a file system without locks, writing each line at once has to suffice. Raises
    OSError after LOCK_TIMEOUT_S."""
    deadline = time.monotonic() + LOCK_TIMEOUT_S
    while True:
        try:
            return fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if time.monotonic() > deadline:
                raise OSError(errno.EAGAIN, f"another program has kept it locked for {LOCK_TIMEOUT_S:g} s") from error
        except OSError:
            return None
        time.sleep(0.01)
