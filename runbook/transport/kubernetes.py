"""Pods as nodes: `kubectl exec` runs a shell in a container of the pod, and carries its stdin and stdout.

Measured on Kubernetes 1.20: the stream changes no byte; when stdin ends, or kubectl is killed, the supervisor sees it
at once and cleans up. kubectl says little about a pod that does not run, so the API server is asked about all pods of a
namespace at once: before the first pod is entered, and again when the stream into one has ended.
"""

from __future__ import annotations

import contextlib
import subprocess
import threading
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from runbook.causes.catalogue import unreachable_for
from runbook.model.errors import Unreachable
from runbook.model.inventory import Kubernetes, Node
from runbook.transport.bootstrap import bootstrap_command
from runbook.transport.kubernetes_pods import (
    Pod,
    kubectl_command,
    kubectl_options,
    kubectl_stderr_failure,
    missing_pod_container_failure,
    no_api_server_failure,
    parse_pods,
    pod_failure,
    stderr_evidence,
    unknown_pod_failure,
)
from runbook.transport.local_programs import (
    KUBECTL,
    LatestAnswers,
    run_program,
    tool_start_failure,
    unrecognized_stderr_failure,
)
from runbook.transport.stream import ProcessStream

ANSWER_DEADLINE_S = 12.0
"""How long the API server may take to answer: a credential plugin may have to ask another server first."""

LOST_POD_DEADLINE_S = 5.0
"""How long the API server may take to answer about a lost pod: many callers wait for that answer."""

MAX_ANSWER_AGE_S = 8.0
"""How old an answer may be that is used to enter the pods of a namespace, in seconds."""

MAX_LOST_POD_AGE_S = 0.5
"""How old an answer about lost pods may be, in seconds: when a machine fails, all of its pods ask at once."""

KUBELET_REPORT_TIMEOUT_S = 4.0
"""How long after the end of a container the API server may not know of it yet: the kubelet looks once a second, and
then tells it."""


class Pods:
    """Opens streams into pods for one run, and asks the API server why a stream ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._answers = LatestAnswers()
        self._names: dict[Kubernetes, set[str]] = {}
        self._entered: dict[str, Pod] = {}

    def expect(self, nodes: Iterable[Node]) -> None:
        """Note that these nodes will be entered, so that the API server is asked about their pods together."""
        for node in nodes:
            if node.pod is not None:
                self._name(_pod_cluster(node), node.pod)

    def entered(self, name: str) -> Pod | None:
        """The pod of this node, as it was when its session was opened; None when the node is not a pod."""
        with self._lock:
            return self._entered.get(name)

    def connect(self, node: Node) -> KubectlStream:
        """A stream to the supervisor in the node's pod. Raises Unreachable with the cause."""
        pod = self._found(node)
        if wrong := missing_pod_container_failure(pod, node.place) or pod_failure(pod, _pod_cluster(node), node.place):
            raise wrong
        with self._lock:
            self._entered[node.name] = pod
        self._name(_pod_cluster(node), pod.name)
        try:
            return KubectlStream(self, pod, node)
        except OSError as error:
            raise tool_start_failure(KUBECTL, error) from error

    def why(self, node: Node, first: Pod, says: str, complaint: str, *, lives: bool) -> Unreachable:
        """Why the node's pod no longer answers, or never did. `first` is the pod as it was entered, `says` the sentence
        about what was noticed, `complaint` the stderr of kubectl; `lives`: kubectl has not ended."""
        where, seen = _pod_cluster(node), stderr_evidence(complaint)
        refused = kubectl_stderr_failure(complaint, where, f"run anything in {node.place}", node.place)
        if refused and refused.cause != "kubernetes-unreachable":
            return refused
        deadline = time.monotonic() + (0.0 if lives or refused else KUBELET_REPORT_TIMEOUT_S)
        while True:
            try:
                pod = self._now(where, MAX_LOST_POD_AGE_S, LOST_POD_DEADLINE_S, node.kubernetes.container).get(
                    first.name
                )
            except Unreachable as error:
                return Unreachable(
                    error.cause,
                    f"{says}; what became of its pod is not known: {error.says}",
                    error.remedy,
                    (*seen, *error.evidence),
                )
            if pod is None:
                return unreachable_for(
                    "pod-not-running",
                    f"{node.place} was deleted, and what ran in it ended with it",
                    (*seen, f"there is no pod {first.namespace}/{first.name} any more"),
                    way="deleted",
                    typed=kubectl_command(where, "get", "events"),
                )
            if fault := pod_failure(pod, where, node.place, first, seen):
                return fault
            if time.monotonic() >= deadline:
                return refused or (
                    _silent_exec_failure(where, pod, says, seen)
                    if lives
                    else _ended_exec_failure(node, where, pod, says, seen)
                )
            time.sleep(MAX_LOST_POD_AGE_S)

    def policies(self, node: Node) -> str:
        """The NetworkPolicies of the node's namespace as JSON. Raises Unreachable."""
        where = _pod_cluster(node)
        return self._answers.ask(
            ("policies", where), MAX_ANSWER_AGE_S, lambda: run_kubectl(where, "get", "networkpolicies", "-o", "json")
        )

    def _name(self, where: Kubernetes, name: str) -> None:
        """Note a pod that the API server has to be asked about."""
        with self._lock:
            self._names.setdefault(where, set()).add(name)

    def _found(self, node: Node) -> Pod:
        """The node's pod, by its name or its labels. Raises Unreachable when there is none, or more than one."""
        where, selector = _pod_cluster(node), node.kubernetes.selector
        if selector is None:
            self.expect([node])
            known = self._now(where, MAX_ANSWER_AGE_S, ANSWER_DEADLINE_S, node.kubernetes.container)
            if (found := known.get(node.pod or "")) is None:
                raise unknown_pod_failure(where, f"no pod {node.pod}")
            return found
        pods = selected_pods(where, selector, node.kubernetes.container)
        alive = [pod for pod in pods if pod.phase not in ("Succeeded", "Failed")]
        if len(alive) == 1 or len(pods) == 1:
            return (alive or pods)[0]
        which = f"no pod with the labels {selector}"
        if alive:
            which = f"not one pod with the labels {selector} but {len(alive)} ({', '.join(pod.name for pod in alive)})"
        raise unknown_pod_failure(where, which, tuple(pod.says for pod in pods[:4]))

    def _now(self, where: Kubernetes, fresh_s: float, timeout_s: float, container: str | None) -> dict[str, Pod]:
        """The pods of this namespace that are nodes of the run, by name; pods that do not exist are left out."""
        with self._lock:
            names = sorted(self._names[where])
        get = ("get", "pods", *names, "--ignore-not-found", "-o", "json")
        text = self._answers.ask(
            ("pods", where, *names), fresh_s, lambda: run_kubectl(where, *get, timeout_s=timeout_s)
        )
        return {pod.name: pod for pod in parse_pods(text, container)}


