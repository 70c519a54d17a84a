"""ed25519 keys, made here rather than by a program: thirty hosts want thirty of them."""

from __future__ import annotations

from dataclasses import dataclass

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


@dataclass(frozen=True, slots=True)
class Key:
    private: str  # OpenSSH's own format
    public: str  # `ssh-ed25519 AAAA…`, without comment
    comment: str


def generate(comment: str) -> Key:
    secret = Ed25519PrivateKey.generate()
    private = secret.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = secret.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return Key(private.decode(), public.decode(), comment)
