"""A real cluster (`make test-kubernetes`): pods as nodes, what is told of one that lets nobody in, and that nothing is left in
any, however a run ends."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from lab import CliResult
from lab.cli import runbook_finish

from .cluster import PORT, Cluster, ClusterError
from .needs import PROGRAMS, kubernetes_missing

pytestmark = [pytest.mark.kubernetes]

WAIT = "name: wait\nstages:\n  - {name: wait, shell: 'sleep 1234 & sleep 1235', timeout: 60s}\n"
NOTHING = "name: nothing\nstages:\n  - {name: nothing, shell: 'true'}\n"
CHECKS = "name: checks\nstages:\n  - check: ping\n  - check: port\n  - check: firewall\n"
TRAIN = """\
name: train
stages:
  - name: train
    launch: {launcher: direct, detach: true, command: [/bin/sh, -c, 'echo "rank $RANK"; sleep 1235']}
"""
WORKERS = ("worker-0", "worker-1")
LABELS = "kubernetes:app=train"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    if not os.environ.get("RUNBOOK_KUBERNETES"):
        pytest.skip("a real cluster is what `make test-kubernetes` builds and tries")
    if reason := kubernetes_missing():
        pytest.skip(reason)
    with Cluster(PROGRAMS) as made:
        yield made


def lets_in(cluster: Cluster, name: str) -> bool:
    """The pod itself, not an earlier one of its name that was deleted by force and has not ended yet."""
    address = cluster.address(name)
    return address != "" and cluster.execute(name, f"grep -qwF {address} /proc/net/fib_trie") == ""


@pytest.fixture
def pods(cluster: Cluster) -> Iterator[Cluster]:
    """Two pods that have a Python with torch, and do nothing by themselves; all pods are deleted afterwards."""
    for name in WORKERS:
        cluster.pod(name, wait=False)
    for name in WORKERS:
        cluster.until(f"{name} lets us in", partial(lets_in, cluster, name), 120)
    yield cluster
    cluster.delete("networkpolicies", "--all")
    cluster.delete("pods", "--all")


def run(
    cluster: Cluster, text: str, *arguments: str | Path, named: str | Path = LABELS, **env: str
) -> tuple[CliResult, Any]:
    """Run this playbook; the result, and the document where there is one."""
    file = cluster.folder / "playbook.yml"
    file.write_text(text)
    done = runbook_finish(cluster.start("run", file, "-i", named, *arguments, "-o", "json", env=env), timeout=240)
    return done, done.json() if done.stdout else {}


def told(document: Any) -> dict[str, str]:
    """Node -> first cause of the last stage's outcomes that are not pass."""
    return {one["node"]: one["findings"][0]["cause"] for one in document["stages"][-1]["outcomes"] if one["findings"]}


def finding(document: Any, node: str) -> dict[str, Any]:
    return next(one["findings"][0] for one in document["stages"][-1]["outcomes"] if one["node"] == node)


def inventory(cluster: Cluster, nodes: Any = WORKERS, **kubernetes: str) -> Path:
    """Of these pods, which need not exist."""
    file = cluster.folder / "inventory.yml"
    content = {
        "defaults": {"connection": "kubernetes", "kubernetes": {"container": "train", **kubernetes}},
        "nodes": {name: {"address": cluster.address(name) or f"10.91.0.{200 + n}"} for n, name in enumerate(nodes)},
    }
    file.write_text(yaml.safe_dump(content))
    return file


def within(cluster: Cluster, name: str) -> str:
    """What runs in a pod beside its first process and this look at it."""
    lines = cluster.execute(name, "for p in /proc/[0-9]*; do tr '\\0' ' ' <$p/cmdline; echo; done").splitlines()
    return "\n".join(line.strip() for line in lines if "sleep 123" in line and "for p in" not in line)


def nothing_left(cluster: Cluster, *names: str) -> None:
    for name in names or WORKERS:
        cluster.until(f"{name} is as it was: {within(cluster, name)}", lambda name=name: not within(cluster, name), 30)  # type: ignore[misc]
        assert cluster.execute(name, "ls -A /root/.runbook 2>/dev/null || true") == ""


def interrupted(
    cluster: Cluster, text: str, strike: Callable[[int], object], *, named: str | Path = LABELS
) -> CliResult:
    """Run this, and strike once it runs in every pod; `strike` is given the controller's pid."""
    file = cluster.folder / "playbook.yml"
    file.write_text(text)
    process = cluster.start("run", file, "-i", named, "-o", "json")
    try:
        cluster.until("it runs in the pods", lambda: all("sleep 1235" in within(cluster, name) for name in WORKERS), 90)
    except ClusterError as error:
        raise AssertionError(f"{error}\n{runbook_finish(process, timeout=120)}") from error
    strike(process.pid)
    return runbook_finish(process, timeout=120)


