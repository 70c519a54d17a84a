"""What a server is started with, and the addresses that it answers to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit


@dataclass(frozen=True, slots=True)
class Certificate:
    """Files in PEM. `fingerprint`: SHA-256 of the certificate in DER, in hexadecimal."""

    certificate: Path
    key: Path
    fingerprint: str


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """`data`: the folder of everything that the server keeps. `origins`: scheme, host and port of every address that it is
    called by, the first being the one that it tells people; requests for any other are refused. `tls` is None for plain http.
    """

    data: Path
    host: str = "127.0.0.1"
    port: int = 8400
    origins: tuple[str, ...] = ()
    tls: Certificate | None = None

    @property
    def hosts(self) -> dict[str, str]:
        """Every Host header that is answered, with the Origin that its pages have."""
        named = self.origins or local_origins(self.host, self.port, tls=self.tls is not None)
        return {urlsplit(origin).netloc: origin for origin in named}

    @property
    def url(self) -> str:
        """The address to tell people."""
        return next(iter(self.hosts.values()))

    def cookie(self, origin: str) -> str:
        """The name of the session's cookie. Cookies know no ports, so the name has it: two servers on a machine are two."""
        return f"{'__Host-' if origin.startswith('https:') else ''}runbook-{self.port}"


def origin_of(scheme: str, host: str, port: int) -> str:
    """As browsers write it: in small letters, without the port that the scheme has anyway, IPv6 in brackets."""
    shown = f"[{host}]" if ":" in host else host.lower()
    return f"{scheme}://{shown}" if port == {"http": 80, "https": 443}[scheme] else f"{scheme}://{shown}:{port}"


def local_origins(host: str, port: int, *, tls: bool) -> tuple[str, ...]:
    """Those of an address that is listened on: itself, and this machine's own names for it where it is loopback."""
    scheme = "https" if tls else "http"
    names = [host, "localhost"] if host in ("127.0.0.1", "::1") else [host]
    return tuple(origin_of(scheme, name, port) for name in names)
