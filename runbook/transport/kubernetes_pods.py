"""A pod as the API server describes it, and the failures that its state or kubectl's errors mean. Pure functions."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from runbook.causes.catalogue import unreachable_for
from runbook.model.command_quoting import shell_word
from runbook.model.errors import Unreachable
from runbook.model.inventory import Kubernetes
from runbook.transport.bootstrap import no_shell_failure

KubernetesObject = Mapping[str, Any]
KubernetesName = Annotated[str, Meta(pattern=r"\A[a-z0-9](?:[a-z0-9.-]{0,251}[a-z0-9])?\Z")]
GpuCount = Annotated[int, Meta(ge=0, le=1 << 16)]

DEFAULT_CONTAINER_ANNOTATION = "kubectl.kubernetes.io/default-container"
"""The annotation by which a pod names the container that kubectl enters."""

GPU_RESOURCE = re.compile(r"nvidia\.com/(?:gpu|mig-.+)|amd\.com/gpu")
"""The names of resources that count GPUs, or MIG parts of GPUs, of a container."""

_LOG_LINE = re.compile(r"[EWIF]\d{4} \d\d:\d\d|\t| >$|Default(?:ed|ing) container ")
_NO_CONFIG = re.compile(
    r"context \"[^\"]*\" does not exist|context was not found for specified context|no configuration has been provided|"
    r"^error: stat [^\n]+: no such file or directory|error loading config file|current-context is not set|"
    r"connection to the server localhost:8080 was refused",
    re.IGNORECASE | re.MULTILINE,
)
_UNAUTHORIZED = re.compile(
    r"\(Unauthorized\)|\bUnauthorized$|You must be logged in|x509: |getting credentials|no Auth Provider found|"
    r"the server has asked for the client to provide credentials",
    re.IGNORECASE | re.MULTILINE,
)
_FORBIDDEN = re.compile(r"\(Forbidden\)|is forbidden: ", re.IGNORECASE)
_NO_KUBELET = re.compile(r"error dialing backend", re.IGNORECASE)
_NO_SERVER = re.compile(
    r"Unable to connect to the server|The connection to the server \S+ was refused|i/o timeout|no such host|"
    r"TLS handshake timeout|Client\.Timeout exceeded|\(ServiceUnavailable\)|\(Timeout\)|etcdserver: ",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class Pod:
    """A pod as the API server describes it. `container` is the name of the container that the job runs in; `restarts`
    counts how often that container was restarted, `state` is its present state, and `before` is how it ended last time.
    `held_up` says in the cluster's words why the pod has not started; `restarted_on` is its restart policy.

    `gpus` is how many devices the container may have; `machine` is the cluster's node that the pod is on."""

    name: KubernetesName
    namespace: KubernetesName
    uid: str
    phase: str
    reason: str
    message: str
    deleted: bool
    address: str
    host_address: str
    machine: str
    host_network: bool
    container: str
    containers: tuple[str, ...]
    restarts: int
    state: Mapping[str, KubernetesObject]
    before: KubernetesObject
    held_up: str
    restarted_on: str
    gpus: GpuCount
    labels: Mapping[str, str] = field(default_factory=dict)

    @property
    def restarts_soon(self) -> bool:
        """Whether its container has ended and the kubelet is about to start it again."""
        ended = self.state.get("terminated")
        again = {"Always": True, "OnFailure": bool(ended and ended.get("exitCode")), "Never": False}
        return ended is not None and self.phase == "Running" and not self.deleted and again.get(self.restarted_on, True)

    @property
    def says(self) -> str:
        """A line of evidence: the pod's phase and its container's state."""
        parts = [f"phase {self.phase}", *[part for part in (self.reason, self.message) if part]]
        kind = next(iter(self.state), "")
        detail = self.state.get(kind) or {}
        parts += [f"container {self.container} {kind}" + _ending_text(detail)] if kind else []
        parts += [f"restarted {self.restarts} times, before that{_ending_text(self.before)}"] if self.restarts else []
        return f"pod {self.namespace}/{self.name}: " + ", ".join(parts)


def _ending_text(detail: KubernetesObject) -> str:
    """How a container ended or why it waits, as ` (OOMKilled, exit code 137)`; empty when nothing is known."""
    code = f"exit code {detail['exitCode']}" if "exitCode" in detail else ""
    said = ", ".join(
        part for part in (str(detail.get("reason") or ""), code, str(detail.get("message") or "").strip()) if part
    )
    return f" ({said})" if said else ""


def parse_pods(text: str, container: str | None = None) -> list[Pod]:
    """The pods in the output of `kubectl get pods -o json`: one pod, a list, or nothing. `container` is the container
    that the inventory names. Raises Unreachable for any other text."""
    if not text.strip():
        return []
    try:
        document = json.loads(text)
        items = document["items"] if document["kind"].endswith("List") else [document]
        return [_parse_pod(item, container) for item in items]
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError) as error:
        raise unreachable_for(
            "tool-output-unknown",
            f"`kubectl get pods` printed something unexpected: {type(error).__name__}: {error}",
            tuple(text.strip().splitlines()[:4]),
            way="kubectl",
        ) from error


