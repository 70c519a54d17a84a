"""What Kubernetes, its schedulers and container engines say of a pod or container that does not come to run."""

from __future__ import annotations

from runbook.diagnose.sign import Rule, Sign, Tier

RULES = (
    Rule(
        "ranks-missing",
        "a pod got no machine: none has room for it, or its queue has no quota left",
        ("pod-without-machine",),
        tier=Tier.NETWORK,
        confidence="medium",
        remedy="`kubectl describe pod POD` and `kubectl describe nodes | grep -A8 Allocated` against what it asks for (GPUs, memory, nodeSelector, tolerations, the queue's quota); a gang starts only when all its pods fit",
    ),
    Rule(
        "ranks-missing",
        "a container could not start: its image cannot be had",
        ("container-without-image",),
        tier=Tier.NETWORK,
        confidence="medium",
        remedy="pull it by hand on that node (`crictl pull IMAGE`, `docker pull IMAGE`): the image's name and tag, the registry's login (imagePullSecrets, `docker login`, ~/.config/enroot/.credentials), the way to the registry",
    ),
    Rule(
        "ranks-missing",
        "a container could not start: a volume, a secret, a device or its sandbox could not be had",
        ("container-not-started",),
        tier=Tier.NETWORK,
        confidence="medium",
        remedy="`kubectl describe pod POD` (or the engine's own log) names the part that is missing: mount the volume on that node by hand, create the secret or config map, run `nvidia-smi` and `nvidia-container-cli info` there",
    ),
    Rule(
        "terminated-from-outside",
        "a pod was taken away: preempted, evicted, or its node went",
        (Sign("pod-taken", "preempted|taintmanagereviction|marking for deletion pod|nodenotready|nodeshutdown|memorypressure|evicted", r"\bPreempted +\S+ +\S*scheduler\b|\bPreempted by pod\b|TaintManagerEviction|Marking for deletion Pod|\bNodeNotReady\b|\bNodeShutdown\b|Pod was rejected: The node had condition: \[MemoryPressure|^\s*Reason:\s+(?:Evicted|Terminated|NodeShutdown)\b"),),
        tier=Tier.SYMPTOM,
    ),
    Rule(
        "insufficient-evidence",
        "a container ends again and again ({line}); why stands in its own log",
        (Sign("ends-again-and-again", "crashloopbackoff|back-off|waiting message", r"\bCrashLoopBackOff\b|[Bb]ack-off(?: \w+)? restarting failed container"),),
        tier=Tier.WRAPPER,
        confidence="medium",
        remedy="`kubectl logs POD --previous`, and `Last State` in `kubectl describe pod POD`; give both",
    ),
)  # fmt: skip

SIGNS = (
    Sign(
        "waits-for-machine",
        "failedscheduling|nodes are available|nodes are unavailable|tasks in gang|podgrouppending|pod group is not ready|quota|assign flavors|unschedulable|unexpectedadmissionerror|insufficient nvidia|insufficient amd|number of devices unavailable",
        r"\bFailedScheduling\b|\b\d+/\d+ nodes are (?:un)?available|tasks in gang unschedulable|\bPodGroupPending\b|queue resource quota insufficient|insufficient (?:unused )?quota|couldn't assign flavors|\bexceeded quota\b|\bUnexpectedAdmissionError\b|Insufficient (?:nvidia|amd)\.com|number of devices unavailable",
    ),
    Sign(
        "waits-for-image",
        "pull image|pulling image|errimage|imagepullbackoff|invalidimagename|pull access denied|manifest unknown|manifest for|pull and unpack|import docker image|is waiting to start",
        r"Failed to pull image|failed to pull and unpack image|\bErrImage(?:Pull|NeverPull)\b|\bImagePullBackOff\b|\bInvalidImageName\b|Back-off pulling image|trying and failing to pull image|pull access denied|manifest unknown|manifest for \S+ not found|failed to import docker image",
    ),
    Sign(
        "waits-for-container",
        "failedmount|failedattachvolume|createcontainer|runcontainererror|failedcreatepodsandbox|is waiting to start|start container process|couldn't start container|nvidia-container-cli|failed to create shim|failed to create task",
        r"\bFailed(?:Mount|AttachVolume|CreatePodSandBox)\b|\bCreateContainer(?:Config)?Error\b|\bRunContainerError\b|is waiting to start: (?!trying)|unable to start container process|pyxis: couldn't start container|nvidia-container-cli: .*error|failed to create (?:shim )?task",
    ),
    Sign(
        "pod-placed",
        "successfully assigned|started container|successfully pulled",
        r"Successfully assigned \S+|Started container\b|Successfully pulled image",
    ),
)
