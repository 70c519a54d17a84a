"""Sessions in pods, with a program that stands for kubectl and the cluster: each pod is this machine."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from lab.processes import wait_until

from runbook.model.inventory import Kubernetes, Node
from runbook.transport.node_sessions import Site

from .test_refusals import POD

STAGES = "name: stages\nstages:\n  - {name: where, shell: 'echo it is $IN_POD', expect: {stdout: it is worker-0}}\n"


class Stand:
    """`pods` is what the cluster tells; `says` makes kubectl say this and fail."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pods = {f"worker-{n}": copy.deepcopy(POD) for n in (0, 1)}
        for n, (name, pod) in enumerate(self.pods.items()):
            pod["metadata"] |= {"name": name, "uid": f"u-{n}", "labels": {"app": "llama", "index": str(n)}}
            pod["status"]["podIP"] = "127.0.0.1"
        program = folder / "bin" / "kubectl"
        program.parent.mkdir()
        program.write_text(f'#!/bin/sh\nexec {sys.executable} -S -E {Path(__file__).with_name("kubectl.py")} "$@"\n')
        program.chmod(0o755)
        self.tell()

    def tell(self) -> None:
        fresh = self.folder / "fresh.json"
        fresh.write_text(json.dumps(self.pods))
        fresh.rename(self.folder / "pods.json")

    def says(self, words: str) -> None:
        (self.folder / "says").write_text(words)

    @property
    def asked(self) -> list[str]:
        return (self.folder / "asked").read_text().splitlines()

    def environment(self) -> dict[str, str]:
        return {
            "KUBECTL_STANDS_FOR": str(self.folder),
            "PATH": f"{self.folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        }

    def node(self, number: int, **kubernetes: str) -> Node:
        chosen = Kubernetes(**{"namespace": "train", **kubernetes})
        work = str(self.folder / f"work-{number}")
        return Node(f"worker-{number}", "127.0.0.1", connection="kubernetes", kubernetes=chosen, workdir=work)

    @contextmanager
    def opened(self, *nodes: Node) -> Iterator[Site]:
        site = Site("20261123-000000-abcdef")
        try:
            site.open(nodes)
            yield site
        finally:
            site.close()


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    made = Stand(tmp_path)
    for name, value in made.environment().items():
        monkeypatch.setenv(name, value)
    return made


def causes(site: Site) -> dict[str, str]:
    return {name: failure.cause for name, failure in site.failures.items()}


def test_all_pods_are_asked_for_together_and_entered(stand: Stand) -> None:
    with stand.opened(stand.node(0), stand.node(1)) as site:
        assert site.failures == {}
        for name, session in site.sessions.items():
            assert session.shell("echo $IN_POD", timeout_s=20.0).stdout.strip() == name
        pod = site.pod("worker-1")
        assert pod is not None
        assert (pod.machine, pod.container) == ("gpu-1", "pytorch")
    assert [line for line in stand.asked if " get " in line] == [
        "--namespace train --request-timeout=12s get pods worker-0 worker-1 --ignore-not-found -o json"
    ]
    into = [line for line in stand.asked if " exec " in line]
    assert sorted(line.partition(" -- ")[0] for line in into) == [
        f"--namespace train exec --stdin worker-{n} --container pytorch" for n in (0, 1)
    ]


def test_each_is_told_what_is_wrong_with_it(stand: Stand) -> None:
    stand.pods["worker-1"]["status"] |= {"phase": "Pending", "containerStatuses": []}
    stand.tell()
    with stand.opened(stand.node(0, container="torch"), stand.node(1), stand.node(2)) as site:
        assert causes(site) == {
            "worker-0": "kubernetes-container-unknown",
            "worker-1": "pod-not-running",
            "worker-2": "kubernetes-pod-unknown",
        }


def test_a_selector_names_one_pod_that_has_not_ended(stand: Stand) -> None:
    old = copy.deepcopy(stand.pods["worker-1"])
    old["metadata"] |= {"name": "worker-1-old"}
    old["status"] |= {"phase": "Failed", "reason": "Evicted"}
    stand.pods["worker-1-old"] = old
    stand.tell()
    with stand.opened(stand.node(1, selector="app=llama,index=1"), stand.node(0, selector="app=llama")) as site:
        assert causes(site) == {"worker-0": "kubernetes-pod-unknown"}
        assert "not one pod with the labels app=llama but 2" in site.failures["worker-0"].says
        assert site.sessions["worker-1"].shell("echo $IN_POD", timeout_s=20.0).stdout.strip() == "worker-1"


def test_no_kubectl_and_one_that_is_not_let_in(stand: Stand, monkeypatch: pytest.MonkeyPatch) -> None:
    stand.says("error: You must be logged in to the server (Unauthorized)\n")
    with stand.opened(stand.node(0)) as site:
        assert causes(site) == {"worker-0": "kubernetes-auth-failed"}
    monkeypatch.setenv("PATH", str(stand.folder / "nothing"))
    with stand.opened(stand.node(0)) as site:
        assert causes(site) == {"worker-0": "kubernetes-tool-missing"}


@pytest.mark.parametrize(
    ("changes", "cause"),
    [
        (
            {"restartCount": 1, "lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}},
            "kubernetes-oom-killed",
        ),
        ({"restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}}, "kubernetes-pod-restarted"),
        (None, "pod-not-running"),
        ({}, "kubernetes-exec-failed"),
    ],
)
def test_why_a_session_ended_is_asked_until_the_cluster_knows(stand: Stand, changes: Any, cause: str) -> None:
    """The cluster learns of it later than we do."""
    with stand.opened(stand.node(0)) as site:
        session = site.sessions["worker-0"]
        os.kill(int(session.hello["pid"]), signal.SIGKILL)
        time.sleep(0.7)
        if changes is None:
            stand.pods.clear()
        else:
            stand.pods["worker-0"]["status"]["containerStatuses"][1] |= changes
        stand.tell()
        lost = wait_until("it is lost", lambda: session.lost)
        assert lost.cause == cause, lost


def test_pods_with_labels_are_a_cluster_to_run_on(stand: Stand) -> None:
    del stand.pods["worker-1"]
    pod = stand.pods["worker-0"]
    pod["metadata"]["annotations"] = {"kubectl.kubernetes.io/default-container": "pytorch"}
    pod["spec"]["containers"][1]["resources"] = {}  # this machine need not have GPUs
    stand.tell()
    file = stand.folder / "playbook.yml"
    file.write_text(STAGES)
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "runbook",
            "run",
            str(file),
            "-i",
            "kubernetes:train:app=llama",
            "-o",
            "json",
        ],
        cwd=stand.folder,
        env={**os.environ, "HOME": str(stand.folder)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    reached = json.loads(done.stdout)["stages"][0]["outcomes"][0]
    assert (
        "pod on gpu-1, with a network of its own; packet filters and kernel's log of gpu-1 not checked"
        in reached["proof"]
    )
    assert reached["metrics"]["pod"] == "worker-0"
    assert "the job is to run in pytorch" in done.stderr