# Pods as nodes


def test_two_pods_pass_the_shipped_playbook_and_nothing_is_left(pods: Cluster) -> None:
    file = pods.folder / "inventory.yml"
    made = runbook_finish(pods.start("inventory", "init", LABELS, "--out", file))
    assert made.returncode == 0, made
    listed = runbook_finish(pods.start("inventory", "list", "-i", file, "-o", "json")).json()["nodes"]
    assert {node["name"]: node["address"] for node in listed} == {name: pods.address(name) for name in WORKERS}
    content = yaml.safe_load(file.read_text())
    content["defaults"]["python"] = (
        f"{os.environ.get('VIRTUAL_ENV') or Path(__file__).resolve().parents[2] / '.venv'}/bin/python"
    )
    file.write_text(yaml.safe_dump(content))
    done = runbook_finish(pods.start("run", "two_node_allreduce", "-i", file, "-o", "json"), timeout=300)
    document = done.json()
    assert done.returncode == 0, done
    assert {stage["verdict"] for stage in document["stages"]} <= {"pass", "skip"}, done
    reached = document["stages"][0]["outcomes"][0]
    assert reached["metrics"] | {"pod": "worker-0", "machine": "gpu-1", "host_network": False} == reached["metrics"]
    assert "kernel's log of gpu-1 not checked" in reached["proof"]
    nothing_left(pods)


def test_a_detached_job_in_pods_is_listed_read_and_stopped(pods: Cluster) -> None:
    done, _ = run(pods, TRAIN)
    assert done.returncode == 0, done
    assert all("sleep 1235" in within(pods, name) for name in WORKERS)

    def say(*command: str) -> CliResult:
        return runbook_finish(pods.start(*command, "-i", LABELS))

    assert say("ps", "-o", "json").json()["jobs"][0]["state"] == "running"
    assert sorted(say("logs").stdout.splitlines()) == ["[0 worker-0] rank 0", "[1 worker-1] rank 1"]
    assert say("stop").returncode == 0
    assert say("clean").returncode == 0
    nothing_left(pods)


def test_a_pod_on_the_network_of_its_machine_is_told_as_that(pods: Cluster) -> None:
    pods.pod("of-the-host", labels={"app": "host"}, hostNetwork=True)
    done, document = run(pods, NOTHING, named="kubernetes:default:app=host")
    assert done.returncode == 0, done
    assert "with its network" in document["stages"][0]["outcomes"][0]["proof"]


def test_gpus_and_the_container_come_from_the_pod(pods: Cluster) -> None:
    helper = {
        "name": "helper",
        "image": "lab/bare:1",
        "imagePullPolicy": "Never",
        "command": ["/bin/sleep", "infinity"],
    }
    limits = {"nvidia.com/gpu": 2}
    pods.pod("gpus", labels={"app": "gpus"}, limits=limits, wait=False, nodeName="gpu-1", containers=[helper])
    pods.until("it is there", lambda: pods.status("gpus"))
    listed = runbook_finish(pods.start("inventory", "list", "-i", "kubernetes:app=gpus", "-o", "json"))
    node = listed.json()["nodes"][0]
    assert (node["gpus"], node["kubernetes"]["container"]) == ([0, 1], "train"), listed
    assert "the job is to run in train" in listed.stderr


# Who lets nobody in


def test_arguments_that_name_no_pods(pods: Cluster) -> None:
    for named, code, cause in (
        ("kubernetes:app=nobody", 2, "kubernetes-pod-unknown"),
        ("kubernetes:elsewhere:app=train", 2, "kubernetes-pod-unknown"),
        ("kubernetes:", 2, "kubernetes-pod-unknown"),
    ):
        done, _ = run(pods, NOTHING, named=named)
        assert (done.returncode, f"error[{cause}]" in done.stderr) == (code, True), done


def test_a_pod_that_does_not_exist_and_a_container_that_does_not(pods: Cluster) -> None:
    done, document = run(pods, NOTHING, named=inventory(pods, ("worker-0", "worker-9")))
    assert (done.returncode, told(document)) == (3, {"worker-9": "kubernetes-pod-unknown"}), done
    done, document = run(pods, NOTHING, named=inventory(pods, container="pytorch"))
    assert told(document) == dict.fromkeys(WORKERS, "kubernetes-container-unknown"), done


