"""Other people's inventories, imported: what comes out loads, and says what went in."""

from __future__ import annotations

import json
import shlex
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runbook.files.inventory import examine_inventory
from runbook.files.inventory_draft import draft_text
from runbook.files.yaml_document import parse_document
from runbook.importers.convert import draft_of_foreign_inventory, read_foreign_inventory
from runbook.model.errors import FilesWrong, Problem
from runbook.model.inventory import Inventory, Node


def imported(text: str, kind: str | None = None, file: str = "theirs") -> tuple[Inventory, str]:
    """Our inventory and its text; it must load without a problem."""
    ours = draft_text(draft_of_foreign_inventory(read_foreign_inventory(text, file, kind), "imported"))
    examined = examine_inventory(parse_document(ours, "ours.yml"), environ={})
    assert examined.problems == (), ours
    assert examined.inventory is not None
    return examined.inventory, ours


def nodes(text: str, kind: str | None = None, file: str = "theirs") -> dict[str, Node]:
    return {node.name: node for node in imported(dedent(text), kind, file)[0].nodes}


def problem(text: str, kind: str | None = None, file: str = "theirs") -> Problem:
    with pytest.raises(FilesWrong) as wrong:
        read_foreign_inventory(dedent(text), file, kind)
    return wrong.value.problems[0]


# Hostfiles.


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        ("worker-1 slots=4\nworker-2 slots=8\n", {"worker-1": 4, "worker-2": 8}),
        ("# DeepSpeed\n\nworker-1 slots=4  # the old one\n", {"worker-1": 4}),
        ("n1 slots = 2 max_slots = 4\n", {"n1": 2}),
        ("n1:8\nn2:8\n", {"n1": 8, "n2": 8}),
        ("n1 slots=2\nn1 slots=3\n", {"n1": 5}),
        ("n1\nn1\nn2\n", {"n1": 2, "n2": 1}),
        ("10.0.0.1 slots=1\n[fd00::1]:2\n", {"10.0.0.1": 1, "fd00-1": 2}),
        ("n1\tslots=8\r\nn2\tslots=8\r\n", {"n1": 8, "n2": 8}),
    ],
)
def test_slots_become_gpus(text: str, gpus: dict[str, int]) -> None:
    assert {name: len(node.gpus) for name, node in nodes(text).items()} == gpus


def test_a_user_in_a_hostfile() -> None:
    found = nodes("me@n1 slots=8\nn2 slots=8 user=you\n")
    assert (found["n1"].ssh.user, found["n2"].ssh.user) == ("me", "you")


def test_what_a_hostfile_says_beyond_us_is_a_comment_with_its_line() -> None:
    _, text = imported("n1 slots=8\nn2 slots=8 max_slots=16\n")
    assert "#   theirs:2: n2: max_slots=16: " in text


@pytest.mark.parametrize(
    ("text", "line", "column", "id"),
    [
        ("n1 slots=8\nn2 slots=many\n", 2, 4, "import.hostfile-slots"),
        ("n1 slots=8\nn2 slots\n", 2, 4, "import.hostfile-syntax"),
        ("n1 slots=8\nn2 slot=8\n", 2, 4, "import.hostfile-syntax"),
        ("n1 slots=8\nn 2 slots=8\n", 2, 3, "import.hostfile-syntax"),
        ("n1 slots=8\nbad!host slots=8\n", 2, 1, "import.bad-host"),
        ("n1 slots=8\n10.0.0.256 slots=8\n", 2, 1, "import.bad-host"),
        ("n1 slots=8\n@n2 slots=8\n", 2, 1, "import.bad-user"),
        ("n1 slots=8\n-o@n2 slots=8\n", 2, 1, "import.bad-user"),
        ("n1 slots=8\nn2:2000\n", 2, 1, "import.hostfile-slots"),
    ],
)
def test_a_bad_hostfile_is_told_with_its_place(text: str, line: int, column: int, id: str) -> None:
    found = problem(text, "hostfile")
    assert found.span is not None
    assert (found.id, found.span.line, found.span.column) == (id, line, column)


