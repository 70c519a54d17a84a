"""`make pictures`: the terminal sessions in README and docs/, and the pictures of a report and of the server's pages,
all made anew from real runs; as root on Linux, with the lab.

    python docs/pictures.py            all of them
    python docs/pictures.py lint hang  some

A session is text in a page, between `<!-- run: NAME -->` and the end of the block of code that follows.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from agents.test_from_the_page import Page
from browser.browser import Shown, chromium
from e2e.test_links import all_at
from lab import Lab, runbook_cli
from lab.agents import AgentLab
from lab.fault import Fault
from lab.faults.firewall_policy_drops import FAULT as FIREWALL
from lab.faults.rank_never_calls import FAULT as HANG
from lab.processes import wait_until

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
PAGES = (*ROOT.glob("README*.md"), *(ROOT / "docs").rglob("*.md"))
WIDTH, HEIGHT = 1180, 900
LONGEST_S = 300.0

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


TRAINS = "n=0; while :; do n=$((n+1)); echo step $n; echo $n >$RUNBOOK_PROGRESS; sleep 0.5; done"
PLAIN_PATHS = """\
([folder, plain]) => {
  dispatchEvent(new Event("pagehide"));  // what is shown is not fetched anew
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) texts.currentNode.data = texts.currentNode.data.replaceAll(folder, plain);
}
"""
"""A lab's folder has a name of this run; people's does not."""


# Sessions.


def session(folder: Path, typed: str, environment: Mapping[str, str], *, code: int = 0) -> str:
    """What a person sees who types this in a folder: the command, and all that it prints. A run that does not
    end with `code` (on a machine without CPU, say) is not what a page wants to show."""
    words = [word if word != "runbook" else f"{sys.executable} -m runbook" for word in typed.split(" ")]
    done = subprocess.run(
        ["sh", "-c", " ".join(words)],
        cwd=folder,
        env={**environment, "PYTHONPATH": str(ROOT)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LONGEST_S,
        check=False,
    )
    if done.returncode != code:
        sys.exit(f"{typed} ended {done.returncode}, not {code}, and printed:\n{done.stdout}")
    return f"$ {typed}\n{done.stdout.rstrip()}\n"


def keep(name: str, shown: str) -> None:
    """Write a session into the pages that want it."""
    wanted = re.compile(rf"(<!-- run: {name} -->\n```text\n).*?(^```$)", re.DOTALL | re.MULTILINE)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        changed = wanted.sub(lambda found: found[1] + shown + found[2], text)
        if changed != text:
            page.write_text(changed, encoding="utf-8")
    print(shown, flush=True)


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
        shown = session(folder, RUN, environment, code=1)
        keep("firewall", shown)
        session(folder, "runbook report --out report.html", environment)
        with chromium() as browser, Shown(browser, folder / "report.html", width=WIDTH) as shown_page:
            clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": HEIGHT}
            shown_page.page.screenshot(path=PICTURES / "report.png", clip=clip)
        fix = re.search(r"fix on node-a  (.+)", shown)
        assert fix, shown
        up["node-a"].run(fix[1], user="root")
        keep("pass", session(folder, RUN, environment))


def hang() -> None:
    with lab(fault=HANG) as (_, folder, environment):
        keep("hang", session(folder, RUN, environment, code=1))


def burnin() -> None:
    """Six hosts, one of them with half the bandwidth."""
    with lab(6) as (up, folder, environment):
        all_at(up, 30)
        up["node-c"].unlimit()
        up["node-c"].limit(15)
        small = "-e max_bytes=64K -e iterations=2 -e budget=5s -e seconds=300ms"
        keep("burnin", session(folder, f"runbook run cluster_burn_in -i mine.yml {small}", environment, code=1))


def lint() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name in ("playbooks", "inventories"):
            shutil.copytree(ROOT / name, Path(folder) / name)
        (Path(folder) / "inventories" / "mine.yml").write_text(WITH_MISTAKES)
        keep("lint", session(Path(folder), "runbook lint inventories/ playbooks/", os.environ, code=1))


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


def page() -> None:
    """The fleet and a run while five nodes train, one of which is not heard; a sixth is a spare."""
    with AgentLab(6) as up:
        launch = {
            "command": ["sh", "-c", TRAINS],
            "grace": "2s",
            "retries": 1,
            "spares": ["node-f"],
            "watch": {"stall": "10m"},
        }
        made = up.inventory("train.yml", name="train", defaults={"processes": 4}, launch=launch)
        (up.data / "groups").mkdir(mode=0o700, exist_ok=True)
        shutil.copy(made, up.data / "groups" / "train.yml")
        person = Page(up)
        run = person.press("/groups/train/start")
        events = up.data / "runs" / run / "events.jsonl"
        wait_until("steps are told", lambda: events.exists() and '"pace"' in events.read_text(), timeout=LONGEST_S)
        up["node-e"].cut()
        wait_until("it is missed", lambda: up.states("node-e")[-1] == "SUSPECT", timeout=LONGEST_S)
        origin = f"https://{up.bridge_address}:{up.port}"
        link = runbook_cli(up, "serve", "--data", up.data, "user", "link", "ann", "--url", origin).stdout.strip()
        with chromium("--ignore-certificate-errors") as browser, Shown(browser, link, width=WIDTH) as shown:
            shown.page.get_by_role("button", name="Log in").click()
            shown.page.wait_for_url("**/")
            for name, path in (("fleet", "/"), ("run", f"/runs/{run}")):
                shown.page.goto(origin + path)
                shown.page.evaluate(PLAIN_PATHS, [str(up.data), "/srv/runbook"])
                bottom = shown.page.evaluate("document.querySelector('main').getBoundingClientRect().bottom")
                clip: Any = {"x": 0, "y": 0, "width": WIDTH, "height": min(HEIGHT, bottom)}
                shown.page.screenshot(path=PICTURES / f"{name}.png", clip=clip)
        up["node-e"].restore()
        up.await_online(*up.names)
        person.press("/groups/train/stop")
        wait_until("it has ended", lambda: person.run(run)["verdict"], timeout=LONGEST_S)


ALL: Mapping[str, Callable[[], None]] = {
    "lint": lint,
    "render": render,
    "diagnose": diagnose,
    "firewall": firewall,
    "hang": hang,
    "burnin": burnin,
    "page": page,
}


def main() -> None:
    PICTURES.mkdir(exist_ok=True)
    for name in sys.argv[1:] or ALL:
        ALL[name]()


if __name__ == "__main__":
    main()