def _parse_pod(item: KubernetesObject, chosen: str | None) -> Pod:
    """A pod from its JSON. `chosen` is the container that the inventory names."""
    meta, spec, status = item["metadata"], item["spec"], item.get("status") or {}
    names = tuple(one["name"] for one in spec["containers"])
    container = (
        chosen
        or (meta.get("annotations") or {}).get(DEFAULT_CONTAINER_ANNOTATION)
        or _only_gpu_container(spec)
        or names[0]
    )
    own: KubernetesObject = next((one for one in status.get("containerStatuses") or () if one["name"] == container), {})
    resources = next((one.get("resources") or {} for one in spec["containers"] if one["name"] == container), {})
    found = {
        "name": meta["name"],
        "namespace": meta["namespace"],
        "uid": meta["uid"],
        "phase": status.get("phase", "Unknown"),
        "reason": status.get("reason", ""),
        "message": status.get("message", "").strip(),
        "deleted": "deletionTimestamp" in meta,
        "address": status.get("podIP", ""),
        "host_address": status.get("hostIP", ""),
        "machine": spec.get("nodeName", ""),
        "host_network": bool(spec.get("hostNetwork")),
        "container": container,
        "containers": names,
        "restarts": int(own.get("restartCount", 0)),
        "state": {kind: one or {} for kind, one in (own.get("state") or {}).items()},
        "before": (own.get("lastState") or {}).get("terminated") or {},
        "held_up": _hold_up_reason(status),
        "restarted_on": spec.get("restartPolicy") or "Always",
        "gpus": _gpu_limit_count(resources),
        "labels": meta.get("labels") or {},
    }
    return msgspec.convert(found, Pod)  # raises ValueError for other types


def _gpu_limit_count(resources: KubernetesObject) -> int:
    """How many GPUs a container may have, by the limits in its resources."""
    return sum(int(count) for name, count in (resources.get("limits") or {}).items() if GPU_RESOURCE.fullmatch(name))


def _only_gpu_container(spec: KubernetesObject) -> str | None:
    """The name of the only container with GPUs, whose neighbours are helpers; None when no or several containers have
    GPUs."""
    having = [one["name"] for one in spec["containers"] if _gpu_limit_count(one.get("resources") or {})]
    return having[0] if len(having) == 1 else None


def _hold_up_reason(status: KubernetesObject) -> str:
    """Why a pod does not run yet: the scheduler's words, or what a container or init container waits for. Empty when
    nothing holds it up."""
    for one in status.get("conditions") or ():
        if one["type"] == "PodScheduled" and one["status"] == "False":
            return (
                f"it has no machine yet: {str(one.get('message') or one.get('reason') or 'no reason is given').strip()}"
            )
    for kind in ("initContainerStatuses", "containerStatuses"):
        for one in status.get(kind) or ():
            waits = (one.get("state") or {}).get("waiting")
            if waits and waits.get("reason") != "PodInitializing":
                return f"{one['name']} waits{_ending_text(waits)}"
            if kind.startswith("init") and "running" in (one.get("state") or {}):
                return f"its init container {one['name']} has not ended"
    return ""


def stderr_evidence(complaint: str) -> tuple[str, ...]:
    """The last lines of what kubectl wrote to stderr, without its own log, as evidence."""
    lines = [line.strip() for line in complaint.splitlines() if line.strip() and not _LOG_LINE.match(line)]
    return tuple(lines[-4:])


def kubectl_command(where: Kubernetes, *argv: str) -> str:
    """A kubectl command for people to type, with the options for its cluster and namespace."""
    return "kubectl " + " ".join(map(shell_word, [*kubectl_options(where), *argv]))


def kubectl_options(where: Kubernetes) -> list[str]:
    """The options of kubectl that name the cluster and the namespace."""
    chosen = (("--kubeconfig", where.kubeconfig), ("--context", where.context), ("--namespace", where.namespace))
    return [part for name, value in chosen if value for part in (name, value)]


def kubectl_stderr_failure(complaint: str, where: Kubernetes, what: str, place: str = "") -> Unreachable | None:
    """The failure that kubectl's stderr means when it did not do `what`; None for words that tell less than a question
    about the pod would. `place` names the pod that was to be entered."""
    seen = stderr_evidence(complaint)
    text, pod = "\n".join(seen), place or "the pod"
    if fault := no_shell_failure(pod, seen):
        return fault
    way = "live"
    look: tuple[str, ...] = ("get", "pods")
    if _NO_CONFIG.search(text):
        cause, says = "kubernetes-config-wrong", f"kubectl has no such cluster to ask: {seen[-1]}"
    elif _FORBIDDEN.search(text):
        cause, look = "kubernetes-forbidden", ("auth", "can-i", "create", "pods/exec")
        says = f"RBAC does not let us {what}"
    elif _UNAUTHORIZED.search(text):
        cause, says = "kubernetes-auth-failed", "the API server and kubectl do not accept each other's credentials: "
        says += "credentials that are missing, expired or of another cluster, or a certificate without a trusted issuer"
    elif _NO_KUBELET.search(text):
        cause, way = "kubernetes-unreachable", "kubelet"
        says = f"the API server does not get through to the kubelet of {pod}"
    else:
        return no_api_server_failure(where, seen) if _NO_SERVER.search(text) else None
    return unreachable_for(cause, says, seen, way=way, typed=kubectl_command(where, *look))


