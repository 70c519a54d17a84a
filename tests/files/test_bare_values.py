"""What is said where a word stands for a mapping, or a list for it: what was meant, and that it is right as it stands."""

from __future__ import annotations

import re
from textwrap import dedent

import pytest

from runbook.checks import CHECKS
from runbook.files.inventory import examine_inventory
from runbook.files.playbook import examine_playbook
from runbook.files.yaml_document import parse_document
from runbook.model.errors import Problem

NODES = "nodes: {node-a: {address: 10.0.0.1}, node-b: {address: 10.0.0.2}}"


def problems(text: str) -> tuple[Problem, ...]:
    document = parse_document(dedent(text), "x.yml")
    if "stages" in text:
        return examine_playbook(document, checks=CHECKS, environ={}).problems
    return examine_inventory(document, environ={}).problems


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("rendezvous: node-a:29500", "rendezvous: {master: node-a, port: 29500}"),
        ("rendezvous: node-b", "rendezvous: {master: node-b}"),
        ("network: ib0", "network: {interface: ib0}"),
        ("infiniband: mlx5", "infiniband: {hca: mlx5}"),
        ("defaults: {gpus: 0-3}", "gpus: 4"),
        ("defaults: {gpus: 4-7}", "gpus: [4, 5, 6, 7]"),
        ("defaults: {ssh: 'ubuntu@bastion:2222'}", "ssh: {user: ubuntu, host: bastion, port: 2222}"),
        ("defaults: {container: train}", "container: {runtime: docker, name: train}"),
        ("defaults: [{gpus: 8}, {python: /usr/bin/python3}]", "defaults: {gpus: 8, python: /usr/bin/python3}"),
        ("env: [NCCL_DEBUG=INFO, A=b=c]", "env: {NCCL_DEBUG: INFO, A: b=c}"),
        ("env: NCCL_DEBUG=INFO", "env: {NCCL_DEBUG: INFO}"),
        ("groups: {train: [node-a, node-b]}", "train: {nodes: [node-a, node-b]}"),
        ("groups: {train: node-a}", "train: {nodes: node-a}"),
    ],
)
def test_what_was_meant_in_an_inventory(wrong: str, right: str) -> None:
    (problem,) = problems(f"{NODES}\n{wrong}\n")
    assert problem.help == f"write `{right}`"
    key = right.partition(":")[0]
    mended = f"{NODES}\n" + re.sub(rf"{key}: .*?(?=\}}?$)", right, wrong)
    assert problems(mended) == (), mended


@pytest.mark.parametrize(
    ("nodes", "right"),
    [
        ("nodes: {a: 10.0.0.1}", "a: {address: 10.0.0.1}"),
        ("nodes: [a, b]", "nodes: {a: {}, b: {}}"),
        ("nodes: [{name: a, address: 10.0.0.1}]", "nodes: {a: {address: 10.0.0.1}}"),
        ("nodes: [{name: a, ip: 10.0.0.1, slots: 8}]", "nodes: {a: {address: 10.0.0.1, gpus: 8}}"),
        ("nodes: [{host: a, username: ann, ssh_port: 22}]", "nodes: {a: {ssh: {user: ann, port: 22}}}"),
        ("nodes: [{a: {gpus: 1}}, {b: {gpus: 2}}]", "nodes: {a: {gpus: 1}, b: {gpus: 2}}"),
        ("nodes: a,b", "nodes: {a: {}, b: {}}"),
        ("nodes: a b", "nodes: {a: {}, b: {}}"),
    ],
)
def test_what_was_meant_by_nodes(nodes: str, right: str) -> None:
    assert f"write `{right}`" in [problem.help for problem in problems(nodes)]


@pytest.mark.parametrize(
    ("stages", "right"),
    [
        ("[ping]", "{check: ping}"),
        ("['nvidia-smi -L']", "{shell: 'nvidia-smi -L'}".replace("'", '"')),
        ("[{shell: [nvidia-smi, -L]}]", 'shell: "nvidia-smi -L"'),
        ("{ping: {}, port: {}}", "stages: [{check: ping}, {check: port}]"),
        ("[{launch: {command: 'python train.py --name \"a b\"'}}]", 'command: [python, train.py, --name, "a b"]'),
        ("[{launch: {command: [a.py], watch: true}}]", "watch: {}"),
        ("[{launch: torchrun train.py --lr 0.1}]", 'launch: {command: [torchrun, train.py, --lr, "0.1"]}'),
        ('[{launch: {command: "python a.py \\\\\\n --lr 1"}}]', 'command: [python, a.py, --lr, "1"]'),
        ("[{shell: hostname, expect: gpu}]", "expect: {stdout: gpu}"),
        ("[{shell: hostname, expect: 3}]", "expect: {exit: 3}"),
        ("[{shell: {cmd: ls, chdir: /tmp}}]", 'shell: "cd /tmp && ls"'),
        ("[{launch: {command: [a.py], detach: yes}}]", "detach: true"),
        ("[{launch: {command: [a.py], detach: OFF}}]", "detach: false"),
    ],
)
def test_what_was_meant_in_a_playbook(stages: str, right: str) -> None:
    assert f"write `{right}`" in [problem.help for problem in problems(f"stages: {stages}\n")]


@pytest.mark.parametrize(
    "text",
    [
        "nodes: {a: 'no address!'}",
        f"{NODES}\nnetwork: [ib0]",
        f"{NODES}\nrendezvous: 'node a'",
        f"{NODES}\ndefaults: {{gpus: most}}",
        f"{NODES}\nenv: [NCCL_DEBUG=INFO, {'x' * 200}=1]",
        'stages: [{launch: {command: "it\'s"}}]',
    ],
)
def test_where_nothing_sound_can_be_made_of_it_an_example_is_shown(text: str) -> None:
    for problem in problems(text):
        assert (problem.help or "").startswith("for example ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("stages: [{check: [ping, port]}]", "write one stage for each: `- check: ping`, `- check: port`"),
        (f"{NODES}\ndefaults: {{container: 'nvcr.io/nvidia/pytorch:24.05'}}", "no container is started from an image"),
        (f"{NODES}\ndefaults: {{gpus: all}}", "write how many each node has"),
    ],
)
def test_where_no_one_value_was_meant_a_sentence_tells(text: str, sentence: str) -> None:
    (problem,) = problems(text)
    assert (problem.help or "").startswith(sentence)


@pytest.mark.parametrize("port", ["0o29500", "029500", "29_500", "'29,500'", "２９５００", "'29500 '"])
def test_a_number_in_another_hand(port: str) -> None:
    (problem,) = problems(f"{NODES}\nrendezvous: {{port: {port}}}")
    assert (problem.help or "").removeprefix("without quotes: ").removeprefix("write ") == "29500"


@pytest.mark.parametrize("port", ["0o7777", "0x7530", "29 500", "2,9500", "99_999"])
def test_no_number_is_guessed_at(port: str) -> None:
    (problem,) = problems(f"{NODES}\nrendezvous: {{port: {port!r}}}")
    assert "write" not in (problem.help or "")


@pytest.mark.parametrize(
    ("check", "wanted"),
    [
        ("infiniband", "write `ibstat`"),
        ("nccl-tests", "write `allreduce`"),
        ("all_reduce", "did you mean `allreduce`?"),
        ("Firewalld", "write `firewall`"),
        ("train", "`- launch: "),
        ("zzz", "known here: "),
    ],
)
def test_a_check_by_another_name(check: str, wanted: str) -> None:
    (problem,) = problems(f"stages: [{{check: {check}}}]\n")
    assert wanted in (problem.help or "")
