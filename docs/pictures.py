"""`make pictures`: terminal sessions and pictures of pages, made anew from real runs; as root on Linux, with the lab.

    python docs/pictures.py            all of them
    python docs/pictures.py lint hang  some

A session is text in a page, between `<!-- run: NAME -->` and the end of the block of code that follows, or
`docs/pictures/NAME.svg`, or both. Pages of the server are photographed in a network of their own, with an address of a handbook.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from browser.browser import Shown, chromium
from e2e.test_links import all_at
from lab import Lab
from lab.fault import Fault
from lab.faults.firewall_policy_drops import FAULT as FIREWALL
from lab.faults.rank_never_calls import FAULT as HANG
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
PAGES = (*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md"))
COLUMNS = 128
WIDTH, HEIGHT = 1180, 900
LONGEST_S = 300.0
SGR = re.compile(r"\x1b\[[0-9;]*m")
NO_FONT_FROM_ELSEWHERE = re.compile(r"@font-face \{\{.*?\}\}", re.DOTALL)

WITH_MISTAKES = """\
# yaml-language-server: $schema=../schemas/inventory.schema.json
name: mine
rendezvous: {master: node-a, port: 29500, backend: nccl}
network: {interface: ib0, ports: 29500-29510}
infiniband: {hca: mlx5}
defaults: {gpus: 8}
env:
  NCCL_DEBUG: WARN
  NCCL_SOCKET_TIMEOUT: 60000
  NCCL_IB_DISABLE: true
nodes:
  node-a: {address: 10.0.0.1}
  node-b: {address: 10.0.0.2}
"""

FAILS = """\
import os, torch, torch.distributed as dist
dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(torch.ones(4))
    print(f"step {step} loss {1 / (step + 1):.4f}", flush=True)
if os.environ["RANK"] == "1":
    torch.load("checkpoints/step-3.pt")
dist.all_reduce(torch.ones(4))
"""


# Sessions.


def session(folder: Path, typed: str, environment: Mapping[str, str], *, most: int = 400) -> str:
    """What a person sees who types this in a folder: the command, and all that it prints, with colours."""
    words = [word if word != "runbook" else f"{sys.executable} -m runbook" for word in typed.split(" ")]
    done = subprocess.run(
        ["sh", "-c", " ".join(words)],
        cwd=folder,
        env={**environment, "FORCE_COLOR": "1", "COLUMNS": str(COLUMNS), "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if len(done.stdout.splitlines()) > most or "Traceback" in done.stdout.split("evidence")[0]:
        sys.exit(f"{typed} ended {done.returncode}, and printed:\n{done.stdout}")
    return f"$ {typed}\n{done.stdout.rstrip()}\n"


def keep(name: str, shown: str, *, picture: bool = False) -> None:
    """Write a session into the pages that want it, and as a picture."""
    plain = SGR.sub("", shown)
    wanted = re.compile(rf"(<!-- run: {name} -->\n```text\n).*?(^```$)", re.DOTALL | re.MULTILINE)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        changed = wanted.sub(lambda found: found[1] + plain + found[2], text)
        if changed != text:
            page.write_text(changed, encoding="utf-8")
    if picture:
        console = Console(record=True, width=COLUMNS, file=io.StringIO(), force_terminal=True)
        console.print(Text.from_ansi(shown.rstrip()), soft_wrap=False)
        template = NO_FONT_FROM_ELSEWHERE.sub("", CONSOLE_SVG_FORMAT)
        svg = console.export_svg(title="runbook", code_format=template, unique_id=name)
        (PICTURES / f"{name}.svg").write_text("\n".join(line.rstrip() for line in svg.splitlines()) + "\n")
    print(plain, flush=True)


@contextmanager
def lab(hosts: int = 2, fault: Fault | None = None) -> Iterator[tuple[Lab, Path, dict[str, str]]]:
    """A lab, a folder as people have it (mine.yml, playbooks/), and the environment to type in."""
    with Lab(hosts) as up:
        for name in ("playbooks", "inventories", "examples"):
            shutil.copytree(ROOT / name, up.tmp / name)
        up.inventory("mine.yml", name="mine")
        if fault:
            fault.breaks(up)
        yield up, up.tmp, up.environment()


RUN = "runbook run two_node_allreduce -i mine.yml"


def firewall() -> None:
    """The run that fails, its page, and the same run after the printed command."""
    with lab(fault=FIREWALL) as (up, folder, environment):
        shown = session(folder, RUN, environment)
        keep("firewall", shown, picture=True)
        session(folder, "runbook report --out report.html", environment)
        with chromium() as browser, Shown(browser, folder / "report.html", width=WIDTH) as shown_page:
            photograph(shown_page, "report")
        fix = re.search(r"fix on node-a  (.+)", SGR.sub("", shown))
        assert fix, shown
        up["node-a"].run(fix[1], user="root")
        keep("pass", session(folder, RUN, environment), picture=True)


def hang() -> None:
    with lab(fault=HANG) as (_, folder, environment):
        keep("hang", session(folder, RUN, environment))


def train() -> None:
    with lab() as (up, folder, environment):
        for host in up:
            host.write("/home/work/train_ddp.py", (ROOT / "examples" / "train_ddp.py").read_text(), user=up.user)
            host.run("mkdir -p ~/work && cp /home/work/train_ddp.py ~/work/")
        keep("train", session(folder, "runbook run train_two_node -i mine.yml -e steps=6", environment), picture=True)


def burnin() -> None:
    """Six hosts, one of them with half the bandwidth."""
    with lab(6) as (up, folder, environment):
        all_at(up, 30)
        up["node-c"].unlimit()
        up["node-c"].limit(15)
        small = "-e max_bytes=64K -e iterations=2 -e budget=5s -e seconds=300ms"
        keep("burnin", session(folder, f"runbook run cluster_burn_in -i mine.yml {small}", environment))


def lint() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("playbooks", "inventories"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        (Path(folder) / "inventories" / "mine.yml").write_text(WITH_MISTAKES)
        keep("lint", session(Path(folder), "runbook lint inventories/ playbooks/", os.environ))


def render() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("playbooks", "inventories"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        keep("render", session(Path(folder), "runbook render playbooks/train_single_gpu.yml --shell bat", os.environ))


def diagnose() -> None:
    """Logs of a torchrun one of whose ranks finds no checkpoint."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "train.py").write_text(FAILS)
        torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        torchrun += ["--log-dir", "logs", "--redirects", "3", "train.py"]
        with (Path(folder) / "slurm-1234.out").open("w") as out:
            process = subprocess.Popen(torchrun, cwd=folder, stdout=out, stderr=out, start_new_session=True)
            try:
                process.wait(LONGEST_S)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
        keep("diagnose", session(Path(folder), "runbook diagnose slurm-1234.out logs/", os.environ))