def no_api_server_failure(where: Kubernetes, seen: tuple[str, ...]) -> Unreachable:
    """The failure for an API server that does not answer."""
    return unreachable_for(
        "kubernetes-unreachable",
        "the API server, which knows the pods, does not answer this machine",
        seen,
        way="api-server",
        typed=kubectl_command(where, "cluster-info"),
    )


def unknown_pod_failure(where: Kubernetes, which: str, seen: tuple[str, ...] = ()) -> Unreachable:
    """The failure for a pod that does not exist; `which` completes `there is …`, as in `no pod worker-0`."""
    space = f"the namespace {where.namespace}" if where.namespace else "the context's namespace"
    return unreachable_for(
        "kubernetes-pod-unknown",
        f"there is {which} in {space}",
        seen,
        way="live",
        typed=kubectl_command(where, "get", "pods", "-o", "wide", "--show-labels"),
    )


def missing_pod_container_failure(pod: Pod, place: str) -> Unreachable | None:
    """The failure for a pod that lacks the container that was chosen; None if it has it."""
    if pod.container in pod.containers:
        return None
    return unreachable_for(
        "kubernetes-container-unknown",
        f"{place} has no container {pod.container}",
        (f"pod {pod.namespace}/{pod.name}: containers {', '.join(pod.containers)}",),
        way="live",
        containers=", ".join(pod.containers),
        first=pod.containers[0],
    )


def pod_failure(
    pod: Pod, where: Kubernetes, place: str, first: Pod | None = None, seen: tuple[str, ...] = ()
) -> Unreachable | None:
    """Why nothing can be run in the pod, or why what ran there has ended; None when it runs as before. `first` is the
    pod as it was entered; `seen`: evidence."""
    restarted = first is not None and (pod.restarts > first.restarts or pod.restarts_soon)
    stopped = pod.state.get("terminated") or (pod.before if restarted or "waiting" in pod.state else {})
    machine, container = pod.machine or "the machine", f"container {pod.container} of {place}"
    way = "live"
    ask: tuple[str, ...] = ("describe", "pod", pod.name)
    if pod.phase == "Failed" and pod.reason == "Evicted":
        cause = "kubernetes-pod-evicted"
        says = f"{place} was evicted from {pod.machine or 'its machine'}: {pod.message or 'no reason is given'}"
    elif first is not None and pod.uid != first.uid:
        cause, way = "kubernetes-pod-restarted", "replaced"
        ask = ("get", "events", "--field-selector", f"involvedObject.name={pod.name}")
        says = f"{place} was replaced by a new one of the same name, and what ran in it ended"
    elif stopped.get("reason") == "OOMKilled":
        cause, says = "kubernetes-oom-killed", f"{container} was killed: it used more memory than its limit"
    elif restarted:
        cause, way = "kubernetes-pod-restarted", "container"
        says = f"{container} was restarted in the middle{_ending_text(stopped)}, and what ran in it ended"
    elif how := _not_running_reason(pod):
        cause, way, says = "pod-not-running", "waits", f"{place} {how}"
    else:
        return None
    return unreachable_for(
        cause,
        says,
        (*seen, pod.says),
        way=way,
        machine=machine,
        look=kubectl_command(where, *ask),
        last=kubectl_command(where, "logs", "--previous", "--tail", "20", "--container", pod.container, pod.name),
        next_=_stopped_pod_advice(pod),
    )


def _not_running_reason(pod: Pod) -> str | None:
    """Why the pod's container does not run, as the end of a sentence; None for a container that runs."""
    if pod.deleted:
        return "is being deleted"
    if pod.phase == "Pending":
        return f"has not started: {pod.held_up or 'no reason is given yet'}"
    if pod.phase in ("Succeeded", "Failed"):
        ended = _ending_text(pod.state.get("terminated") or {})
        return f"has ended{ended or (f': {pod.reason} {pod.message}'.rstrip() if pod.reason else '')}"
    if pod.phase == "Unknown":
        return "is on a machine from which the cluster gets no answer"
    if "terminated" in pod.state:
        return f"runs, but its container {pod.container} has ended{_ending_text(pod.state['terminated'])}"
    if "waiting" in pod.state:
        return f"runs, but {pod.held_up or f'its container {pod.container} waits'}" + (
            f"; it ended before{_ending_text(pod.before)}" if pod.before else ""
        )
    return None


def _stopped_pod_advice(pod: Pod) -> str:
    """What to do about a pod that does not run."""
    if pod.phase == "Pending":
        return "wait until it runs, or mend what it waits for"
    return "start it again with a command that stays"
