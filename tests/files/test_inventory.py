"""Inventories as DESIGN section 3 promises them: defaults, folding, ranks, what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.files.inventory import examine_inventory, load_inventory, natural_sort_key
from runbook.files.yaml_document import parse_document
from runbook.model.errors import FilesWrong
from runbook.model.inventory import Infiniband, Inventory, Network, Node, Rendezvous, Ssh
from runbook.model.secrets import Secret

from .write import inventory, inventory_problems

CONTRACT = """\
# yaml-language-server: $schema=../schemas/inventory.schema.json
name: two-node
rendezvous:
  master: node-a
  address: 10.0.0.1
  port: 29500
  backend: nccl
network:
  interface: eth0
  ports: 29500-29510
infiniband:
  hca: mlx5
  min_rate_gbps: 200
env: {NCCL_DEBUG: INFO}
defaults:
  connection: ssh
  ssh: {user: ubuntu, port: 22, key: ~/.ssh/id_ed25519, jump: bastion, host_keys: strict, connect_timeout: 10s}
  python: /opt/venv/bin/python
  shell: sh
  activate: conda activate train
  workdir: ~/.runbook
nodes:
  node-a: {address: 10.0.0.1, gpus: 2}
  node-b: {address: 10.0.0.2, ssh: {host: bastion-side-name}, gpus: [0, 1], env: {NCCL_SOCKET_IFNAME: ens5}}
  "gn[01-04]": {address: "10.0.1.[1-4]"}
groups:
  rack1: {nodes: "gn[01-02]", defaults: {gpus: 4}}