# Slurm.


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gn[01-03,07],login1", ["gn01", "gn02", "gn03", "gn07", "login1"]),
        ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]),
        ("gn[09-11]-ib", ["gn09-ib", "gn10-ib", "gn11-ib"]),
        ("gn01\ngn02\ngn03\n", ["gn01", "gn02", "gn03"]),
        ("gn01 gn02\tgn03", ["gn01", "gn02", "gn03"]),
        ("gn[1-3]\n,gn2,\n", ["gn1", "gn2", "gn3"]),
        ("# from a job\ngn[1-2] # two\n", ["gn1", "gn2"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert list(nodes(text)) == names


def test_a_range_comes_out_as_a_range() -> None:
    _, text = imported("r[1-2]n[01-16],gn[01-04,07]")
    assert '  "r[1-2]n[01-16]": {}' in text
    assert '  "gn[01-04,07]": {}' in text


@pytest.mark.parametrize("text", ["gn[01-04", "gn[4-1]", "gn[1-9999999]", "gn01;reboot", "gn[a-c]", "", "\n \n", ","])
def test_what_is_no_host_list(text: str) -> None:
    assert problem(text, "slurm").id.startswith("import.")


# Ansible.

INI = """\
    login ansible_connection=local

    [gpu]
    gn[01:03].example ansible_user=root
    gn05 ansible_host=10.0.0.5 ansible_port=2222 rack="row 3" gpus=8   # the new one
    gn06:2200

    [gpu:vars]
    ansible_user=ubuntu
    ansible_ssh_private_key_file=~/.ssh/cluster
    ansible_ssh_common_args='-o ProxyJump=ops@bastion:2222 -o ConnectTimeout=7'
    ansible_python_interpreter=/opt/venv/bin/python
    data=/mnt/data
    count=3
    on=True
    mode=0644

    [win]
    w[a:c]

    [win:vars]
    ansible_shell_type=cmd

    [cluster:children]
    gpu
    win
"""


def test_an_ini_inventory() -> None:
    inventory, text = imported(dedent(INI))
    found = {node.name: node for node in inventory.nodes}
    assert list(found) == ["gn01.example", "gn02.example", "gn03.example", "gn05", "gn06", "wa", "wb", "wc"]
    one, five = found["gn01.example"], found["gn05"]
    assert (one.ssh.user, five.ssh.user) == ("root", "ubuntu")
    assert (five.address, five.ssh.port, found["gn06"].ssh.port) == ("10.0.0.5", 2222, 2200)
    assert (five.ssh.key, five.ssh.jump, five.ssh.connect_timeout_s) == ("~/.ssh/cluster", "ops@bastion:2222", 7.0)
    assert five.vars == {"data": "/mnt/data", "count": 3, "on": True, "mode": "0644", "rack": "row 3"}
    assert five.python == "/opt/venv/bin/python"
    assert len(five.gpus) == 8
    assert found["wb"].shell == "bat"
    assert set(inventory.groups) == {"gpu", "win", "cluster"}
    assert len(inventory.groups["cluster"]) == 8
    assert "# login is the machine that runs Ansible" in text


def test_deeper_groups_win_and_hosts_win_over_all() -> None:
    found = nodes(
        """\
        [all:vars]
        ansible_user=a
        ansible_port=1
        [parent:children]
        zchild
        [zchild]
        n1
        n2 ansible_user=h
        [parent:vars]
        ansible_user=p
        ansible_port=2
        [zchild:vars]
        ansible_user=c
        """
    )
    assert (found["n1"].ssh.user, found["n2"].ssh.user, found["n1"].ssh.port) == ("c", "h", 2)


def test_a_yaml_inventory() -> None:
    found = nodes(
        """\
        all:
          vars: {ansible_user: root, flag: yes, text: "yes"}
          hosts:
            lonely: {ansible_host: fd00::1}
          children:
            gpu:
              hosts:
                gn[1:2]: {gpus: [0, 2]}
              children:
                big: {hosts: {gn3: {ansible_user: me}}}
              vars: {nested: {list: [1, "a"]}}
        """
    )
    assert list(found) == ["lonely", "gn1", "gn2", "gn3"]
    assert found["lonely"].address == "fd00::1"
    assert found["gn2"].gpus == (0, 2)
    assert found["gn3"].ssh.user == "me"
    assert found["gn3"].vars == {"flag": True, "text": "yes", "nested": {"list": [1, "a"]}}
    assert found["gn3"].groups == ("gpu", "big")


def test_what_ansible_inventory_prints_as_json() -> None:
    found = nodes(
        """\
        {"_meta": {"hostvars": {"a": {"ansible_host": "10.0.0.1"}, "b": {"x": true}}},
         "all": {"children": ["g"]}, "g": {"hosts": ["a", "b"]}}
        """
    )
    assert (found["a"].address, found["b"].vars, found["b"].groups) == ("10.0.0.1", {"x": True}, ("g",))


SECRETS = """\
    [g]
    n1 ansible_password=hunter2 ansible_ssh_pass=hunter2 ansible_become_pass=hunter2
    n2 wandb_api_key=hunter2 hf_token=hunter2 db="{'user': 'x', 'password': 'hunter2'}"
    n3 ansible_ssh_common_args="-o ProxyCommand='sshpass -p hunter2 ssh -W %h:%p bastion'"
    n4 key="-----BEGIN OPENSSH PRIVATE KEY-----hunter2"
    n5 proxy=http://jdoe:hunter2@proxy:3128 header="Authorization: Bearer hunter2345"
    [g:vars]
    ansible_become_password=hunter2
    my_secret=hunter2
"""


def test_no_secret_is_copied_and_each_is_named() -> None:
    _, text = imported(dedent(SECRETS))
    assert "hunter2" not in text
    for name in (
        "ansible_password",
        "ansible_ssh_pass",
        "wandb_api_key",
        "hf_token",
        "db",
        "my_secret",
        "key",
        "proxy",
        "header",
    ):
        assert f"{name}: a secret" in text, name
    assert "theirs:2: ansible_password" in text


def test_vault_values_are_not_copied_even_encrypted() -> None:
    _, text = imported(
        "all:\n  hosts:\n    n1:\n      plain: 1\n      hidden: !vault |\n        $ANSIBLE_VAULT;1.1;AES256\n        6162\n"
        "      deep: {inside: !vault 'abcd'}\n",
        file="x.yml",
    )
    assert "ANSIBLE_VAULT" not in text
    assert "abcd" not in text
    assert "x.yml:5: hidden: a secret" in text
    assert "x.yml:8: deep: a secret" in text


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("ansible_become=true", "runbook never becomes another user"),
        ("ansible_connection=docker", "runbook logs in by SSH only"),
        ("ansible_connection=winrm", "install OpenSSH there"),
        ("ansible_host='{{ base }}.1'", "a template"),
        ("ansible_network_os=ios", "no place in our inventory"),
        ("ansible_ssh_common_args='-o Ciphers=x'", "~/.ssh/config"),
        ("ansible_host_key_checking=false", "host keys are always verified"),
        ("odd-name=1", "letters, digits and `_` only"),
    ],
)
def test_what_has_no_place_is_left_as_a_comment_with_its_line(line: str, says: str) -> None:
    _, text = imported(f"[g]\nn0\nn1 {line}\n")
    comments = " ".join(line.strip(" #") for line in text.splitlines())
    assert says in comments.partition("theirs:3: ")[2]


