"""What kubectl prints and the API server says, and what is made of it.

kubectl's words are those of kubectl 1.27, 1.30 and 1.33, seen with no server, with none of that name, and with one that answers with
the API's Status objects. Pods are written after the types and the messages in the source of Kubernetes 1.20.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from checks.made_up_cluster import cluster, machine, node

from runbook.checks.reach.interfaces import entered_pod_findings, separate_network_findings
from runbook.cli.inventory_source import inventory_source
from runbook.files.inventory import examine_inventory
from runbook.files.inventory_draft import draft_text
from runbook.files.yaml_document import parse_document
from runbook.importers.pods import draft_of_pods
from runbook.model.errors import FilesWrong, Unreachable
from runbook.model.inventory import Kubernetes
from runbook.transport.kubernetes_pods import (
    Pod,
    kubectl_stderr_failure,
    missing_pod_container_failure,
    parse_pods,
    pod_failure,
    stderr_evidence,
)

WHERE = Kubernetes(namespace="train")
PLACE = "the pod worker-0"
POD: dict[str, Any] = {
    "kind": "Pod",
    "metadata": {"name": "worker-0", "namespace": "train", "uid": "u-1", "labels": {"app": "llama", "index": "0"}},
    "spec": {
        "nodeName": "gpu-1",
        "containers": [
            {"name": "log", "resources": {}},
            {"name": "pytorch", "resources": {"limits": {"nvidia.com/gpu": "8", "memory": "64Gi"}}},
        ],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.244.1.7",
        "hostIP": "10.0.0.5",
        "containerStatuses": [
            {"name": "log", "restartCount": 3, "state": {"running": {}}},
            {"name": "pytorch", "restartCount": 0, "state": {"running": {"startedAt": "2026-11-23T04:00:00Z"}}},
        ],
    },
}
LOG = """\
E1123 03:40:26.278132   16484 memcache.go:265] "Unhandled Error" err=<
\tcouldn't get current server API group list: Get "https://kube:6443/api": getting credentials: exec: executable x not found
\t
\tIt looks like you are trying to use a client-go credential plugin that is not installed.
 >
"""


def pod(**changes: Any) -> Pod:
    """The pod with other values in its status; `pytorch` is its container's."""
    made = copy.deepcopy(POD)
    made["status"]["containerStatuses"][1].update(changes.pop("pytorch", {}))
    made["metadata"].update(changes.pop("metadata", {}))
    made["spec"].update(changes.pop("spec", {}))
    made["status"].update(changes)
    return parse_pods(json.dumps(made))[0]


def test_a_pod_is_read() -> None:
    found = pod()
    assert (found.name, found.address, found.machine, found.gpus) == ("worker-0", "10.244.1.7", "gpu-1", 8)
    assert (found.container, found.restarts, found.host_network) == ("pytorch", 0, False)
    assert pod_failure(found, WHERE, PLACE) is None
    assert missing_pod_container_failure(found, PLACE) is None


@pytest.mark.parametrize(
    ("address", "wrong", "unknown"),
    [
        ("10.244.1.7", [], ["kubernetes-pod-restarted"]),  # the pod's own, which kubectl did not lead to
        ("10.244.1.9", ["interface-wrong"], []),  # one that it had before
        ("10.0.0.5", ["container-bridge-network"], []),  # its machine's
    ],
)
def test_a_pod_that_has_another_address_than_peers_dial(address: str, wrong: list[str], unknown: list[str]) -> None:
    first = node("worker-0", address=address, kubernetes=WHERE)
    inventory = cluster(first, node("worker-1"))
    facts = {"own": False, "interfaces": machine("10.244.1.6")["interfaces"]}
    assert [one.cause for one in separate_network_findings(inventory, first, facts, pod())] == wrong
    found = entered_pod_findings(inventory, first, facts, pod())
    assert [one.cause for one in found] == unknown
    assert all("10.244.1.6" in one.evidence[0] for one in found)
    assert not entered_pod_findings(inventory, first, {**facts, "own": True}, pod())


