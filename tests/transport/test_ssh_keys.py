"""Key files: which can be used, and what is told of those that cannot."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from runbook.transport.ssh_keys import Keys


@pytest.fixture
def key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    path = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=120)
    return path


def lock(key: Path) -> None:
    subprocess.run(
        ["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret words", "-f", key],
        check=True,
        timeout=120,
        stdout=subprocess.DEVNULL,
    )


def _accepts(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as dialled:
        return dialled.connect_ex(str(address)) == 0


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: Path) -> Iterator[Path]:
    """An agent that holds the key, and another before it."""
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True, timeout=120)
    address = tmp_path / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", address], stdout=subprocess.DEVNULL)
    try:
        monkeypatch.setenv("SSH_AUTH_SOCK", str(address))
        while not _accepts(address):  # it is bound before it is listened on
            assert process.poll() is None
        subprocess.run(["ssh-add", "-q", other, key], check=True, timeout=120)
        yield address
    finally:
        process.terminate()
        process.wait(10)


def test_a_good_key_is_read_once(key: Path) -> None:
    keys = Keys()
    found = keys(str(key))
    assert found.wrong is None
    assert found.key is not None
    assert "SHA256:" in found.label
    key.unlink()
    assert keys(str(key)) is found


@pytest.mark.parametrize(
    ("text", "wrong", "remedy"),
    [
        ("ssh-ed25519 AAAA me\n", "public half", "private half"),
        ("---- BEGIN SSH2 PUBLIC KEY ----\n", "public half", "private half"),
        ("PuTTY-User-Key-File-3: ssh-ed25519\n", "PuTTY", "puttygen"),
        ("", "not a private key", "ssh-keygen"),
        ("hello\n", "not a private key", "ssh-keygen"),
        (
            "-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n",
            "not a private key",
            "ssh-keygen",
        ),
    ],
)
def test_what_is_no_key(text: str, wrong: str, remedy: str, tmp_path: Path) -> None:
    path = tmp_path / "id.pub"
    path.write_text(text)
    path.chmod(0o600)
    found = Keys()(str(path))
    assert found.key is None
    assert wrong in str(found.wrong)
    assert remedy in found.remedy


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path):
        found = Keys()(str(path))
        assert found.wrong
        assert found.remedy


def test_a_key_that_others_may_read_is_no_secret(key: Path) -> None:
    for mode in (0o640, 0o604, 0o660):
        key.chmod(mode)
        found = Keys()(str(key))
        assert f"{mode:04o}" in str(found.wrong)
        assert found.remedy == f"`chmod 600 {key}`"
    if os.getuid() == 0:  # one that is somebody else's is for them to protect, as OpenSSH has it
        os.chown(key, 12345, 12345)
        assert Keys()(str(key)).wrong is None


def test_a_locked_key_wants_an_agent(key: Path) -> None:
    lock(key)
    found = Keys()(str(key))
    assert "passphrase" in str(found.wrong)
    assert f"ssh-add {key}" in found.remedy


@pytest.mark.parametrize("public", [True, False])
def test_a_locked_key_that_the_agent_holds_is_used(key: Path, agent: Path, public: bool) -> None:
    before = Keys()(str(key)).key
    assert before is not None
    lock(key)
    if not public:
        key.with_suffix(".pub").unlink()
    found = Keys()(str(key))
    assert found.wrong is None
    assert found.key is not None
    assert found.key.fingerprint == before.fingerprint
    cast(Any, found.key).agent.close()


def test_a_public_half_names_the_agents_key(key: Path, agent: Path) -> None:
    """As in `IdentityFile ~/.ssh/yubikey.pub`, where the private half is on a token."""
    before = Keys()(str(key)).key
    assert before is not None
    found = Keys()(str(key.with_suffix(".pub")))
    assert (found.wrong, found.key and found.key.fingerprint) == (None, before.fingerprint)
    cast(Any, found.key).agent.close()
