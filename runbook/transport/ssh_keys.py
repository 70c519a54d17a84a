"""The private keys that a login may offer: read once for all nodes, and what is wrong with those that cannot be used."""

from __future__ import annotations

import base64
import contextlib
import os
import stat
import struct
import threading
from dataclasses import dataclass
from pathlib import Path

import paramiko

from runbook.model.commands import word


@dataclass(frozen=True)
class KeyFile:
    """A key that was looked at. `wrong` says why it cannot be used, `remedy` what to do about it.

    Without a `key` and with nothing wrong it is one with a certificate, which paramiko reads by itself.
    """

    path: str
    key: paramiko.PKey | None = None
    wrong: str | None = None
    remedy: str = ""

    @property
    def label(self) -> str:
        return f"{self.path} ({self.key.get_name()} {self.key.fingerprint})" if self.key else self.path


class Keys:
    """The key files of one run."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read: dict[str, KeyFile] = {}

    def __call__(self, path: str) -> KeyFile:
        with self._lock:
            if path not in self._read:
                self._read[path] = _look(path)
            return self._read[path]


def _look(path: str) -> KeyFile:
    try:
        status = os.stat(path)  # noqa: PTH116 - beside os.getuid
        text = Path(path).read_bytes()
    except OSError as error:
        remedy = "name the right file in the inventory: `ssh: {key: ~/.ssh/id_ed25519}`"
        if isinstance(error, PermissionError):
            remedy = f"run as the user whose key it is, or `sudo chown $USER {word(path)}`"
        return KeyFile(path, wrong=error.strerror or str(error), remedy=remedy)
    if text.startswith((b"ssh-", b"ecdsa-", b"sk-", b"---- BEGIN SSH2 PUBLIC", b"-----BEGIN PUBLIC")):
        private = path.removesuffix(".pub")
        other = f": `ssh: {{key: {private}}}`" if private != path else ""
        return KeyFile(path, wrong="it is the public half of a key", remedy=f"name the private half{other}")
    if text.startswith(b"PuTTY-User-Key-File"):
        remedy = f"convert it: `puttygen {word(path)} -O private-openssh -o {word(path)}.openssh`, and name that file"
        return KeyFile(path, wrong="it is a key of PuTTY's", remedy=remedy)
    # As OpenSSH judges it: a key of ours that others may read is no secret, and is not offered.
    if os.name != "nt" and status.st_uid == os.getuid() and status.st_mode & 0o077:
        mode = stat.S_IMODE(status.st_mode)
        return KeyFile(path, wrong=f"others may read it (its mode is {mode:04o})", remedy=f"`chmod 600 {word(path)}`")
    if Path(f"{path}-cert.pub").exists():
        return KeyFile(path)
    try:
        return KeyFile(path, paramiko.PKey.from_path(path))
    except Exception as error:  # noqa: BLE001 - a dozen kinds, by version of paramiko and cryptography
        locked = isinstance(error, paramiko.PasswordRequiredException) or "password" in str(error).lower()
        if locked:
            key = _in_agent(path, text)
            remedy = (
                f"`ssh-add {word(path)}`, in the shell that starts runbook (first `eval $(ssh-agent)` if no agent runs)"
            )
            return KeyFile(
                path, key, None if key else "it has a passphrase, and no agent holds it", "" if key else remedy
            )
        return KeyFile(
            path,
            wrong=f"it is not a private key that can be read here ({str(error) or type(error).__name__})",
            remedy="name another in the inventory, `ssh: {key: …}`; `ssh-keygen -t ed25519` makes one",
        )


def _in_agent(path: str, text: bytes) -> paramiko.PKey | None:
    """The agent's copy of a key that is locked here, known by its public half."""
    public = _public_half(path, text)
    if public is None:
        return None
    with contextlib.suppress(paramiko.SSHException, OSError):
        agent = paramiko.Agent()
        for key in agent.get_keys():
            if key.asbytes() == public:
                return key  # it signs through this connection to the agent, which stays open for it
        agent.close()
    return None


def _public_half(path: str, text: bytes) -> bytes | None:
    """From the file beside it, else out of the private file itself: OpenSSH's own format has it in the clear."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        return base64.b64decode(Path(f"{path}.pub").read_text().split()[1])
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