@pytest.mark.parametrize(
    ("arguments", "jump", "port", "user"),
    [
        ("-J bastion", "bastion", None, None),
        ("-o ProxyJump=a@b:22 -p 2222", "a@b:22", 2222, None),
        ('-oProxyCommand="ssh -W %h:%p -q me@bastion"', "me@bastion", None, None),
        ('-o "ProxyCommand ssh -q -p 2200 -W %h:%p bastion" -l you', "bastion:2200", None, "you"),
        ("-C -o ControlMaster=auto -o ControlPersist=60s", None, None, None),
        ("-o 'ProxyCommand=nc -X 5 -x proxy:1080 %h %p'", None, None, None),
    ],
)
def test_ssh_arguments(arguments: str, jump: str | None, port: int | None, user: str | None) -> None:
    ssh = nodes(f"all:\n  hosts:\n    n1:\n      ansible_ssh_common_args: |-\n        {arguments}\n")["n1"].ssh
    assert (ssh.jump, ssh.port, ssh.user) == (jump, port, user)


def test_one_machine_under_two_names_is_told() -> None:
    inventory, text = imported("[g]\na ansible_host=10.0.0.1\nb ansible_host=10.0.0.1\nc ansible_host=10.0.0.2\n")
    assert [node.name for node in inventory.nodes] == ["a", "c"]
    assert "# b has the address and the login of a: one machine, left out" in text


def test_machines_behind_forwarded_ports_keep_their_login() -> None:
    """As Vagrant writes them: 127.0.0.1 is where we log in, and nowhere that nodes could meet."""
    found = nodes("[g]\na ansible_host=127.0.0.1 ansible_port=2222\nb ansible_host=127.0.0.1 ansible_port=2200\n")
    assert [(n.address, n.ssh.host, n.ssh.port) for n in found.values()] == [
        ("a", "127.0.0.1", 2222),
        ("b", "127.0.0.1", 2200),
    ]


def test_hosts_that_are_all_this_very_machine() -> None:
    with pytest.raises(FilesWrong, match="none of these hosts can be a node"):
        imported("localhost\n127.0.0.1\n")
    assert [node.name for node in imported("localhost\n")[0].nodes] == ["localhost"]


