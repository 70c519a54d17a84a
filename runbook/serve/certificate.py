"""The server's TLS certificate: the one that serve.yml names, or a self-signed one that is made once and kept."""

from __future__ import annotations

import datetime
import hashlib
import ipaddress
import ssl
from collections.abc import Iterable
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runbook.model.errors import FilesWrong, Problem
from runbook.model.folder import make_below, write_below
from runbook.serve.settings import Certificate

DAYS = 3650
"""Agents know the server by this certificate's hash: it is made once, not anew each year."""


def own_certificate(data: Path, names: Iterable[str]) -> Certificate:
    """The one in `data/tls`, made for these names and addresses where there is none yet."""
    folder = make_below(data, "tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if not (certificate.exists() and key.exists()):
        pem, key_pem = _self_signed(names)
        write_below(data, "tls", "key.pem", data=key_pem)
        write_below(data, "tls", "certificate.pem", data=pem)
    return certificate_at(certificate, key)


def certificate_at(certificate: Path, key: Path) -> Certificate:
    """Raises FilesWrong where these are not a certificate and its key."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")
        pem = certificate.read_text(encoding="ascii")
        first = x509.load_pem_x509_certificate(pem.encode())
        der = first.public_bytes(serialization.Encoding.DER)
    except (OSError, ValueError) as error:
        what = (
            error.strerror if isinstance(error, OSError) and error.strerror else "not a certificate and its key, in PEM"
        )
        raise FilesWrong([Problem("serve.certificate", f"{certificate}, {key}: {what}")]) from None
    return Certificate(certificate, key, hashlib.sha256(der).hexdigest())


def _self_signed(names: Iterable[str]) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "runbook serve")])
    now = datetime.datetime.now(datetime.timezone.utc)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName([_general(one) for one in sorted(set(names))]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    unencrypted = serialization.NoEncryption()
    key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unencrypted)
    return made.public_bytes(serialization.Encoding.PEM), key_pem


def _general(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
