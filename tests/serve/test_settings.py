"""From what is asked for to the settings of a server: the addresses that it answers to, and that agents dial."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from urllib.parse import urlencode

import pytest

from runbook.agent.protocol import Enrolment
from runbook.cli.main import main
from runbook.model.errors import FilesWrong
from runbook.serve.settings import ServeSettings, make_serve_settings, read_options
from serve.server_in_process import world_of


def settings(folder: Path, *origins: str, listen: str = "127.0.0.1:8400") -> ServeSettings:
    (folder / "serve.yml").write_text(json.dumps({"listen": listen, "origins": origins}))
    options = read_options(None, str(folder), str(folder / "serve.yml"), insecure_http=False)
    return make_serve_settings(options, options.port, people=True)


@pytest.mark.parametrize(
    ("written", "host", "origin"),
    [
        ("https://Cluster.example.org:443", "cluster.example.org", "https://cluster.example.org"),
        ("http://cluster.example.org:80", "cluster.example.org", "http://cluster.example.org"),
        ("https://cluster.example.org:80", "cluster.example.org:80", "https://cluster.example.org:80"),
        ("https://[2001:DB8::1]:443", "[2001:db8::1]", "https://[2001:db8::1]"),
        ("https://[2001:db8::1]:8443", "[2001:db8::1]:8443", "https://[2001:db8::1]:8443"),
    ],
)
def test_an_origin_is_known_as_browsers_write_it(written: str, host: str, origin: str, tmp_path: Path) -> None:
    assert settings(tmp_path, written).hosts[host] == origin


@pytest.mark.parametrize(
    "origins", [("https://a:99999",), ("https://a", "https://a:443"), ("https://a", "http://a:80")]
)
def test_origins_that_cannot_be_are_refused(origins: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(FilesWrong):
        settings(tmp_path, *origins)


def test_behind_a_proxy_an_agent_is_enrolled_with_the_address_of_the_server_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = settings(tmp_path, "https://cluster.example.org")
    assert made.url == "https://cluster.example.org"

    async def run() -> None:
        async with world_of(tmp_path, origins=made.origins) as world:
            headers = [("host", "cluster.example.org"), ("authorization", f"Bearer {world.tokens['admin']}")]
            headers.append(("content-type", "application/x-www-form-urlencoded"))
            page = await world.ask("POST", "/admin/agents", headers, urlencode({"name": "gn1"}).encode())
            assert page.status == 200
            assert b"listens on loopback alone" in page.body
            assert await asyncio.to_thread(main, ["serve", "enrol", "--data", str(tmp_path), "--name", "gn2"]) == 0

    asyncio.run(run())
    said = capsys.readouterr()
    assert Enrolment.of(said.out).url == "http://127.0.0.1:8400"
    assert "on this machine" in said.err


def test_with_a_certificate_of_its_own_the_first_origin_is_what_agents_dial(tmp_path: Path) -> None:
    made = settings(tmp_path, "http://plain.example.org", "https://cluster.example.org", listen="127.0.0.2:8400")
    assert made.url_of_agents == "http://plain.example.org"
    tls = ServeSettings(
        tmp_path, "0.0.0.0", 8400, made.origins, settings(tmp_path, "https://a", listen="0.0.0.0:0").tls
    )
    assert tls.url_of_agents == "https://cluster.example.org"