def test_a_pod_that_waits_is_told_in_the_schedulers_words(pods: Cluster) -> None:
    pods.pod("worker-2", limits={"cpu": "1000"}, wait=False)
    pods.until("the scheduler has looked", lambda: "PodScheduled" in str(pods.status("worker-2").get("conditions")))
    done, document = run(pods, NOTHING)
    assert (done.returncode, told(document)) == (3, {"worker-2": "pod-not-running"}), done
    assert "Insufficient cpu" in finding(document, "worker-2")["says"]
    assert "note: the pod worker-2 has not started" in done.stderr


def test_an_image_that_is_not_there_and_a_program_that_ends(pods: Cluster) -> None:
    pods.pod("worker-2", image="lab/nobody:1", wait=False)
    pods.pod("worker-3", "/bin/sh", "-c", "exit 7", wait=False)
    pods.until("both are stuck", lambda: all("waiting" in str(pods.status(name)) for name in ("worker-2", "worker-3")))
    pods.until("it has ended before", lambda: "exitCode" in str(pods.status("worker-3")))
    done, document = run(pods, NOTHING)
    assert told(document) == dict.fromkeys(("worker-2", "worker-3"), "pod-not-running"), done
    assert "ErrImageNeverPull" in finding(document, "worker-2")["says"]
    assert "exit code 7" in str(finding(document, "worker-3"))


def test_an_evicted_pod_is_left_out_and_named(pods: Cluster) -> None:
    full = "printf %30000000s x >/cache/full; exec sleep infinity"
    cache = {"name": "cache", "emptyDir": {"sizeLimit": "5Mi"}}
    mounts = [{"name": "cache", "mountPath": "/cache"}]
    pods.pod(
        "worker-2",
        "/bin/sh",
        "-c",
        full,
        image="lab/bare:1",
        container={"volumeMounts": mounts},
        volumes=[cache],
        wait=False,
    )
    pods.until("the kubelet evicts it", lambda: pods.status("worker-2").get("reason") == "Evicted", 180)
    done, _ = run(pods, NOTHING)
    assert (
        done.returncode,
        "note: the pod worker-2 was evicted from gpu-1: Usage of EmptyDir volume" in done.stderr,
    ) == (0, True), done
    done, document = run(pods, NOTHING, named=inventory(pods, (*WORKERS, "worker-2")))
    assert (done.returncode, told(document)) == (3, {"worker-2": "kubernetes-pod-evicted"}), done


def test_images_without_a_python_and_without_a_shell(pods: Cluster) -> None:
    pods.pod("worker-2", image="lab/bare:1")
    pods.pod("worker-3", image="lab/empty:1")
    done, document = run(pods, NOTHING)
    assert told(document) == dict.fromkeys(("worker-2", "worker-3"), "python-missing"), done
    assert "the pod worker-2" in finding(document, "worker-2")["says"]
    assert "no /bin/sh" in finding(document, "worker-3")["says"]


def test_who_may_not_and_who_is_nobody(pods: Cluster) -> None:
    file = inventory(pods)
    for user, cause in (
        ("ada", "kubernetes-forbidden"),
        ("eve", "kubernetes-forbidden"),
        ("mallory", "kubernetes-auth-failed"),
    ):
        done, document = run(pods, NOTHING, named=file, KUBECONFIG=str(pods.kubeconfig(user)))
        assert (done.returncode, told(document)) == (3, dict.fromkeys(WORKERS, cause)), done
        pods.kubeconfig()


def test_no_kubectl_no_context_and_no_server(pods: Cluster) -> None:
    file = inventory(pods)
    done, document = run(pods, NOTHING, named=file, PATH="/usr/local/sbin")
    assert told(document) == dict.fromkeys(WORKERS, "kubernetes-tool-missing"), done
    gone = pods.kubeconfig("gone", server=f"https://127.0.0.1:{PORT + 1}")
    done, document = run(pods, NOTHING, named=file, KUBECONFIG=str(gone))
    assert (done.returncode, told(document)) == (3, dict.fromkeys(WORKERS, "kubernetes-unreachable")), done
    done, _ = run(pods, NOTHING, KUBECONFIG=str(gone))
    assert (done.returncode, "error[kubernetes-unreachable]" in done.stderr) == (3, True), done
    done, document = run(pods, NOTHING, named=inventory(pods, context="elsewhere"))
    assert told(document) == dict.fromkeys(WORKERS, "kubernetes-config-wrong"), done


# Faults in pods


