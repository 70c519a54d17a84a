"""The server as it is started: what it refuses, how it holds out, how it ends."""

from __future__ import annotations

import hashlib
import http.client
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
from pathlib import Path

import pytest
from ports import free_port

from serve.running import running


def refused(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "runbook", "serve", *arguments]
    done = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=120, check=False, stdin=subprocess.DEVNULL
    )
    assert done.returncode == 2, done.stderr
    return done.stderr


def add(folder: Path, name: str, role: str = "admin") -> None:
    command = [
        sys.executable,
        "-m",
        "runbook",
        "serve",
        "user",
        "add",
        name,
        "--role",
        role,
        "--data",
        str(folder / "data"),
    ]
    subprocess.run(command, input="correct horse\n", text=True, check=True, capture_output=True, timeout=120)


def closed(connection: socket.socket) -> bytes:
    """Everything until the server closes, which it must."""
    connection.settimeout(60)
    data = b""
    try:
        while piece := connection.recv(65536):
            data += piece
    except ConnectionResetError:
        pass
    return data


def test_a_link_a_login_a_page_and_an_end(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        assert server.ask("GET", "/healthz")[0] == 200
        assert server.ask("GET", "/healthz", {"Host": "evil.test"})[0] == 421
        assert server.ask("GET", "/admin")[0] == 303
        assert server.ask("GET", server.login.removeprefix(server.url))[0] == 200  # looking does not use it up
        cookie = {"Cookie": server.log_in()}
        status, page = server.ask("GET", "/admin", cookie)
        assert status == 200
        assert "Log in by a link" in page
        secret = server.login.rpartition("/")[2]
        assert secret not in page
        assert server.ask("POST", f"/login/{secret}", {"Origin": server.url})[0] == 403  # once
        stream = server.connection()
        stream.request("GET", "/events?topic=fleet", headers=cookie)
        response = stream.getresponse()
        assert response.getheader("content-type") == "text/event-stream; charset=utf-8"
        assert response.readline() == b"retry: 2000\n"
        assert "a server of" in refused(tmp_path, "--data", "data", "--listen", "127.0.0.1:0")
        code, said = server.stop()
        assert response.read().endswith(b"\n\n")
        assert code == 0
        assert said.endswith("stopped\n")
        assert "Traceback" not in said
        stream.close()


@pytest.mark.thorough
def test_slow_and_endless_heads_and_bodies_are_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import runbook.serve.server as server, runbook.serve.guards as guards\nserver.HEADERS_TIMEOUT_S = guards.BODY_TIMEOUT_S = server.CLIENT_READ_TIMEOUT_S = 1.0\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with running(tmp_path) as server:
        at = ("127.0.0.1", server.port)
        host = server.host.encode()
        with (
            socket.create_connection(at) as silent,
            socket.create_connection(at) as slow,
            socket.create_connection(at) as body,
        ):
            slow.sendall(b"GET / HTTP/1.1\r\nHost: ")
            body.sendall(b"POST /login HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\n" % (host, server.url.encode()))
            body.sendall(b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 100\r\n\r\nname=")
            assert closed(silent) == b""
            assert closed(slow) == b""
            assert closed(body).startswith(b"HTTP/1.1 408 ")
        with socket.create_connection(at) as endless:
            endless.sendall(b"GET / HTTP/1.1\r\n")
            try:
                for number in range(20_000):
                    endless.sendall(b"X-%d: %s\r\n" % (number, b"a" * 80))
            except OSError:
                pass
            else:
                pytest.fail("1.7 MB of headers were taken")
        with socket.create_connection(at) as large:
            large.sendall(b"POST /login HTTP/1.1\r\nHost: %s\r\nOrigin: %s\r\n" % (host, server.url.encode()))
            large.sendall(b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: 10000000000\r\n\r\n")
            assert closed(large).startswith(b"HTTP/1.1 413 ")
        with socket.socket() as lazy:
            lazy.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            lazy.connect(at)
            asked = b"GET /static/style.css HTTP/1.1\r\nHost: %s\r\n\r\n" % host
            lazy.sendall(asked * 2000)  # 30 MB of answers, of which it takes none
            cut_off = select.poll()
            cut_off.register(lazy, select.POLLERR)
            assert cut_off.poll(60_000), "the server waits for them to be taken"
        with socket.create_connection(at) as malformed:
            malformed.sendall(
                b"GET / HTTP/1.1\r\nHost: %s\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n" % host
            )
            assert closed(malformed).startswith(b"HTTP/1.1 400 ")
        assert server.ask("GET", "/healthz")[0] == 200
        assert "Traceback" not in server.stop()[1]


def test_a_refused_form_leads_back_to_its_page_and_nowhere_else(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        headers = {"Cookie": server.log_in(), "Origin": server.url, "Content-Type": "application/x-www-form-urlencoded"}
        for referer, back in (
            (f"{server.url}/groups?select=all", 'href="/groups?select=all">Back<'),
            (f"{server.url}//evil.test/", None),
            ("http://evil.test/groups", None),
            (f"{server.url}.evil.test/", None),
        ):
            status, page = server.ask("POST", "/move", {**headers, "Referer": referer}, "csrf=wrong")
            assert status == 403
            assert (back in page) if back else (">Back<" not in page), referer


def test_a_body_that_never_comes_delays_no_end_and_is_no_error(tmp_path: Path) -> None:
    with running(tmp_path) as server, socket.create_connection(("127.0.0.1", server.port)) as body:
        head = f"POST /login HTTP/1.1\r\nHost: {server.host}\r\nOrigin: {server.url}\r\nContent-Length: 100\r\n"
        begun = f"{head}Content-Type: application/x-www-form-urlencoded\r\n\r\nname=".encode()
        body.sendall(begun)
        with socket.create_connection(("127.0.0.1", server.port)) as gone:
            gone.sendall(begun)
        assert server.ask("GET", "/healthz")[0] == 200  # the server has read it by now
        code, said = server.stop()
        assert code == 0
        assert "Traceback" not in said
        assert said.endswith("stopped\n")


def test_away_from_loopback_there_are_people_and_tls(tmp_path: Path) -> None:
    everywhere = ("--listen", "0.0.0.0:0", "--data", str(tmp_path / "data"))
    assert "serve user add" in refused(tmp_path, *everywhere)
    assert "serve user add" in refused(tmp_path, *everywhere, "--insecure-http")
    add(tmp_path, "eve")
    with running(tmp_path, listen="0.0.0.0:0") as server:
        assert server.url.startswith("https://")
        assert server.login == ""  # whoever reads the log is not let in
        context = ssl.create_default_context(cafile=tmp_path / "data" / "tls" / "certificate.pem")
        with context.wrap_socket(
            socket.create_connection(("127.0.0.1", server.port)), server_hostname="127.0.0.1"
        ) as tls:
            der = tls.getpeercert(binary_form=True)
            assert der is not None
            assert f"SHA-256 is {hashlib.sha256(der).hexdigest()}" in server.log.read_text()
        secure = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60, context=context)
        body = "name=eve&password=correct+horse"
        kind = {"Content-Type": "application/x-www-form-urlencoded"}
        for origin, status in ((f"http://127.0.0.1:{server.port}", 403), (f"https://127.0.0.1:{server.port}", 303)):
            secure.request("POST", "/login", body, {"Origin": origin, **kind})
            response = secure.getresponse()
            response.read()
            assert response.status == status, origin
        cookie = response.getheader("set-cookie") or ""
        assert cookie.startswith(f"__Host-runbook-{server.port}=")
        assert {"Secure", "HttpOnly", "Path=/"} <= set(cookie.split("; "))
        secure.close()
        assert server.stop(signal.SIGINT)[0] == 0
    key = tmp_path / "data" / "tls" / "key.pem"
    assert key.stat().st_mode & 0o077 == 0
    before = key.read_bytes()
    with running(tmp_path, listen="0.0.0.0:0") as server:  # agents know it by its hash
        assert key.read_bytes() == before
    with running(tmp_path, "--insecure-http", listen="0.0.0.0:0") as server:
        assert server.url.startswith("http://")


@pytest.mark.thorough
def test_it_starts_on_nothing_that_is_not_sound(tmp_path: Path) -> None:
    (tmp_path / "serve.yml").write_text("listn: 127.0.0.1:0\norigins: [example.org]\n")
    said = refused(tmp_path, "--config", "serve.yml")
    assert "did you mean `listen`?" in said
    assert "serve.yml:2:11" in said
    assert "no address to listen on" in refused(tmp_path, "--listen", "example.org:80")
    (tmp_path / "open").mkdir(mode=0o777)
    (tmp_path / "open").chmod(0o777)
    assert "others could write there" in refused(tmp_path, "--data", "open")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "cannot listen" in refused(tmp_path, "--listen", f"127.0.0.1:{taken.getsockname()[1]}")
    (tmp_path / "serve.yml").write_text("tls: {certificate: a.pem, key: b.pem}\nlisten: 127.0.0.1:0\n")
    assert "a.pem" in refused(tmp_path, "--config", "serve.yml")
    (tmp_path / "serve.yml").write_text(
        "origins: ['http://a.test:8080', 'https://a.test:80']\nlisten: 127.0.0.1:0\ndata: d\n"
    )
    port = free_port()
    with running(tmp_path, "--config", "serve.yml", listen=f"127.0.0.1:{port}") as server:
        assert server.url == "http://a.test:8080"
        server.url = f"http://127.0.0.1:{port}"
        for host, status in (("a.test:8080", 200), ("a.test:80", 200), ("a.test", 421), ("b.test:8080", 421)):
            assert server.ask("GET", "/healthz", {"Host": host})[0] == status, host


@pytest.mark.thorough
def test_everything_is_there_after_a_kill(tmp_path: Path) -> None:
    with running(tmp_path) as server:
        cookie = {"Cookie": server.log_in()}
        port = server.port
        server.process.kill()
        server.process.wait()
    with running(tmp_path, listen=f"127.0.0.1:{port}") as server:
        assert server.ask("GET", "/admin", cookie)[0] == 200