def test_the_container_that_a_pod_names_or_that_is_asked_for_is_taken() -> None:
    noted = {"annotations": {"kubectl.kubernetes.io/default-container": "log"}}
    assert pod(metadata=noted).container == "log"
    assert parse_pods(json.dumps({"kind": "PodList", "items": [POD, POD]}), "log")[1].restarts == 3
    wrong = missing_pod_container_failure(parse_pods(json.dumps(POD), "torch")[0], PLACE)
    assert wrong is not None
    assert wrong.cause == "kubernetes-container-unknown"
    assert "log, pytorch" in wrong.remedy


@pytest.mark.parametrize("text", ["x", "[]", "{}", '{"kind": "List"}', '{"kind": "Pod", "metadata": {}}'])
def test_a_text_that_is_no_pod_is_not_guessed_at(text: str) -> None:
    assert parse_pods("\n") == []
    with pytest.raises(Unreachable, match="tool-output-unknown"):
        parse_pods(text)


OOM = {"reason": "OOMKilled", "exitCode": 137}
SCHEDULER = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
UNSCHEDULED = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": SCHEDULER}]
EVICTED = 'Usage of EmptyDir volume "cache" exceeds the limit "5Mi". '
PULL = {"waiting": {"reason": "ImagePullBackOff", "message": 'Back-off pulling image "x"'}}
LOOP = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}


@pytest.mark.parametrize(
    ("changes", "cause", "says"),
    [
        ({"phase": "Pending", "conditions": UNSCHEDULED, "containerStatuses": []}, "pod-not-running", SCHEDULER),
        ({"phase": "Pending", "pytorch": {"state": PULL}}, "pod-not-running", "ImagePullBackOff"),
        ({"phase": "Failed", "reason": "Evicted", "message": EVICTED}, "pod-evicted", 'exceeds the limit "5Mi".'),
        (
            {"phase": "Succeeded", "pytorch": {"state": {"terminated": {"exitCode": 0}}}},
            "pod-not-running",
            "has ended (exit code 0)",
        ),
        ({"phase": "Failed", "reason": "NodeAffinity"}, "pod-not-running", "NodeAffinity"),
        ({"phase": "Unknown"}, "pod-not-running", "gets no answer"),
        ({"metadata": {"deletionTimestamp": "2026-11-23T04:00:00Z"}}, "pod-not-running", "is being deleted"),
        ({"metadata": {"uid": "u-2"}}, "pod-restarted", "was replaced"),
        (
            {"pytorch": {"restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}}},
            "pod-restarted",
            "(exit code 1)",
        ),
        (
            {"pytorch": {"restartCount": 1, "lastState": {"terminated": OOM}}},
            "oom-killed",
            "more memory than its limit",
        ),
        ({"pytorch": {"state": {"terminated": OOM}}}, "oom-killed", "more memory"),
        ({"pytorch": {"state": LOOP, "lastState": {"terminated": {"exitCode": 7}}}}, "pod-not-running", "exit code 7"),
        ({"pytorch": {"state": LOOP, "lastState": {"terminated": OOM}}}, "oom-killed", "more memory"),
        (
            {"pytorch": {"state": {"terminated": {"exitCode": 3, "reason": "Error"}}}},
            "pod-restarted",
            "(Error, exit code 3)",
        ),
        (
            {"pytorch": {"state": {"terminated": {"exitCode": 3}}}, "spec": {"restartPolicy": "Never"}},
            "pod-not-running",
            "has ended (exit code 3)",
        ),
        (
            {"pytorch": {"state": {"terminated": {"exitCode": 0}}}, "spec": {"restartPolicy": "OnFailure"}},
            "pod-not-running",
            "has ended (exit code 0)",
        ),
    ],
)
def test_what_became_of_a_pod(changes: dict[str, Any], cause: str, says: str) -> None:
    told = pod_failure(pod(**copy.deepcopy(changes)), WHERE, PLACE, pod(), ("command terminated with exit code 137",))
    assert told is not None
    assert told.cause.removeprefix("kubernetes-") == cause
    assert says in told.says
    assert told.evidence[0] == "command terminated with exit code 137"


def test_restarts_before_the_run_are_no_news() -> None:
    again = {"pytorch": {"restartCount": 4, "lastState": {"terminated": OOM}}}
    assert pod_failure(pod(**copy.deepcopy(again)), WHERE, PLACE) is None
    assert pod_failure(pod(**copy.deepcopy(again)), WHERE, PLACE, pod(**copy.deepcopy(again))) is None


FORBIDDEN = 'Error from server (Forbidden): pods "w" is forbidden: User "ada" cannot create resource "pods/exec" in API group ""'


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        ("error: stat /nope: no such file or directory", "config-wrong"),
        ('error: context "nope" does not exist', "config-wrong"),
        ("Error in configuration: context was not found for specified context: nope", "config-wrong"),
        (
            "The connection to the server localhost:8080 was refused - did you specify the right host or port?",
            "config-wrong",
        ),
        ("error: You must be logged in to the server (Unauthorized)", "auth-failed"),
        (
            "error: You must be logged in to the server (the server has asked for the client to provide credentials)",
            "auth-failed",
        ),
        (f"{LOG}Unable to connect to the server: getting credentials: exec: executable x not found", "auth-failed"),
        (FORBIDDEN, "forbidden"),
        (
            "The connection to the server 127.0.0.1:1 was refused - did you specify the right host or port?",
            "unreachable",
        ),
        ("Unable to connect to the server: dial tcp: lookup kube.invalid on 10.0.0.53:53: no such host", "unreachable"),
        ("Error from server (ServiceUnavailable): the server is currently unable to handle the request", "unreachable"),
        (
            "error: unable to upgrade connection: error dialing backend: dial tcp 10.90.0.1:10250: i/o timeout",
            "unreachable",
        ),
        (
            "Error from server (InternalError): error dialing backend: dial tcp 10.0.0.5:10250: connect: connection refused",
            "unreachable",
        ),
    ],
)
def test_the_words_of_kubectl(words: str, cause: str) -> None:
    told = kubectl_stderr_failure(words, WHERE, "get pods", PLACE)
    assert told is not None
    assert told.cause.removeprefix("kubernetes-") == cause
    assert told.evidence[-1] in words


