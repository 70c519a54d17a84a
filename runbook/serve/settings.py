"""A server's settings: how the command line and serve.yml become `ServeSettings`, and the TLS certificate. Unsafe
settings are refused, with a remedy."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import ipaddress
import os
import socket
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from runbook.files.schema import validate_document
from runbook.files.yaml_document import mapping_problem, read_document
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong
from runbook.model.safe_files import make_folders_below, write_file_below


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate and its key, as files in PEM. `fingerprint` is the SHA-256 of the certificate (DER) in
    hexadecimal."""

    certificate: Path
    key: Path
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of a server. `data` is the folder of everything that it keeps. `origins` are the scheme, host and
    port of every address that it answers to; requests for any other are refused, and the first is shown to people.
    `tls` is None for plain http."""

    data: Path
    host: str = "127.0.0.1"
    port: int = 8400
    origins: tuple[str, ...] = ()
    tls: Certificate | None = None

    @property
    def hosts(self) -> dict[str, str]:
        """Every Host header that the server answers to, with the Origin of the pages there."""
        named = self.origins or local_origins(self.host, self.port, tls=self.tls is not None)
        return {urlsplit(origin).netloc: origin for origin in named}

    @property
    def url(self) -> str:
        """The address to show people."""
        return next(iter(self.hosts.values()))

    @property
    def url_of_agents(self) -> str:
        """The address that agents dial. It leads to this server itself, and not to a proxy in front of it: agents know
        the server by its own certificate."""
        scheme = "https" if self.tls else "http"
        own = local_origins(self.host, self.port, tls=self.tls is not None)
        return next(one for one in (*self.hosts.values(), *own) if one.startswith(f"{scheme}:"))

    def cookie(self, origin: str) -> str:
        """The name of the session's cookie. It has the port in it, since browsers share cookies between ports: two
        servers on one machine need two names."""
        return f"{'__Host-' if origin.startswith('https:') else ''}runbook-{self.port}"


def format_origin(scheme: str, host: str, port: int) -> str:
    """An origin as browsers write it: in lower case, without the default port of its scheme, IPv6 in brackets."""
    shown = f"[{host}]" if ":" in host else host.lower()
    return f"{scheme}://{shown}" if port == {"http": 80, "https": 443}[scheme] else f"{scheme}://{shown}:{port}"


def local_origins(host: str, port: int, *, tls: bool) -> tuple[str, ...]:
    """The origins of an address that is listened on: the address itself, and `localhost` for a loopback address."""
    scheme = "https" if tls else "http"
    names = [host, "localhost"] if host in ("127.0.0.1", "::1") else [host]
    return tuple(format_origin(scheme, name, port) for name in names)


CERTIFICATE_VALID_DAYS = 3650
"""How long our own certificate is valid. Agents know the server by the certificate's hash, so it is made once, and not
renewed each year."""


def own_certificate(data: Path, names: Iterable[str]) -> Certificate:
    """The server's own certificate in `data/tls`; it is made for these names and addresses if there is none yet."""
    folder = make_folders_below(data, "tls")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    if not (certificate.exists() and key.exists()):
        pem, key_pem = _self_signed_certificate(names)
        write_file_below(data, "tls", "key.pem", data=key_pem)
        write_file_below(data, "tls", "certificate.pem", data=pem)
    return load_certificate(certificate, key)


def load_certificate(certificate: Path, key: Path) -> Certificate:
    """The certificate and key in these files. Raises FilesWrong if they are no certificate and its key."""
    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")
        pem = certificate.read_text(encoding="ascii")
        first = x509.load_pem_x509_certificate(pem.encode())
        der = first.public_bytes(serialization.Encoding.DER)
    except (OSError, ValueError) as error:
        what = getattr(error, "strerror", None) or "not a certificate and its key, in PEM"
        raise FilesWrong.of("serve.certificate", f"{certificate}, {key}: {what}") from None
    return Certificate(certificate, key, hashlib.sha256(der).hexdigest())