class KubectlStream(ProcessStream):
    """The supervisor's stdin and stdout over one `kubectl exec`. Raises OSError when kubectl does not start."""

    unanswered = "kubernetes-unreachable"

    def __init__(self, pods: Pods, pod: Pod, node: Node) -> None:
        self._pods = pods
        self._pod = pod
        self._node = node
        into = ["exec", "--stdin", pod.name, "--container", pod.container, "--"]
        super().__init__(
            [
                "kubectl",
                *kubectl_options(_pod_cluster(node)),
                *into,
                "/bin/sh",
                "-c",
                bootstrap_command(node.interpreter),
            ]
        )

    def close(self) -> None:
        """Close the stream, and kill a kubectl that has not ended after END_TIMEOUT_S: without beats the supervisor has
        cleaned up by itself by then."""
        super().close()
        if self._process.poll() is None:
            self.kill()

    def why(self, says: str) -> Unreachable:
        return self._pods.why(self._node, self._pod, says, self.complaint(), lives=self.lives)


def run_kubectl(where: Kubernetes, *argv: str, timeout_s: float = ANSWER_DEADLINE_S) -> str:
    """The stdout of kubectl with these arguments. Raises Unreachable when it fails or takes too long."""
    words = ["kubectl", *kubectl_options(where), f"--request-timeout={timeout_s:g}s", *argv]
    try:
        done = run_program(words, timeout_s + 1.0)
    except OSError as error:
        raise tool_start_failure(KUBECTL, error) from error
    except subprocess.TimeoutExpired as error:
        raise no_api_server_failure(
            where, (f"`kubectl {argv[0]}` did not come back within {timeout_s + 1.0:g} s",)
        ) from error
    if done.returncode == 0:
        return done.stdout
    what = " ".join(one for one in argv[:2] if not one.startswith("-"))
    raise kubectl_stderr_failure(done.stderr, where, what) or unrecognized_stderr_failure(
        f"kubectl {what}", done, stderr_evidence(done.stderr)
    )


def selected_pods(where: Kubernetes, selector: str, container: str | None = None) -> list[Pod]:
    """The pods that have these labels. Raises Unreachable."""
    get = ("get", "pods", "--selector", selector, "-o", "json")
    return parse_pods(run_kubectl(where, *get), container)


def current_context(where: Kubernetes) -> str | None:
    """The context that kubectl would use; None when the kubeconfig names none, as within a pod."""
    with contextlib.suppress(Unreachable):
        return run_kubectl(where, "config", "current-context").strip() or None
    return None


def _pod_cluster(node: Node) -> Kubernetes:
    """The cluster and the namespace of the node's pod, without container and labels: a key for shared answers."""
    chosen = node.kubernetes
    config = str(Path(chosen.kubeconfig).expanduser()) if chosen.kubeconfig else None
    return Kubernetes(namespace=chosen.namespace, context=chosen.context, kubeconfig=config)


def _silent_exec_failure(where: Kubernetes, pod: Pod, says: str, seen: tuple[str, ...]) -> Unreachable:
    """The failure for a `kubectl exec` that neither ends nor prints: a cluster notices a lost machine only after most
    of a minute."""
    return unreachable_for(
        "kubernetes-unreachable",
        f"{says}; its pod runs, and the cluster has not noticed a failure of its machine yet",
        (*seen, pod.says),
        way="silent",
        machine=pod.machine or "its machine",
        typed=kubectl_command(replace(where, namespace=None), "get", "node", pod.machine),
    )


def _ended_exec_failure(node: Node, where: Kubernetes, pod: Pod, says: str, seen: tuple[str, ...]) -> Unreachable:
    """The failure for a `kubectl exec` that ended though its pod runs without a known fault."""
    by_hand = kubectl_command(
        where, "exec", "-i", pod.name, "-c", pod.container, "--", "/bin/sh", "-c", "echo it answers"
    )
    return unreachable_for(
        "kubernetes-exec-failed",
        f"{says}; {node.place} runs, and Kubernetes reports no fault of it" + (f": {seen[-1]!r}" if seen else ""),
        (*seen, pod.says),
        way="ended",
        by_hand=by_hand,
    )
