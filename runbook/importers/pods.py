"""Makes the inventory of the pods that a label selector selects, as the API server describes them: addresses, GPUs."""

from __future__ import annotations

from collections.abc import Sequence

from runbook.files.inventory import natural_sort_key
from runbook.files.inventory_draft import Draft, NodeDraft, SettingPath, made_from
from runbook.model.inventory import Kubernetes
from runbook.transport.kubernetes import current_context, selected_pods
from runbook.transport.kubernetes_pods import Pod, pod_failure, unknown_pod_failure

ENDED_PHASES = ("Succeeded", "Failed")

MASTER_LABELS = (("training.kubeflow.org/job-role", "master"), ("training.kubeflow.org/replica-type", "master"))
"""Labels by which Kubeflow's training operator marks the pod that the others dial."""


def draft_of_selected_pods(selector: str, namespace: str | None) -> tuple[Draft, list[str]]:
    """The inventory of these pods, and notes on them for the user. Ended pods are left out, with a note.

    Raises Unreachable if no such pod is alive, or if the API server could not be asked.
    """
    asked = Kubernetes(namespace=namespace)
    pods = selected_pods(asked, selector)
    if not pods:
        raise unknown_pod_failure(asked, f"no pod with the labels {selector}")
    alive = sorted((pod for pod in pods if pod.phase not in ENDED_PHASES), key=_pod_sort_key)
    by_name = {
        pod.name: reason for pod in pods if (reason := pod_failure(pod, _pod_namespace(pod), f"the pod {pod.name}"))
    }
    if not alive:
        raise next(iter(by_name.values()))
    notes = [f"{by_name[pod.name].says}; it is left out" for pod in pods if pod.phase in ENDED_PHASES]
    notes += [by_name[pod.name].says for pod in alive if pod.name in by_name]
    several = next((pod for pod in alive if len(pod.containers) > 1), None)
    if several:
        notes.append(
            f"{several.name} has the containers {', '.join(several.containers)}: "
            f"the job is to run in {several.container}"
        )
    return draft_of_pods(alive, selector, current_context(asked)), notes


def draft_of_pods(pods: Sequence[Pod], selector: str, context: str | None) -> Draft:
    """The inventory of these pods, of which the first is the master. Pure."""
    drafts = []
    for pod in pods:
        settings: dict[SettingPath, object] = {
            ("connection",): "kubernetes",
            ("kubernetes", "namespace"): pod.namespace,
        }
        if context:
            settings["kubernetes", "context"] = context
        if len(pod.containers) > 1:
            settings["kubernetes", "container"] = pod.container
        if pod.address:
            settings["address",] = pod.address
        if pod.gpus:
            settings["gpus",] = pod.gpus
        drafts.append(NodeDraft(pod.name, settings))
    return Draft(
        name=f"pods-{pods[0].namespace}",
        nodes=tuple(drafts),
        header=(made_from(f"the pods with the labels {selector}", good="until one of them is replaced"),),
    )


def _pod_sort_key(pod: Pod) -> tuple[object, ...]:
    """The sorting key of a pod: the master first, if a label marks it; then by name, with numbers as numbers."""
    master = any(pod.labels.get(label) == value for label, value in MASTER_LABELS)
    return (not master, natural_sort_key(pod.name))


def _pod_namespace(pod: Pod) -> Kubernetes:
    return Kubernetes(namespace=pod.namespace)