def test_names_that_cannot_be_ours() -> None:
    inventory, text = imported("[web]\nweb\nn2\n[all-of-it:children]\nweb\n", "ansible")
    assert set(inventory.groups) == {"group-web", "all-of-it"}
    assert "the group web is called group-web here" in text


@pytest.mark.parametrize(
    ("text", "line", "id"),
    [
        ("[g]\nn1 oops\n", 2, "import.ansible-syntax"),
        ("[g]\nn1 x='unfinished\n", 2, "import.ansible-syntax"),
        ("[g:var]\nx=1\n", 1, "import.ansible-section"),
        ("[g h]\nx\n", 1, "import.ansible-section"),
        ("[a:children]\nb\n", 2, "import.ansible-unknown-group"),
        ("n1\n[b:vars]\nx=1\n", 2, "import.ansible-unknown-group"),
        ("[a]\nn1\n[a:children]\nb\n[b:children]\na\n", 1, "import.ansible-loop"),
        ("[g]\nn[1-4]\n", 2, "import.range"),
        ("[g]\nn[04:1]\n", 2, "import.range"),
        ("[g]\nn[1:4\n", 2, "import.range"),
        ("[g]\nn1 ansible_port=99999\n", 2, "import.bad-port"),
        ("[g]\nn1 ansible_host=10.0.0.999\n", 2, "import.bad-host"),
        ("[g]\nn1 ansible_host=host:22\n", 2, "import.bad-host"),
        ("[g]\nn!1\n", 2, "import.bad-host"),
        ("[g:vars]\nx=1\n[g]\n", 1, "import.empty"),
        ("[g]\n---\n", 2, "import.ansible-syntax"),
    ],
)
def test_a_bad_ini_inventory_is_told_with_its_place(text: str, line: int, id: str) -> None:
    found = problem(text, "ansible")
    assert found.span is not None
    assert (found.id, found.span.line) == (id, line)


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("all:\n  hosts:\n    - n1\n", "import.ansible-syntax"),
        ("all:\n  host:\n    n1:\n", "import.ansible-syntax"),
        ("all: [n1]\n", "import.ansible-syntax"),
        ("all:\n  hosts:\n   n1:\n  \tn2:\n", "yaml.tab"),
        ("- hosts: all\n", "import.ansible-syntax"),
        ("all:\n  hosts: {n1: {ansible_port: x}}\n", "import.bad-port"),
        ("all: {vars: {x: 1}}\n", "import.empty"),
    ],
)
def test_a_bad_yaml_inventory(text: str, id: str) -> None:
    assert problem(text, "ansible", "x.yml").id == id


# Which kind it is.


@pytest.mark.parametrize(
    ("text", "file", "kind"),
    [
        ("n1 slots=8\n", "hosts", "hostfile"),
        ("n1:8\nn2:8\n", "hosts", "hostfile"),
        ("n1\nn1\n", "machinefile", "hostfile"),
        ("[g]\nn1\n", "hosts", "Ansible inventory"),
        ("n1 ansible_host=10.0.0.1\n", "hosts", "Ansible inventory"),
        ("n[01:04]\n", "hosts", "Ansible inventory"),
        ("all:\n  hosts:\n    n1:\n", "stdin", "Ansible inventory"),
        ("---\ng: {hosts: {n1: }}\n", "hosts", "Ansible inventory"),
        ('{"_meta": {"hostvars": {"n1": {}}}}', "stdin", "Ansible inventory"),
        ("n[01-04],n07\n", "stdin", "host list"),
        ("n1\nn2\n", "stdin", "host list"),
        ("n1 n2 n3\n", "stdin", "host list"),
        ("10.0.0.1\n10.0.0.2\n", "stdin", "host list"),
    ],
)
def test_the_kind_is_seen(text: str, file: str, kind: str) -> None:
    assert read_foreign_inventory(text, file).kind == kind


@pytest.mark.parametrize(
    ("one", "other"), [("fd00::1", "FD00:0::1"), ("10.0.0.1", "::ffff:10.0.0.1"), ("GPU1.lab.", "gpu1.lab")]
)
def test_one_machine_in_two_spellings(one: str, other: str) -> None:
    found = nodes(f"[g]\na ansible_host={one}\nb ansible_host={other}\nc\n")
    assert list(found) == ["a", "c"]