def test_a_network_policy_that_keeps_pods_apart_is_named(pods: Cluster) -> None:
    metadata = {"name": "only-the-rendezvous", "namespace": "default"}
    spec = {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [{"ports": [{"port": 29500}]}]}
    pods.apply({"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": metadata, "spec": spec})
    pods.drop("worker-1", f"ip saddr {pods.address('worker-0')} ct state new tcp dport != 29500")
    done, document = run(pods, CHECKS)
    assert (done.returncode, told(document)) == (1, {"worker-1": "kubernetes-network-policy"}), done
    assert "only-the-rendezvous" in finding(document, "worker-1")["says"]


def test_ports_that_are_silent_and_no_policy_name_what_cannot_be_seen(pods: Cluster) -> None:
    pods.drop("worker-1", f"ip saddr {pods.address('worker-0')} tcp dport 1024-65535")
    done, document = run(pods, CHECKS)
    assert done.returncode == 1, done
    assert "a NetworkPolicy may be what drops it" in str(document["stages"][-1]), done


def test_a_port_that_a_process_of_the_pod_holds(pods: Cluster) -> None:
    listen = "import socket, time; s = socket.socket(); s.bind(('', 29500)); s.listen(); time.sleep(600)"
    pods.execute("worker-0", f'python3 -c "{listen}" >/dev/null 2>&1 &')
    pods.until("it listens", lambda: ":733C" in pods.execute("worker-0", "cat /proc/net/tcp"))
    done, document = run(pods, CHECKS)
    assert (done.returncode, told(document)) == (1, {"worker-0": "port-in-use"}), done


def test_an_address_that_the_pod_had_before(pods: Cluster) -> None:
    file = inventory(pods)
    file.write_text(file.read_text().replace(pods.address("worker-1"), "10.91.0.250"))
    done, document = run(pods, NOTHING, named=file)
    assert (done.returncode, told(document)) == (1, {"worker-1": "interface-wrong"}), done
    assert pods.address("worker-1") in finding(document, "worker-1")["remedy"]


# What ends it


def test_a_killed_controller_and_an_interrupted_one_leave_nothing(pods: Cluster) -> None:
    for number in (signal.SIGKILL, signal.SIGINT):
        interrupted(pods, WAIT, lambda pid, number=number: os.kill(pid, number))  # type: ignore[misc]
        nothing_left(pods)


def test_a_container_that_is_restarted_in_the_middle(pods: Cluster) -> None:
    done = interrupted(pods, WAIT, lambda _: pods.kill("worker-1"))
    assert (done.returncode, told(done.json())["worker-1"]) == (3, "kubernetes-pod-restarted"), done
    nothing_left(pods, "worker-0")


def test_a_pod_that_is_deleted_in_the_middle(pods: Cluster) -> None:
    done = interrupted(pods, WAIT, lambda _: pods.kubectl("delete", "pod", "worker-1", "--wait=false"))
    assert (done.returncode, told(done.json())["worker-1"]) == (3, "pod-not-running"), done
    nothing_left(pods, "worker-0")


def test_a_container_that_runs_out_of_memory(pods: Cluster) -> None:
    pods.delete("pod", "worker-1")
    eat = "while ! [ -e /tmp/eat ]; do sleep 0.2; done; exec python3 -c 'x = []\nwhile True: x.append(bytearray(10_000_000))'"
    pods.pod("worker-1", "/bin/sh", "-c", eat, limits={"memory": "300Mi"})
    pods.until("worker-1 lets us in", partial(lets_in, pods, "worker-1"))
    done = interrupted(pods, WAIT, lambda _: pods.execute("worker-1", "touch /tmp/eat"))
    assert (done.returncode, told(done.json())["worker-1"]) == (3, "kubernetes-oom-killed"), done


def test_a_kubelet_that_stops_answering(pods: Cluster) -> None:
    pods.signal_daemon("kubelet", signal.SIGSTOP)
    try:
        done, document = run(pods, NOTHING)
    finally:
        pods.signal_daemon("kubelet", signal.SIGCONT)
    assert (done.returncode, told(document)) == (3, dict.fromkeys(WORKERS, "kubernetes-unreachable")), done


def test_a_server_that_goes_in_the_middle_is_no_fault_of_the_pods(pods: Cluster) -> None:
    """It carries the sessions, so nobody hears of the pods any more; they end what runs there by themselves."""
    done = interrupted(pods, WAIT, lambda _: pods.signal_daemon("kube-apiserver", signal.SIGSTOP))
    pods.signal_daemon("kube-apiserver", signal.SIGCONT)
    assert (done.returncode, set(told(done.json()).values())) == (3, {"kubernetes-unreachable"}), done
    time.sleep(1.0)
    with contextlib.suppress(ClusterError):
        pods.until("it answers again", lambda: pods.kubectl("get", "--raw", "/readyz") == "ok", 60)
    nothing_left(pods)
