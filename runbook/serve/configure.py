"""From the command line and serve.yml to `ServeSettings`; what would be unsafe is refused, with what to do instead."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from runbook.load.document import mapping_problem, read_document
from runbook.load.schema import judge
from runbook.model.commands import word
from runbook.model.errors import FilesWrong, Problem, Span
from runbook.serve.certificate import certificate_at, own_certificate
from runbook.serve.settings import Certificate, ServeSettings, local_origins, origin_of

PORT = 8400
LISTEN = f"127.0.0.1:{PORT}"
DATA = ".runbook"


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What was asked for, the command line before the file. `certificate`: its file and its key's."""

    host: str
    port: int
    data: Path
    origins: tuple[str, ...] = ()
    certificate: tuple[Path, Path] | None = None
    insecure_http: bool = False

    @property
    def loopback(self) -> bool:
        return ipaddress.ip_address(self.host).is_loopback


def wanted(listen: str | None, data: str | None, config: str | None, *, insecure_http: bool) -> ServeOptions:
    """Raises FilesWrong for what is wrong in the file or in the arguments."""
    told: dict[str, Any] = {} if config is None else _read(config)
    folder = Path(config).parent if config is not None else Path()
    host, port = address(listen or told.get("listen", LISTEN))
    origins = tuple(one.lower() for one in told.get("origins", ()))
    netlocs = [urlsplit(one).netloc for one in origins]
    if len(set(netlocs)) < len(netlocs):
        raise _wrong("origins", "two origins have the same host and port", "a server has one scheme")
    tls = told.get("tls")
    return ServeOptions(
        host=host,
        port=port,
        data=data_folder(data, str(folder / told["data"]) if "data" in told else None),
        origins=origins,
        certificate=(folder / tls["certificate"], folder / tls["key"]) if tls else None,
        insecure_http=insecure_http or told.get("insecure_http", False),
    )


def data_folder(given: str | None, told: str | None = None) -> Path:
    """Where the server keeps everything: `--data`, serve.yml, $RUNBOOK_DATA, or `.runbook`. It need not exist."""
    return Path(given or told or os.environ.get("RUNBOOK_DATA") or DATA)


def prepared(folder: Path) -> Path:
    """The folder, made where there is none; it must be ours, and nobody else's to write in. Raises FilesWrong."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = folder.stat()
    except OSError as error:
        raise _wrong("data", f"{folder}: {error.strerror}") from None
    if hasattr(os, "getuid") and (found.st_uid != os.geteuid() or found.st_mode & 0o022):
        raise _wrong(
            "data", f"{folder}: others could write there", f"`chmod 700 {word(folder)}`, or name another --data"
        )
    return folder


def address(text: str) -> tuple[str, int]:
    """`127.0.0.1:8400`, `[::1]:8400`; a port of 0 is any free one. Raises FilesWrong."""
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    with contextlib.suppress(ValueError):
        if port.isdecimal() and int(port) <= 65535:
            return str(ipaddress.ip_address("127.0.0.1" if host == "localhost" else host)), int(port)
    raise _wrong(
        "listen",
        f"{text!r} is no address to listen on",
        f"an address and a port: {LISTEN}, 0.0.0.0:{PORT}, [::1]:{PORT}",
    )


def settled(asked: ServeOptions, port: int, *, people: bool) -> ServeSettings:
    """The settings, on the port that it really is, of a server whose data has `people`.

    Loopback is plain http unless a certificate is named. Everywhere else it is TLS, with a certificate of our own where
    none is named, or `insecure_http`; and only with people. Raises FilesWrong.
    """
    if not asked.loopback and not people:
        raise _wrong(
            "no-people",
            f"whoever reaches {asked.host} would reach this server, and nobody could log in",
            "first: runbook serve user add NAME --role admin",
        )
    names = [] if asked.loopback else _names_of(asked.host)
    tls: Certificate | None = None
    if asked.certificate is not None:
        tls = certificate_at(*asked.certificate)
    elif not asked.loopback and not asked.insecure_http:
        called = [urlsplit(origin).hostname or "" for origin in asked.origins]
        tls = own_certificate(asked.data, [*called, *names])
    if asked.loopback:
        own = local_origins(asked.host, port, tls=tls is not None)
    else:
        own = tuple(origin_of("https" if tls else "http", name, port) for name in names)
    return ServeSettings(asked.data, asked.host, port, (*asked.origins, *own), tls)


def _names_of(host: str) -> list[str]:
    """The addresses that an address to listen on stands for, and this machine's name."""
    name = socket.gethostname().lower()
    if not ipaddress.ip_address(host).is_unspecified:
        return [host, name]
    found = {"127.0.0.1"} | ({"::1"} if ":" in host else set())
    with contextlib.suppress(OSError):
        found |= {str(entry[4][0]) for entry in socket.getaddrinfo(name, None)}
    for family, far in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((far, 9))  # sends nothing: it asks which of our addresses would be the sender's
            found.add(str(probe.getsockname()[0]))
    return [name, "localhost", *sorted(one for one in found if "%" not in one)]


def _read(path: str) -> dict[str, Any]:
    document = read_document(path)
    problems = list(document.problems)
    if document.data is not None and not problems:
        not_mapping = mapping_problem(document, "a file for `runbook serve`")
        problems += [not_mapping] if not_mapping else judge(document, "serve").problems
    if problems:
        raise FilesWrong(problems)
    assert isinstance(document.data, dict)
    return document.data


def _wrong(id: str, message: str, help: str | None = None) -> FilesWrong:
    span: Span | None = None
    return FilesWrong([Problem(f"serve.{id}", message, span, help)])