def test_whose_silence_it_is() -> None:
    kubelet = kubectl_stderr_failure(
        "error: unable to upgrade connection: error dialing backend: i/o timeout", WHERE, "x", PLACE
    )
    server = kubectl_stderr_failure(
        "Unable to connect to the server: dial tcp 10.0.0.1:6443: i/o timeout", WHERE, "x", PLACE
    )
    assert kubelet is not None
    assert server is not None
    assert "the kubelet of the pod worker-0" in kubelet.says
    assert "the API server, which knows the pods" in server.says


@pytest.mark.parametrize(
    "words",
    ["", 'error: unable to upgrade connection: container not found ("train")', "command terminated with exit code 137"],
)
def test_words_that_tell_nothing_of_who_is_to_blame(words: str) -> None:
    assert kubectl_stderr_failure(words, WHERE, "run anything", PLACE) is None


def test_kubectls_own_log_is_no_evidence() -> None:
    assert stderr_evidence(f'{LOG}Defaulted container "a" out of: a, b\nlast') == ("last",)


# The inventory of pods.


@pytest.mark.parametrize(
    "named",
    [
        "kubernetes",
        "kubernetes:",
        "kubernetes: ",
        "kubernetes:a;b",
        "kubernetes:Not_One:app=x",
        "kubernetes::app=x",
        "kubernetes:a:b:c",
    ],
)
def test_what_can_be_no_selector_is_refused_and_nobody_is_asked(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FilesWrong) as caught:
        inventory_source(named)
    assert [problem.id for problem in caught.value.problems] == ["kubernetes-pod-unknown"]


def test_pods_become_an_inventory_that_loads() -> None:
    second = pod(metadata={"name": "worker-1", "uid": "u-3"}, podIP="10.244.2.4")
    made = draft_text(draft_of_pods([pod(), second], "app=llama", "gpu-cluster"))
    inventory = examine_inventory(parse_document(made, "kubernetes:app=llama")).inventory
    assert inventory is not None, made
    assert [(node.name, node.address, node.gpus) for node in inventory.nodes] == [
        ("worker-0", "10.244.1.7", tuple(range(8))),
        ("worker-1", "10.244.2.4", tuple(range(8))),
    ]
    assert {node.kubernetes for node in inventory.nodes} == {
        Kubernetes(namespace="train", container="pytorch", context="gpu-cluster")
    }
    assert [node.place for node in inventory.nodes] == ["the pod worker-0", "the pod worker-1"]