# The server's page.

HOUSE = """\
set -e
ip link set lo up
ip link add eth0 type dummy
ip addr add 10.0.0.5/24 dev eth0
ip link set eth0 up
ip route add default dev eth0
mount -t tmpfs none /srv
mkdir /srv/runbook
mount --bind "$1" /srv/runbook
cd /srv/runbook
PYTHONPATH=/srv/runbook:/srv/runbook/tests exec .venv/bin/python docs/pictures.py photographs
"""


def page() -> None:
    subprocess.run(["unshare", "--net", "--mount", "sh", "-c", HOUSE, "sh", str(ROOT)], check=True, timeout=LONGEST_S)


def photograph(shown: Shown, name: str) -> None:
    shown.page.screenshot(path=PICTURES / f"{name}.png", clip={"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT})


def photographs() -> None:
    """In that network: `make serve`, as the tutorial has it."""
    serving = [sys.executable, "examples/serve_here.py", "/srv/data"]
    process = subprocess.Popen(serving, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    said = ""
    try:
        while "two agents run" not in said:
            line = process.stdout.readline()
            assert line, said
            said += line
        link = re.search(r"http://\S+/login/\S+", said)
        assert link, said
        with chromium() as browser, Shown(browser, link[0], width=WIDTH) as shown:
            tab = shown.page
            tab.get_by_role("button", name="Log in").click()
            tab.wait_for_url(lambda url: "/login" not in url)
            url = link[0].partition("/login")[0]
            time.sleep(3)  # the first heartbeats
            tab.goto(url + "/groups/train")
            photograph(shown, "group")
            tab.get_by_role("button", name="Start", exact=True).click()
            tab.goto(url + "/")
            tab.locator("td.c small").first.wait_for(timeout=1000 * LONGEST_S)  # a rank that has told its step
            photograph(shown, "overview")
            tab.goto(url + "/groups/train")
            tab.get_by_role("link", name="Logs").first.click()
            tab.goto(tab.url.removesuffix("/logs"))
            photograph(shown, "run")
    finally:
        process.terminate()
        process.communicate(timeout=60)


ALL: Mapping[str, Callable[[], None]] = {
    "lint": lint,
    "render": render,
    "diagnose": diagnose,
    "firewall": firewall,
    "hang": hang,
    "train": train,
    "burnin": burnin,
    "page": page,
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ALL:
        ({**ALL, "photographs": photographs})[name]()


if __name__ == "__main__":
    main()
