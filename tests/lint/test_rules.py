"""Judgements that one broken file each cannot show in full: what is left unsaid, and what never makes a rule fail."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st
from profiles import examples

from runbook.files.address import address_fault, is_loopback
from runbook.files.inventory import examine_inventory
from runbook.files.yaml_document import parse_document
from runbook.lint import rules
from runbook.lint.rule_inputs import InventoryFile
from runbook.lint.run import lint


def found(text: str) -> list[str]:
    """The ids that the inventory rules give for a text, and not those of the loader."""
    document = parse_document(text, "inventory.yml")
    examined = examine_inventory(document, environ={})
    if examined.draft is None or examined.origins is None:
        return []
    file = InventoryFile(document, examined.draft, examined.origins, examined.wrong)
    problems = [problem for rule in rules.INVENTORY_RULES for problem in rule(file)]
    problems += [problem for rule in rules.DOCUMENT_RULES for problem in rule(document)]
    assert all(problem.span is not None and problem.span.line <= len(document.lines) for problem in problems)
    return [problem.id for problem in problems]


@pytest.mark.parametrize(
    "address",
    [
        "localhost",
        "LOCALHOST.",
        "localhost.localdomain",
        "127.0.1.1",
        "::1",
        "::ffff:127.0.0.1",
        "localhost6",
        "x.localhost",
    ],
)
def test_every_form_of_loopback(address: str) -> None:
    assert address_fault(address) is None
    assert is_loopback(address)
    nodes = f'nodes: {{node-a: {{address: 10.0.0.1}}, node-b: {{address: "{address}"}}}}'
    assert "inventory.loopback-address" in found(nodes)
    assert "inventory.loopback-address" not in found(f'nodes: {{node-b: {{address: "{address}"}}}}')


@pytest.mark.parametrize(
    "address",
    [
        "0.0.0.0",
        "0.1.2.3",
        "::",
        "::ffff:0.0.0.0",
        "224.0.0.1",
        "ff02::1",
        "255.255.255.255",
        "10.0.0.01",
        "0x7f.1",
        "0x7f000001",
    ],
)
def test_what_nobody_can_be_dialled_at(address: str) -> None:
    assert address_fault(address) is not None


@pytest.mark.parametrize(
    "address",
    ["1.2.3.4", "240.0.0.1", "2001:db8::1", "fe80::1%eth0", "f", "beef.example", "0xnode", "2.example", "10-0-0-1"],
)
def test_what_may_be_dialled(address: str) -> None:
    assert address_fault(address) is None


WRONG_ELSEWHERE = [
    ("nodes: {a: {address: 10.0.0.1, gpus: 8}, b: {address: 10.0.0.2, gpu: 8}}", "inventory.some-without-gpus"),
    ("nodes: {a: {address: 10.0.0.1, gpus: 8}, b: {address: 10.0.0.2, gpus: eight}}", "inventory.some-without-gpus"),
    (
        "nodes: {a: {address: 10.0.0.1, gpus: 8}, b: {address: 10.0.0.2}}\ngroups: {g: {nodes: c, defaults: {gpus: 8}}}",
        "inventory.some-without-gpus",
    ),
    ("defualts: {gpus: 8}\nnodes: {a: {gpus: 8}, b: {}}", "inventory.some-without-gpus"),
    ("rendezvous: {backend: nccl}\ndefaults: {gpu: 8}\nnodes: {a: {}, b: {}}", "inventory.nccl-without-gpus"),
    (
        "rendezvous: {master: c, address: 10.0.0.2}\nnodes: {a: {address: 10.0.0.1}, b: {address: 10.0.0.2}}",
        "inventory.rendezvous-not-master",
    ),
    ("rendezvous: {port: x}\nnetwork: {ports: 30000-30010}\nnodes: {a: {}, b: {}}", "inventory.port-not-open"),
    ("rendevous: {port: 30000}\nnetwork: {ports: 30000-30010}\nnodes: {a: {}, b: {}}", "inventory.port-not-open"),
    (
        "defaults: {shel: bat}\nnodes: {a: {address: 10.0.0.1, shell: bat}, b: {address: 10.0.0.2}}",
        "inventory.two-systems",
    ),
]


@pytest.mark.parametrize(("text", "id"), WRONG_ELSEWHERE)
def test_a_default_in_place_of_a_wrong_value_is_not_judged(text: str, id: str) -> None:
    assert id not in found(text)


def test_one_wrong_node_does_not_hide_another() -> None:
    text = "nodes: {a: {address: 10.0.0.256}, b: {address: 127.0.0.1}, c: {address: 10.0.0.1, gpus: 64, colour: red}}"
    ids = found(text)
    assert "inventory.loopback-address" in ids
    assert "inventory.gpus-per-node" not in ids  # `colour` may be any key misspelt


@pytest.mark.parametrize(
    ("gpus", "told"),
    [
        ("[8]", True),
        ("[16]", True),
        ("[1,2,3,4,5,6,7,8]", True),
        ("[7]", False),
        ("[1,2]", False),
        ("[0,8]", False),
        ("8", False),
    ],
)
def test_devices_counted_from_one(gpus: str, told: bool) -> None:
    assert ("inventory.gpus-from-one" in found(f"nodes: {{a: {{address: 10.0.0.1, gpus: {gpus}}}}}")) is told


@pytest.mark.parametrize(
    ("port", "told"), [(32767, False), (32768, True), (60999, True), (61000, False), (1023, False), (29500, False)]
)
def test_the_kernels_ephemeral_ports(port: int, told: bool) -> None:
    text = f"rendezvous: {{port: {port}}}\nnodes: {{a: {{address: 10.0.0.1}}, b: {{address: 10.0.0.2}}}}"
    assert ("inventory.ephemeral-port" in found(text)) is told


@pytest.mark.parametrize(
    ("address", "id"),
    [
        ("10.0.0.2", "inventory.rendezvous-not-master"),
        ("b", "inventory.rendezvous-not-master"),
        ("B.example", "inventory.rendezvous-not-master"),
        ("10.0.0.3", "inventory.rendezvous-nobody"),
        ("10.0.1.3", None),
        ("a", None),
        ("a.example", None),
        ("10.0.0.1", None),
        ("storage.example", None),
    ],
)
def test_whose_the_rendezvous_address_is(address: str, id: str | None) -> None:
    ids = found(f"rendezvous: {{address: {address}}}\nnodes: {{a: {{address: 10.0.0.1}}, b: {{address: 10.0.0.2}}}}")
    assert [one for one in ids if one.startswith("inventory.rendezvous-")] == ([id] if id else [])


def test_a_default_is_told_once_however_many_nodes_have_it() -> None:
    text = 'defaults: {gpus: 64, python: $X/python, activate: ./env.sh}\nnodes: {"gn[0001-2000]": {}}\ngroups: {half: {nodes: "gn[0001-1000]", defaults: {gpus: 72}}}'
    ids = found(text)
    assert ids.count("inventory.not-expanded") == 1
    assert ids.count("inventory.activate-no-effect") == 1
    assert ids.count("inventory.gpus-per-node") == 2


def test_jobs_that_meet_at_one_place(tmp_path: Path) -> None:
    def rule_ids(first: str, second: str) -> list[str]:
        (tmp_path / "a.yml").write_text(first)
        (tmp_path / "b.yml").write_text(second)
        return [finding.rule.id for finding in lint([str(tmp_path)]).findings]

    one = "nodes: {a: {address: 10.0.0.1, gpus: 1}, b: {address: 10.0.0.2, gpus: 1}}"
    assert rule_ids(one, one) == ["inventory.rendezvous-taken"]
    assert rule_ids(one, f"rendezvous: {{port: 29600}}\n{one}") == []
    assert rule_ids(one, f"rendezvous: {{master: b}}\n{one}") == []
    local = "defaults: {connection: local}\nnodes: {a: {address: 127.0.0.1}}"
    assert rule_ids(local, local) == []


KEYS = st.sampled_from(
    [
        "name",
        "order",
        "rendezvous",
        "network",
        "infiniband",
        "env",
        "defaults",
        "nodes",
        "groups",
        "master",
        "address",
        "port",
        "backend",
        "interface",
        "ports",
        "hca",
        "min_rate_gbps",
        "connection",
        "ssh",
        "host",
        "user",
        "key",
        "jump",
        "host_keys",
        "connect_timeout",
        "python",
        "shell",
        "activate",
        "workdir",
        "gpus",
        "processes",
        "vars",
        "a",
        "b",
        "gn[1-3]",
        "all",
        "PASSWORD",
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 70000),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from(
        [
            "a",
            "b",
            "nccl",
            "gloo",
            "local",
            "ssh",
            "sh",
            "bat",
            "ps1",
            "lo",
            "ib0",
            "^",
            "=",
            ",",
            "127.0.0.1",
            "10.0.0.1",
            "10.0.0.0",
            "fe80::1",
            "::1",
            "fe80::1%eth0",
            "[::1]:22",
            "@:,",
            "a,b",
            "29500-29510",
            "gn[1-3]",
            "10.0.0.[1-3]",
            "{{x}}",
            "$X",
            "C:\\x",
            "/x",
            "~",
            "10s",
            "-----BEGIN",
            "https://a:b@c",
            "--token=x",
        ]
    ),
)
BLOCKS = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=5), max_leaves=12
)
NODE = st.dictionaries(
    st.sampled_from(
        ["address", "connection", "ssh", "python", "shell", "activate", "workdir", "gpus", "processes", "env", "vars"]
    ),
    BLOCKS,
    max_size=5,
)
DRAFTS = st.fixed_dictionaries(
    {
        "nodes": st.dictionaries(
            st.sampled_from(["a", "b", "A", "gn[1-3]", "10.0.0.1", "localhost"]),
            st.none() | NODE,
            min_size=1,
            max_size=4,
        )
    },
    optional={
        "rendezvous": st.dictionaries(st.sampled_from(["master", "address", "port", "backend"]), SCALARS, max_size=4),
        "network": st.dictionaries(st.sampled_from(["interface", "ports"]), BLOCKS, max_size=2),
        "infiniband": st.dictionaries(st.sampled_from(["hca", "min_rate_gbps"]), SCALARS, max_size=2),
        "defaults": NODE,
        "env": BLOCKS,
        "groups": st.dictionaries(
            st.sampled_from(["g", "h"]),
            st.fixed_dictionaries({"nodes": SCALARS}, optional={"defaults": NODE}),
            max_size=2,
        ),
        "oder": SCALARS,
    },
)


@given(
    st.integers(2, 9),
    st.integers(1, 16),
    st.sampled_from([25, 100, 400]),
    st.sampled_from(["", "Ring", "allreduce:RING", "Tree", "NVLS,Ring", "CollnetDirect", "COLLNET"]),
    st.floats(0.02, 3.0),
)
def test_a_gate_is_too_high_where_no_algorithm_can_reach_it(
    nodes: int, gpus: int, rate: int, algorithm: str, part: float
) -> None:
    """`part`: of what the adapters carry."""
    environment = "NCCL_COLLNET_ENABLE: 1" if algorithm == "COLLNET" else f"NCCL_ALGO: '{algorithm}'"
    inventory = (
        f"nodes: {{'n[1-{nodes}]': {{address: '10.0.0.[1-{nodes}]', gpus: {gpus}}}}}\n"
        f"infiniband: {{min_rate_gbps: {rate}}}\nrendezvous: {{backend: nccl}}\nenv: {{{environment}}}\n"
    )
    gate = part * gpus * rate / 8
    playbook = f"stages:\n- {{check: allreduce, with: {{max_bytes: 8G, min_busbw_gbytes: {gate:.6f}}}}}\n"
    rings = algorithm.lower().endswith("ring") and "," not in algorithm
    ranks = nodes * gpus
    most = 1.0 if rings else (ranks - 1) / ranks * nodes / (nodes - 1)
    assume(abs(part - most) > 1e-4)
    with TemporaryDirectory() as folder:
        (Path(folder) / "i.yml").write_text(inventory)
        (Path(folder) / "p.yml").write_text(f"inventory: i.yml\n{playbook}")
        told = "playbook.gate-too-high" in {finding.rule.id for finding in lint([folder]).findings}
    assert told is (part > most and "collnet" not in algorithm.lower())


@examples(400)
@given(DRAFTS)
def test_no_draft_makes_a_rule_fail(draft: dict[str, Any]) -> None:
    found(yaml.safe_dump(draft, sort_keys=False))


@examples(200)
@given(
    st.lists(
        st.sampled_from(
            [
                "train.py",
                "--rank",
                "--password",
                "-",
                "--",
                "=",
                "--token=",
                "x" * 20 + "1",
                "",
                "$X",
                "echo x | sudo -S y",
            ]
        ),
        max_size=6,
    )
)
def test_no_command_makes_a_rule_fail(words: list[str]) -> None:
    stages = [{"launch": {"command": words}}, {"shell": " ".join(words)}, {"launch": words}, words]
    document = parse_document(yaml.safe_dump({"stages": stages}), "playbook.yml")
    for rule in rules.DOCUMENT_RULES:
        list(rule(document))