@pytest.mark.parametrize(
    ("text", "id"),
    [
        ("n1:2222\nn2:2222\n", "import.unknown-kind"),
        ("rank 0=n1 slot=0\n", "import.unknown-kind"),
        ("dear colleagues, the hosts are!\n", "import.unknown-kind"),
        ("#!/usr/bin/env python\nprint('{}')\n", "import.program"),
        ("$ANSIBLE_VAULT;1.1;AES256\n6162\n", "import.vault"),
        ("plugin: amazon.aws.aws_ec2\nregions: [us-east-1]\n", "import.program"),
        ("name: ours\nnodes: {n1: {}}\n", "import.ours"),
        ("nodes: all\nstages: [{check: ping}]\n", "import.ours"),
        ("- hosts: all\n  tasks: []\n", "import.playbook"),
        ("# nothing\n", "import.empty"),
    ],
)
def test_what_cannot_be_told_or_must_not_be_done(text: str, id: str) -> None:
    found = problem(text, None)
    assert found.id == id


# Nothing is lost: generated inventories, read back.

LITERALS = st.recursive(
    st.sampled_from(["1", "0x1f", "1.5", "None", "True", "b'x'", "'a'", '"\\ud800"', "'\\udfff'", "1e999", "..."]),
    lambda inner: st.one_of(
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"[{','.join(parts)}]"),
        st.lists(inner, min_size=1, max_size=3).map(lambda parts: f"{{{','.join(parts)}}}"),
        st.tuples(inner, inner).map(lambda pair: f"{{{pair[0]}:{pair[1]}}}"),
    ),
    max_leaves=6,
)
VARIABLES = ["x", "ansible_port", "ansible_user", "ansible_host", "ansible_ssh_common_args", "gpus"]


@given(LITERALS, st.sampled_from(VARIABLES))
def test_any_value_of_an_ini_inventory_is_imported_or_refused(literal: str, name: str) -> None:
    for text in (f"gn1 {name}={shlex.quote(literal)}\n", f"gn1\n[all:vars]\n{name}={literal}\n"):
        try:
            found = read_foreign_inventory(f"[g]\n{text}", "theirs")
        except FilesWrong:
            continue
        assert parse_document(draft_text(draft_of_foreign_inventory(found, "x")), "ours.yml").problems == ()


NAMES = st.lists(
    st.from_regex(r"(gn|r[0-2]n|node-)[0-9]{1,3}(-ib)?", fullmatch=True), min_size=1, max_size=12, unique=True
)
USERS = st.none() | st.from_regex(r"[a-z_][a-z0-9_-]{0,7}", fullmatch=True)
PORTS = st.none() | st.integers(1, 65535)
ADDRESS = st.none() | st.from_regex(r"10\.[0-9]\.[0-9]\.[1-9]", fullmatch=True)
TEXT = st.text(st.characters(codec="utf-8", exclude_characters="\0\r\n"), max_size=20)


@given(NAMES, st.data())
def test_generated_hostfiles(names: list[str], data: st.DataObject) -> None:
    slots = {name: data.draw(st.integers(1, 16)) for name in names}
    style = data.draw(st.sampled_from(["{} slots={}", "{}:{}", "{}  slots = {} max_slots=32  # comment"]))
    found = nodes("".join(style.format(name, count) + "\n" for name, count in slots.items()))
    assert {name: len(node.gpus) for name, node in found.items()} == slots
    assert list(found) == names


@given(NAMES, st.data())
def test_generated_ansible_inventories(names: list[str], data: st.DataObject) -> None:
    addresses = dict(zip(names, data.draw(st.lists(ADDRESS, min_size=12, max_size=12)), strict=False))
    given_ = [address for address in addresses.values() if address]
    if len(set(given_)) < len(given_):
        addresses = dict.fromkeys(names)  # one machine twice is another test's
    users = {name: data.draw(USERS) for name in names}
    ports = {name: data.draw(PORTS) for name in names}
    values = {name: data.draw(TEXT) for name in names}
    body: dict[str, dict[str, object]] = {
        name: {
            key: value
            for key, value in (
                ("ansible_host", addresses[name]),
                ("ansible_user", users[name]),
                ("ansible_port", ports[name]),
                ("note", values[name]),
            )
            if value is not None
        }
        for name in names
    }
    found = nodes(json.dumps({"g": {"hosts": body}}), file="x.json")
    assert list(found) == names
    assert {n: node.ssh.user for n, node in found.items()} == users
    assert {n: node.ssh.port for n, node in found.items()} == ports
    assert {n: node.address for n, node in found.items()} == {n: addresses[n] or n for n in names}
    assert {n: node.vars.get("note") for n, node in found.items()} == values


def test_ten_thousand_hosts_come_out_as_a_few_ranges() -> None:
    text = "".join(f"gn{n:05d} ansible_host=10.{n // 65536}.{n // 256 % 256}.{n % 256}\n" for n in range(256, 10240))
    inventory, ours = imported(text)
    assert len(inventory.nodes) == 9984
    assert len(ours) < 4000
