"""What runtimes print that let nobody in, and what is made of it: seen, or read in their sources, where the comment says."""

from __future__ import annotations

import pytest
import yaml

from runbook.model.inventory import Container, Node
from runbook.transport.container import container_entry_failure

SOCKET = "unix:///var/run/docker.sock"
DENIED = (
    f"permission denied while trying to connect to the Docker daemon socket at {SOCKET}: Get "
    '"http://%2Fvar%2Frun%2Fdocker.sock/v1.50/containers/train/json": dial unix /var/run/docker.sock: connect: permission denied'
)
CHATTER = (
    'time="2026-11-22T19:54:10Z" level=warning msg="a container does not exist"\n'
    'Error: no container with name or ID "train" found: no such container'
)
WORDS = [
    # docker 28.2, seen, the first two without a daemon
    ("docker", f"Cannot connect to the Docker daemon at {SOCKET}. Is the docker daemon running?", "runtime-down"),
    ("docker", DENIED, "runtime-denied"),
    ("docker", "Error response from daemon: No such container: train", "unknown"),
    # The sources of moby 20.10 and of later ones, which begin in lower case; no dockerd was run for them.
    ("docker", "Error response from daemon: Container 3f1c0a is not running", "not-running"),
    (
        "docker",
        "Error response from daemon: Container 3f1c0a is not running: Exited (137) 2 seconds ago",
        "not-running",
    ),
    ("docker", "Error response from daemon: container 3f1c0a is not running", "not-running"),
    (
        "docker",
        "Error response from daemon: Container train is paused, unpause the container before exec",
        "not-running",
    ),
    (
        "docker",
        "Error response from daemon: Container 3f1c0a is restarting, wait until the container is running",
        "not-running",
    ),
    # podman 4.3 with crun 1.8, seen
    ("podman", 'Error: no container with name or ID "train" found: no such container', "unknown"),
    (
        "podman",
        "Error: can only create exec sessions on running containers: container state improper",
        "not-running",
    ),
    ("podman", "sudo: a password is required", "runtime-denied"),
    ("podman", "sudo: /usr/bin/podman: command not found", "runtime-missing"),
    ("podman", CHATTER, "unknown"),
    # Apptainer's and enroot's sources
    ("apptainer", "FATAL:   no instance found with name train", "unknown"),
    ("enroot", "[ERROR] No such file or directory: /home/anna/.local/share/enroot/train", "unknown"),
]
PREFIXES = [
    # util-linux 2.38, crun 1.8, seen
    ("nsenter: stat of /proc/99999/ns/user failed: No such file or directory", "not-running"),
    ("nsenter: cannot open /proc/99999/ns/mnt: No such file or directory", "not-running"),
    ("nsenter: stat of /proc/1/ns/user failed: Permission denied", "runtime-denied"),
    ("nsenter: cannot open /proc/1/ns/mnt: Permission denied", "runtime-denied"),
    ("error opening file `/run/crun/nope/status`: No such file or directory", "unknown"),
    ("sudo: crun: command not found", "runtime-missing"),
]


@pytest.mark.parametrize(("runtime", "words", "cause"), WORDS)
def test_a_runtimes_words_are_a_cause_with_the_words_as_evidence(runtime: str, words: str, cause: str) -> None:
    told = container_entry_failure(Node("node-a", "10.0.0.1", container=Container(runtime, "train")), words)
    assert told is not None
    assert told.cause == f"container-{cause}"
    assert told.evidence == (words.splitlines()[-1],)
    assert "node-a" in told.says


@pytest.mark.parametrize(("words", "cause"), PREFIXES)
def test_the_words_of_what_inside_names(words: str, cause: str) -> None:
    told = container_entry_failure(Node("node-a", "10.0.0.1", inside=("nsenter", "--target", "1", "--all")), words)
    assert told is not None
    assert told.cause == f"container-{cause}"


def test_an_image_without_a_shell_has_no_python() -> None:
    words = (
        "Error: crun: executable file `/bin/sh` not found in $PATH: No such file or directory: OCI runtime attempted to "
        "invoke a command that was not found"
    )
    told = container_entry_failure(Node("node-a", "10.0.0.1", container=Container("podman", "train")), words)
    assert told is not None
    assert told.cause == "python-missing"


def test_words_of_the_program_inside_are_no_refusal() -> None:
    node = Node("node-a", "10.0.0.1", container=Container("docker", "train"))
    assert container_entry_failure(node, "") is None
    assert (
        container_entry_failure(node, "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device")
        is None
    )


def test_what_is_to_be_typed_loads_as_it_stands() -> None:
    """A number among the words of `inside:` is quoted: YAML would take it for one."""
    node = Node("node-a", "10.0.0.1", inside=("nsenter", "--target", "1", "--all"))
    told = container_entry_failure(node, "nsenter: stat of /proc/1/ns/user failed: Permission denied")
    assert told is not None
    typed = told.remedy.partition("`")[2].partition("`")[0]
    assert yaml.safe_load(typed) == {"inside": ["sudo", "-n", "nsenter", "--target", "1", "--all"]}
