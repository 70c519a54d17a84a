"""How a host is enrolled at a server: the agent exchanges the pasted enrolment string for a token, over a connection to
the server with the certificate that the string names."""

from __future__ import annotations

import hashlib
import http.client
import json
import socket
import ssl
from urllib.parse import urlsplit

import msgspec

from runbook.agent.folder import AgentFolder, Identity
from runbook.agent.protocol import SERVER_DIAL_TIMEOUT_S, Enrolment, ProtocolError
from runbook.causes.catalogue import unreachable_for
from runbook.model.command_quoting import shell_word
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import NODE_NAME

MAX_ENROLMENT_ANSWER_BYTES = 64 << 10


class EnrolmentAnswer(msgspec.Struct, frozen=True):
    """The server's answer: the node's name and the agent's token."""

    name: str
    token: str


def enrol_host(folder: AgentFolder, text: str, name: str) -> Identity:
    """Enrol this host as the node `name` by the enrolment string `text`; writes its identity into the folder, and
    returns it. Raises FilesWrong when the string, the name or the server's answer is not valid; Unreachable."""
    try:
        enrolment = Enrolment.of(text)
    except ProtocolError as error:
        raise FilesWrong.of("agent.enrol", str(error)) from None
    if not NODE_NAME.match(name):
        fix = "name the node: `runbook agent enrol STRING --name gn01`"
        raise FilesWrong.of("agent.enrol", f"a node cannot be called {name!r}", help=fix)
    certificate = fetch_certificate(enrolment) if enrolment.certificate else None
    pinned = Identity(name, enrolment.url, "", certificate)
    status, body = _post_enrolment(pinned, {"secret": enrolment.secret, "name": name})
    if status != 200:
        raise FilesWrong.of("agent.enrol", f"{enrolment.url} says: {_refusal_reason(status, body)}")
    try:
        answer = msgspec.json.decode(body, type=EnrolmentAnswer)
    except ValueError as error:
        raise FilesWrong.of("agent.enrol", f"{enrolment.url} is not a runbook server: {error}") from None
    identity = Identity(answer.name, enrolment.url, answer.token, certificate)
    if not NODE_NAME.match(identity.name) or not identity.token.isascii() or not identity.token:
        raise FilesWrong.of("agent.enrol", f"{enrolment.url} gives an answer that is not a runbook server's")
    folder.remember(identity)
    return identity


def fetch_certificate(enrolment: Enrolment) -> str:
    """The server's certificate in PEM. Raises FilesWrong when it is not the one that the enrolment string names;
    Unreachable."""
    host, port = url_endpoint(enrolment.url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE  # its hash is compared before anything is sent
    try:
        with (
            socket.create_connection((host, port), SERVER_DIAL_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as wrapped,
        ):
            der = wrapped.getpeercert(binary_form=True) or b""
    except OSError as error:
        raise _unreached_error(enrolment.url, error) from None
    if hashlib.sha256(der).hexdigest() != enrolment.certificate:
        why = f"the certificate of {enrolment.url} is not the one that the enrolment string names: nothing was sent"
        fix = (
            "take a new string from the server itself; if it differs again, the connection between this host "
            "and the server is intercepted"
        )
        raise FilesWrong.of("agent.certificate", why, help=fix)
    return ssl.DER_cert_to_PEM_cert(der)


def url_endpoint(url: str) -> tuple[str, int]:
    """The host and port of a URL of http or https."""
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)


def _post_enrolment(server: Identity, body: object) -> tuple[int, bytes]:
    """The HTTP status and body of the server's answer to a request to enrol. Raises Unreachable."""
    host, port = url_endpoint(server.url)
    context = server.context()
    connection = (
        http.client.HTTPConnection(host, port, timeout=SERVER_DIAL_TIMEOUT_S)
        if context is None
        else http.client.HTTPSConnection(host, port, timeout=SERVER_DIAL_TIMEOUT_S, context=context)
    )
    try:
        connection.request("POST", "/agent/enrol", json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read(MAX_ENROLMENT_ANSWER_BYTES)
    except (OSError, http.client.HTTPException) as error:
        raise _unreached_error(server.url, error) from None
    finally:
        connection.close()


def _refusal_reason(status: int, body: bytes) -> str:
    """The reason that the server gives for a refusal."""
    try:
        return str(msgspec.json.decode(body)["error"])[:500]
    except (ValueError, KeyError, TypeError):
        return f"HTTP {status}"


def _unreached_error(url: str, error: Exception) -> Unreachable:
    return unreachable_for(
        "agent-lost",
        f"the server at {url} cannot be reached from this host",
        (f"{type(error).__name__}: {error}",),
        way="enrolling",
        url=shell_word(url + "/healthz"),
    )