def _self_signed_certificate(names: Iterable[str]) -> tuple[bytes, bytes]:
    """A new certificate for these names and addresses, and its key, in PEM."""
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
        .not_valid_after(now + datetime.timedelta(days=CERTIFICATE_VALID_DAYS))
        .add_extension(
            x509.SubjectAlternativeName([_subject_alternative_name(one) for one in sorted(set(names))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    unencrypted = serialization.NoEncryption()
    key_pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, unencrypted)
    return made.public_bytes(serialization.Encoding.PEM), key_pem


def _subject_alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


DEFAULT_PORT = 8400
DEFAULT_LISTEN_ADDRESS = f"127.0.0.1:{DEFAULT_PORT}"
DEFAULT_DATA_FOLDER = ".runbook"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """The settings that people asked for; the command line comes before serve.yml. `certificate` has the files of the
    certificate and of its key."""

    host: str
    port: int
    data: Path
    origins: tuple[str, ...] = ()
    certificate: tuple[Path, Path] | None = None
    insecure_http: bool = False

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


def read_options(listen: str | None, data: str | None, config: str | None, *, insecure_http: bool) -> ServeOptions:
    """The settings that the arguments and the file `config` (serve.yml) ask for. Raises FilesWrong."""
    given: dict[str, Any] = {} if config is None else _read_serve_yml(config)
    folder = Path(config).parent if config is not None else Path()
    host, port = parse_listen_address(listen or given.get("listen", DEFAULT_LISTEN_ADDRESS))
    origins = tuple(map(_normalized_origin, given.get("origins", ())))
    netlocs = [urlsplit(one).netloc for one in origins]
    if len(set(netlocs)) < len(netlocs):
        raise _serve_error("origins", "two origins have the same host and port", "a server has one scheme")
    tls = given.get("tls")
    return ServeOptions(
        host=host,
        port=port,
        data=data_folder(data, str(folder / given["data"]) if "data" in given else None),
        origins=origins,
        certificate=(folder / tls["certificate"], folder / tls["key"]) if tls else None,
        insecure_http=insecure_http or bool(given.get("insecure_http")),
    )


def _normalized_origin(origin: str) -> str:
    """An origin from serve.yml as browsers write it. Raises FilesWrong for an invalid port."""
    parts = urlsplit(origin.lower())
    try:
        port = parts.port or {"http": 80, "https": 443}[parts.scheme]
    except ValueError:
        raise _serve_error("origins", f"{origin}: no port has this number", "1 to 65535") from None
    return format_origin(parts.scheme, parts.hostname or "", port)


def data_folder(given: str | None, configured: str | None = None) -> Path:
    """The folder in which the server keeps everything, by `--data`, serve.yml, $RUNBOOK_DATA, or `.runbook`. It need
    not exist."""
    return Path(given or configured or os.environ.get("RUNBOOK_DATA") or DEFAULT_DATA_FOLDER)


def make_data_folder(folder: Path) -> Path:
    """The data folder, made if it is missing. Raises FilesWrong if it is not ours, or others can write there."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise _serve_error("data", f"{folder}: {error.strerror}") from None
    if hasattr(os, "getuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        help = f"`chmod 700 {shell_word(folder)}`, or name another --data"
        raise _serve_error("data", f"{folder}: others could write there", help)
    return folder


def parse_listen_address(text: str) -> tuple[str, int]:
    """The address and port in `127.0.0.1:8400` or `[::1]:8400`; port 0 means any free port. Raises FilesWrong."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    with contextlib.suppress(ValueError):
        if port.isdecimal() and int(port) <= 65535:
            return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)), int(port)
    help = f"an address and a port: {DEFAULT_LISTEN_ADDRESS}, 0.0.0.0:{DEFAULT_PORT}, [::1]:{DEFAULT_PORT}"
    raise _serve_error("listen", f"{text!r} is no address to listen on", help)


def make_serve_settings(asked: ServeOptions, port: int, *, people: bool) -> ServeSettings:
    """The settings of a server that listens on `port`. `people`: its database has at least one person.

    On loopback the server speaks plain http unless a certificate is named. On other addresses it speaks TLS, by our own
    certificate if none is named, unless `insecure_http` is asked for; and there has to be a person. Raises FilesWrong.
    """
    if not asked.loopback and not people:
        message = f"everybody who reaches {asked.host} would reach this server, and no person could log in"
        raise _serve_error("no-people", message, "first: runbook serve user add NAME --role admin")
    names = [] if asked.loopback else _server_names(asked.host)
    tls: Certificate | None = None
    if asked.certificate is not None:
        tls = load_certificate(*asked.certificate)
    elif not asked.loopback and not asked.insecure_http:
        called = [urlsplit(origin).hostname or "" for origin in asked.origins]
        tls = own_certificate(asked.data, [*called, *names])
    if asked.loopback:
        own = local_origins(asked.host, port, tls=tls is not None)
    else:
        own = tuple(format_origin("https" if tls else "http", name, port) for name in names)
    return ServeSettings(asked.data, asked.host, port, (*asked.origins, *own), tls)


def _server_names(host: str) -> list[str]:
    """The names for a server that listens on `host`: its address, or all of this machine's if it listens on all, and
    this machine's name."""
    name = socket.gethostname().lower()
    if not ipaddress.ip_address(host).is_unspecified:
        return [host, name]
    found = {"127.0.0.1"} | ({"::1"} if ":" in host else set())
    with contextlib.suppress(OSError):
        found |= {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # sends nothing: it shows which of our addresses would be the sender's
            found.add(str(probe.getsockname()[0]))
    return [name, "localhost", *sorted(one for one in found if "%" not in one)]


def _read_serve_yml(path: str) -> dict[str, Any]:
    """The settings in serve.yml. Raises FilesWrong."""
    document = read_document(path)
    problems = list(document.problems)
    if document.data is not None and not problems:
        not_mapping = mapping_problem(document, "a file for `runbook serve`")
        problems += [not_mapping] if not_mapping else validate_document(document, "serve").problems
    if problems:
        raise FilesWrong(problems)
    assert isinstance(document.data, dict)
    return document.data


def _serve_error(id: str, message: str, help: str | None = None) -> FilesWrong:
    return FilesWrong.of(f"serve.{id}", message, help=help)