"""
SSH = Ssh(user="ubuntu", port=22, key="~/.ssh/id_ed25519", jump="bastion", connect_timeout_s=10.0)


def test_the_inventory_of_the_contract(tmp_path: Path) -> None:
    def node(name: str, address: str, gpus: int, host: str | None = None, groups: tuple[str, ...] = ()) -> Node:
        return Node(
            name,
            address,
            ssh=replace(SSH, host=host),
            python="/opt/venv/bin/python",
            activate="conda activate train",
            gpus=tuple(range(gpus)),
            env={"NCCL_SOCKET_IFNAME": "ens5"} if host else {},
            groups=groups,
        )

    assert inventory(tmp_path, CONTRACT) == Inventory(
        name="two-node",
        nodes=(
            node("node-a", "10.0.0.1", 2),
            node("node-b", "10.0.0.2", 2, "bastion-side-name"),
            node("gn01", "10.0.1.1", 4, groups=("rack1",)),
            node("gn02", "10.0.1.2", 4, groups=("rack1",)),
            node("gn03", "10.0.1.3", 0),
            node("gn04", "10.0.1.4", 0),
        ),
        rendezvous=Rendezvous("node-a", "10.0.0.1", 29500, "nccl"),
        network=Network("eth0", ((29500, 29510),)),
        infiniband=Infiniband("mlx5", 200.0),
        env={"NCCL_DEBUG": "INFO"},
        groups={"rack1": ("gn01", "gn02")},
        source=str(tmp_path / "inventory.yml"),
    )


def test_the_least_an_inventory_can_say(tmp_path: Path) -> None:
    found = inventory(tmp_path, "nodes:\n  alpha:\n  beta:\n")
    assert found == Inventory(
        name="inventory",
        nodes=(Node("alpha", "alpha"), Node("beta", "beta")),
        rendezvous=Rendezvous("alpha", "alpha", 29500, "gloo"),
        source=str(tmp_path / "inventory.yml"),
    )


def test_env_values_are_the_text_that_was_typed(tmp_path: Path) -> None:
    found = inventory(
        tmp_path,
        """\
        env: {A: 1, B: true, C: 0644, D: 1.50, E: NO, F: "", G: 22:22, H: -0, I: 1e5, J: "x y"}
        nodes: {a: {env: {A: 2.0}}}
        """,
    )
    assert found.env == dict(
        zip("ABCDEFGHIJ", ["1", "true", "0644", "1.50", "NO", "", "22:22", "-0", "1e5", "x y"], strict=True)
    )
    assert found.nodes[0].env == {"A": "2.0"}


def test_a_secret_comes_from_the_environment_and_does_not_print(tmp_path: Path) -> None:
    found = inventory(tmp_path, "env: {KEY: {env: MY_KEY}}\nnodes: {a: }\n", MY_KEY="hunter2")
    secret = found.env["KEY"]
    assert isinstance(secret, Secret)
    assert secret.reveal() == "hunter2"
    assert "hunter2" not in repr(found)


def test_precedence_is_key_by_key_for_env_vars_and_ssh(tmp_path: Path) -> None:
    found = inventory(
        tmp_path,
        """\
        defaults: {ssh: {user: all, port: 2222}, env: {A: 1, B: 1}, vars: {x: 1, y: [1]}, gpus: 8, python: p}
        nodes:
          a: {ssh: {user: own}, env: {B: 3}, vars: {y: 3}}
          b:
        groups:
          g: {nodes: "*", defaults: {ssh: {port: 2200}, env: {B: 2, C: 2}, gpus: [1, 3]}}
        """,
    )
    a, b = found.nodes
    assert (a.ssh, b.ssh) == (Ssh(user="own", port=2200), Ssh(user="all", port=2200))
    assert (a.env, b.env) == ({"A": "1", "B": "3", "C": "2"}, {"A": "1", "B": "2", "C": "2"})
    assert (a.vars, b.vars) == ({"x": 1, "y": 3}, {"x": 1, "y": [1]})
    assert (a.gpus, a.python) == ((1, 3), "p")


def test_extra_vars_win_over_a_nodes_own(tmp_path: Path) -> None:
    file = tmp_path / "i.yml"
    file.write_text("nodes: {a: {vars: {x: 1, y: 2}}}\n")
    assert load_inventory(file, extra_vars={"x": 9})[0].nodes[0].vars == {"x": 9, "y": 2}


def test_groups_may_agree(tmp_path: Path) -> None:
    text = (
        "nodes: {a: }\ngroups:\n  g: {nodes: a, defaults: {gpus: 2}}\n  h: {nodes: a, defaults: {gpus: 2, shell: sh}}\n"
    )
    assert inventory(tmp_path, text).nodes[0].gpus == (0, 1)


def test_groups_that_share_no_node_may_differ(tmp_path: Path) -> None:
    text = "nodes: {a: , b: }\ngroups:\n  g: {nodes: a, defaults: {gpus: 2}}\n  h: {nodes: [b], defaults: {gpus: 1}}\n"
    assert [len(node.gpus) for node in inventory(tmp_path, text).nodes] == [2, 1]


@pytest.mark.parametrize(
    ("head", "order"),
    [
        ("", "gn6-10 gn6-2 b gn6-1"),
        ("order: name", "gn6-10 b gn6-1 gn6-2"),
        ("order: name\nrendezvous: {master: gn6-2}", "gn6-2 b gn6-1 gn6-10"),
        ("rendezvous: {master: b}", "b gn6-10 gn6-2 gn6-1"),
    ],
)
def test_the_master_is_first_and_the_rest_in_order(tmp_path: Path, head: str, order: str) -> None:
    found = inventory(
        tmp_path, f"{head}\nnodes: {{gn6-10: , gn6-2: , b: , gn6-1: }}\ngroups: {{g: {{nodes: 'gn*'}}}}\n"
    )
    assert [node.name for node in found.nodes] == order.split()
    assert found.rendezvous.master == found.rendezvous.address == order.split()[0]
    assert found.groups["g"] == tuple(name for name in order.split() if name != "b")


def test_natural_order_reads_numbers() -> None:
    names = ["gn6-10", "gn6-2", "gn06-1", "9", "a", "10", "gn"]
    assert sorted(names, key=natural_sort_key) == ["9", "10", "a", "gn", "gn06-1", "gn6-2", "gn6-10"]


@given(st.lists(st.text(max_size=8)))
def test_any_names_can_be_ordered(names: list[str]) -> None:
    assert len(sorted(names, key=natural_sort_key)) == len(names)


@pytest.mark.parametrize(
    ("nodes", "backend"),
    [
        ("{a: {gpus: 1}, b: {gpus: [3]}}", "nccl"),
        ("{a: {gpus: 1}, b: }", "gloo"),
        ("{a: {gpus: 1}, b: {gpus: 0}}", "gloo"),
        ("{a: {gpus: 1}, b: {gpus: 1, shell: bat}}", "gloo"),
        ("{a: {gpus: 1, shell: ps1}}", "gloo"),
    ],
)
def test_the_default_backend(tmp_path: Path, nodes: str, backend: str) -> None:
    assert inventory(tmp_path, f"nodes: {nodes}\n").rendezvous.backend == backend


def test_a_windows_node_calls_its_python_python(tmp_path: Path) -> None:
    found = inventory(tmp_path, "nodes: {a: {shell: bat}, b: {shell: ps1, python: py}, c: }\n")
    assert [node.python for node in found.nodes] == ["python", "py", "python3"]


def test_ranges_pair_with_addresses_and_ssh_hosts(tmp_path: Path) -> None:
    found = inventory(
        tmp_path,
        """\
        nodes:
          "gn[08-10]": {address: "10.0.[0,1-2].1", ssh: {host: "m[1-3]"}}
          "r[1-2]n[1-2]": {}
        """,
    )
    assert [(node.name, node.address, node.ssh.host) for node in found.nodes] == [
        ("gn08", "10.0.0.1", "m1"),
        ("gn09", "10.0.1.1", "m2"),
        ("gn10", "10.0.2.1", "m3"),
        ("r1n1", "r1n1", None),
        ("r1n2", "r1n2", None),
        ("r2n1", "r2n1", None),
        ("r2n2", "r2n2", None),
    ]


@pytest.mark.parametrize(
    ("address", "found"),
    [
        ("fd00::1", "fd00::1"),
        ("[fd00::1]", "fd00::1"),
        ("fe80::1%eth0", "fe80::1%eth0"),
        ("a_b.c-d.", "a_b.c-d."),
        ("10.0.0.1", "10.0.0.1"),
        ("1host", "1host"),
        ("::ffff:10.0.0.1", "::ffff:10.0.0.1"),
        ("xn--nde-sna", "xn--nde-sna"),
    ],
)
def test_addresses(tmp_path: Path, address: str, found: str) -> None:
    assert inventory(tmp_path, f"nodes:\n  a: {{address: '{address}'}}\n").nodes[0].address == found


@pytest.mark.parametrize(
    "address",
    [
        "10.0.0.1:22",
        "[::1]:22",
        "http://a",
        "u@a",
        "-a",
        "a b",
        "a;b",
        "$(x)",
        "a`b",
        "1.2.3",
        "1.2.3.4.5",
        "256.1.1.1",
        "fd00::zz",
        "a/b",
        "a\\nb",
        "a\\0b",
        ":",
        ":80",
        "a-",
        "é",
        "01.2.3.4",
    ],
)
@pytest.mark.parametrize(
    "where", ["nodes: {{n: {{address: {0}}}}}", "defaults: {{ssh: {{host: {0}}}}}\nnodes: {{n: }}"]
)
def test_malformed_addresses(address: str, where: str) -> None:
    assert inventory_problems(where.format(f'"{address}"')) == ["inventory.bad-address"]


@pytest.mark.parametrize("address", ["10.0.1.[1:2]", "gn[01:02]"])
def test_a_range_as_ansible_writes_it_is_told_as_that(address: str) -> None:
    document = parse_document(f"nodes: {{'gn[01-02]': {{address: '{address}'}}}}", "x.yml")
    (problem,) = examine_inventory(document).problems
    assert problem.id == "inventory.bad-address"
    assert problem.message == f"`{address}` has a range as Ansible writes it"


@pytest.mark.parametrize(
    ("address", "help"),
    [
        ("gn{01..04}", "write gn[01-04]"),
        ("gn[01:04]", "write gn[01-04]"),
        ("10.0.0.0/24", "write the address of one machine, without a prefix length"),
        ("10.0.0.1,10.0.0.2", "each node has one address"),
    ],
)
def test_what_stands_for_several_machines_is_told_with_what_to_write(address: str, help: str) -> None:
    (problem,) = examine_inventory(parse_document(f"nodes: {{a: {{address: '{address}'}}}}", "x.yml")).problems
    assert (problem.id, problem.help) == ("inventory.bad-address", help)


def test_a_file_of_ansible_vault_is_told_as_that() -> None:
    (problem,) = examine_inventory(parse_document("$ANSIBLE_VAULT;1.1;AES256\n36313233\n", "x.yml")).problems
    assert problem.message.startswith("this is a file that Ansible Vault has encrypted, ")
    assert "ansible-vault view" in (problem.help or "")
    assert str(problem.span) == "x.yml:1:1"


def test_a_variable_of_templates_takes_no_secret() -> None:
    """It would be put into commands as the text of a mapping."""
    text = "defaults: {vars: {key: {env: TOKEN}, other: {env: 3}}}\nnodes: {'gn[1-9]': }"
    (problem,) = examine_inventory(parse_document(text, "x.yml")).problems
    assert (problem.id, str(problem.span)) == ("inventory.wrong-type", "x.yml:1:24")
    assert "below `env:`" in (problem.help or "")


def test_a_rendezvous_address_is_checked_too() -> None:
    assert inventory_problems("rendezvous: {address: '10.0.0.1:29500'}\nnodes: {a: }") == ["inventory.bad-address"]


@pytest.mark.parametrize(
    "address", ["localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]", "LOCALHOST.", "::ffff:127.0.0.1"]
)
def test_many_nodes_do_not_dial_themselves(address: str) -> None:
    given = f"rendezvous: {{address: '{address}'}}\nnodes: {{a: , b: }}"
    assert inventory_problems(given) == ["inventory.master-addr-loopback"]
    assert inventory_problems(f"nodes: {{a: {{address: '{address}'}}, b: }}") == ["inventory.master-addr-loopback"]


@pytest.mark.parametrize("nodes", ["{a: }", "{a: , b: }\ndefaults: {connection: local}"])
def test_one_machine_may(tmp_path: Path, nodes: str) -> None:
    found = inventory(tmp_path, f"rendezvous: {{address: 127.0.0.1}}\nnodes: {nodes}\n")
    assert found.rendezvous.address == "127.0.0.1"


@pytest.mark.parametrize(
    "nodes",
    [
        "{a: {address: h, ssh: {host: x}}, b: {address: h, ssh: {host: y}}}",
        "{a: {address: h}, b: {address: h, ssh: {port: 2222}}}",
        "{a: {address: h}, b: {address: h, ssh: {jump: far}}}",
        "{a: {address: 127.0.0.1, connection: local}, b: {address: 127.0.0.1, connection: local}}",
        "{'g[1-4]': {address: 127.0.0.1, connection: local}}",
        "{'g[1-2]': {address: h, ssh: {host: 'm[1-2]'}}}",
    ],
)
def test_one_address_behind_two_logins_is_for_the_machines_to_judge(tmp_path: Path, nodes: str) -> None:
    assert len(inventory(tmp_path, f"nodes: {nodes}\n").nodes) >= 2


@pytest.mark.parametrize(
    "nodes", ["{a: {address: h}, b: {address: H}}", "{a: {address: h}, b: {address: h, ssh: {port: 22}}}"]
)
def test_one_login_is_one_machine(nodes: str) -> None:
    assert inventory_problems(f"nodes: {nodes}") == ["inventory.duplicate-address"]


def test_everything_wrong_is_told_in_one_go() -> None:
    text = """\
    nam: x
    rendezvous: {master: c, port: 0, adress: h}
    env: {A-B: 1, C: {env: NOPE}, D: "a\\nb"}
    nodes:
      a: {gpus: -1, address: "x y"}
      b: {gpus: [1, 1], procceses: 1}
      b: {}
    """
    assert inventory_problems(text) == [
        f"inventory.{name}" if name != "duplicate-key" else "yaml.duplicate-key"
        for name in [
            *(
                "unknown-key",
                "unknown-master",
                "port-range",
                "unknown-key",
                "bad-name",
                "missing-variable",
                "line-break",
            ),
            *("out-of-range", "bad-address", "duplicate-gpu", "unknown-key", "duplicate-key"),
        ]
    ]


def test_a_value_shared_by_many_nodes_is_told_once() -> None:
    text = """\
    defaults: {address: "a b", env: {X: {env: NOPE}}, ssh: {host: -x, connect_timeout: never}, gpus: [2, 2],
               python: "a\\nb"}
    nodes: {"gn[001-500]": }
    """
    assert inventory_problems(text) == [
        "inventory.bad-address",
        "inventory.missing-variable",
        "inventory.bad-address",
        "inventory.duration",
        "inventory.duplicate-gpu",
        "inventory.line-break",
        "inventory.duplicate-address",
    ]


def test_a_file_that_is_not_there_is_an_error_with_its_name(tmp_path: Path) -> None:
    with pytest.raises(FilesWrong, match=r"there is no file .*nowhere\.yml"):
        load_inventory(tmp_path / "nowhere.yml")


def test_where_a_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "i.yml"
    file.write_text(
        "env: {A: 0}\n"
        "defaults: {gpus: 8, env: {A: 1}}\n"
        "nodes:\n"
        "  a: {gpus: 2, env: {A: 3}, vars: {x: 1}}\n"
        "  b:\n"
        "groups:\n"
        "  g: {nodes: '*', defaults: {env: {A: 2}}}\n"
    )
    _, origins = load_inventory(file, extra_vars={"x": 5})

    def told(node: str, *key: str) -> list[tuple[object, str, str, bool]]:
        return [
            (one.value, f"{one.span.line}:{one.span.column}" if one.span else "", one.level, one.wins)
            for one in origins.candidates(node, key)
        ]

    assert told("a", "gpus") == [(8, "2:18", "defaults", False), (2, "4:13", "node", True)]
    assert told("a", "env", "A") == [
        (0, "1:10", "env of the inventory", False),
        (1, "2:30", "defaults", False),
        (2, "7:39", "group g", False),
        (3, "4:25", "node", True),
    ]
    assert told("b", "env", "A")[-1] == (2, "7:39", "group g", True)
    assert told("a", "vars", "x") == [(1, "4:39", "node", False), (5, "", "-e", True)]
    assert told("b", "python") == []
    assert origins.keys("a") == [("env", "A"), ("gpus",), ("vars", "x")]
    assert str(origins.span("a", "gpus")).endswith("i.yml:4:13")
    assert origins.span("b", "python") is None
    with pytest.raises(KeyError):
        origins.candidates("c", ("gpus",))


def test_ten_thousand_nodes_load_in_seconds(tmp_path: Path) -> None:
    """`make bench` tells how many."""
    lines = [
        f"  n{i:05d}: {{address: 10.0.{i >> 8}.{i & 255}, gpus: 8, ssh: {{host: h{i}}}, env: {{X: {i}}}}}\n"
        for i in range(10_000)
    ]
    groups = [
        f"  g{j}: {{nodes: 'n[{j * 100:05d}-{j * 100 + 99:05d}]', defaults: {{shell: sh}}}}\n" for j in range(100)
    ]
    file = tmp_path / "big.yml"
    file.write_text("nodes:\n" + "".join(lines) + "groups:\n" + "".join(groups))
    found, _ = load_inventory(file)
    assert len(found.nodes) == 10_000
    assert found.nodes[9_999].env == {"X": "9999"}


def test_a_container_comes_from_any_level_and_is_taken_whole(tmp_path: Path) -> None:
    text = """\
defaults: {container: {runtime: docker, name: train}}
groups:
  bare: {nodes: node-b, defaults: {container: null}}
nodes:
  node-a: {address: 10.0.0.1}
  node-b: {address: 10.0.0.2}
  node-c: {address: 10.0.0.3, container: null, inside: [sudo, -n, crun, exec, "1234"]}
  node-d: {address: 10.0.0.4, container: {runtime: apptainer, name: other}}
"""
    file = tmp_path / "inventory.yml"
    file.write_text(text)
    assert [node.entry for node in load_inventory(file)[0].nodes] == [
        ("docker", "exec", "--interactive", "train"),
        (),
        ("sudo", "-n", "crun", "exec", "1234"),
        ("apptainer", "exec", "instance://other"),
    ]


def test_words_that_enter_a_container_stand_on_one_line_each(tmp_path: Path) -> None:
    file = tmp_path / "inventory.yml"
    file.write_text('nodes: {node-a: {address: 10.0.0.1, inside: [crun, exec, "a\\nb"]}}\n')
    with pytest.raises(FilesWrong) as wrong:
        load_inventory(file)
    assert [problem.id for problem in wrong.value.problems] == ["inventory.line-break"]
