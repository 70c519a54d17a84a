"""What is said of keys from other tools, of keys at the wrong level, and of a colon or space that is missing."""

from __future__ import annotations

import pytest

from runbook.files.inventory import examine_inventory
from runbook.files.playbook import examine_playbook
from runbook.files.suggestions import missing_colon_help, split_joined_key
from runbook.files.yaml_document import parse_document
from runbook.importers.ansible import _MEANINGS


def helps(text: str) -> dict[str, str | None]:
    """Messages and helps of an inventory, or of a playbook if it has stages."""
    document = parse_document(text, "x.yml")
    examined = (examine_playbook if "stages" in text else examine_inventory)(document)
    return {problem.message: problem.help for problem in examined.problems}


def help_of_key(text: str, key: str) -> str:
    found = [help for message, help in helps(text).items() if message.startswith(f"unknown key `{key}`")]
    assert len(found) == 1, helps(text)
    return found[0] or ""


@pytest.mark.parametrize(
    ("key", "value", "wanted"),
    [
        ("ansible_host", "10.0.0.1", "address: 10.0.0.1"),
        ("host", "10.0.0.1", "address: 10.0.0.1"),
        ("HostName", "10.0.0.1", "address: 10.0.0.1"),
        ("user", "ubuntu", "ssh: {user: ubuntu}"),
        ("ansible_user", "ubuntu", "ssh: {user: ubuntu}"),
        ("port", "22", "ssh: {port: 22}"),
        ("ssh.user", "ubuntu", "ssh: {user: ubuntu}"),
        ("ssh_port", "22", "ssh: {port: 22}"),
        ("IdentityFile", "~/.ssh/id", "ssh: {key: ~/.ssh/id}"),
        ("ansible_python_interpreter", "/usr/bin/python3", "python: /usr/bin/python3"),
        ("gpu_count", "8", "gpus: 8"),
        ("become", "true", "never becomes another user"),
        ("ansible_become_method", "sudo", "an Ansible setting"),
        ("ansible_ssh_pass", "x", "by key"),
        ("interface", "eth0", "NCCL_SOCKET_IFNAME"),
    ],
)
def test_keys_of_a_node(key: str, value: str, wanted: str) -> None:
    assert wanted in help_of_key(f"nodes: {{a: {{{key}: {value}}}}}", key)


@pytest.mark.parametrize(
    ("stage", "key", "wanted"),
    [
        ("check: ping, retries: 3", "retries", "only a launch has that, and this is a `check` stage"),
        ("shell: ls, env: {A: b}", "env", "only a launch has that, and this is a `shell` stage"),
        ("command: [a.py], retries: 3", "retries", "launch: {retries: 3}"),
        ("check: ping, count: 5", "count", "with: {count: 5}"),
        ("shell: ls, serial: 1", "serial", "`-f`"),
        ("check: ping, delegate_to: localhost", "delegate_to", "nodes of the inventory"),
    ],
)
def test_keys_of_a_stage_by_its_kind(stage: str, key: str, wanted: str) -> None:
    assert wanted in help_of_key(f"stages: [{{{stage}}}]", key)


@pytest.mark.parametrize("key", ["block", "include", "import_playbook"])
def test_what_has_no_place_here_is_told_once(key: str) -> None:
    assert list(helps(f"stages: [{{{key}: x}}]")) == [f"unknown key `{key}` in stage 1"]


def test_a_stage_that_is_named_like_a_check_is_shown_as_one() -> None:
    assert [*helps("stages: [{name: port}]").values()] == ["begin it with one of them, for example `- check: port`"]


@pytest.mark.parametrize("name", ["gpu[01:04]", "gpu[01..04]", "gpu{01..04}", "gpu(01-04)"])
def test_a_range_in_another_hand(name: str) -> None:
    assert [*helps(f"nodes: {{'{name}': {{}}}}").values()] == ['write `"gpu[01-04]"`']


@pytest.mark.parametrize(
    ("master", "wanted"),
    [
        ("a:29501", "{master: a, port: 29501}"),
        ("10.0.0.1", "{master: a}"),
        ("10.0.0.1:29500", "{master: a, port: 29500}"),
    ],
)
def test_a_master_by_its_endpoint(master: str, wanted: str) -> None:
    text = f"rendezvous: {{master: '{master}'}}\nnodes: {{a: {{address: 10.0.0.1}}, b: {{address: 10.0.0.2}}}}"
    assert [*helps(text).values()] == [f"write `rendezvous: {wanted}`"]


def test_whatever_import_understands_lint_explains() -> None:
    for key in _MEANINGS:
        assert help_of_key(f"nodes: {{a: {{{key}: x}}}}", key), key
        assert not help_of_key(f"nodes: {{a: {{{key}: x}}}}", key).startswith("known here"), key


@pytest.mark.parametrize(
    ("text", "key", "wanted"),
    [
        ("group_vars: {x: 1}\nnodes: {a: {}}", "group_vars", "groups: {NAME:"),
        ("interface: eth0\nnodes: {a: {}}", "interface", "network: {interface: eth0}"),
        ("master_port: 29500\nnodes: {a: {}}", "master_port", "rendezvous: {port: 29500}"),
        ("gpus: 8\nnodes: {a: {}}", "gpus", "defaults: {gpus: 8}"),
        ("groups: {g: {hosts: [a]}}\nnodes: {a: {}}", "hosts", "nodes: …"),
        ("groups: {g: {nodes: a, gpus: 8}}\nnodes: {a: {}}", "gpus", "defaults: {gpus: 8}"),
        ("nodes: {a: {ssh: {gpus: 8}}}", "gpus", "beside `ssh`"),
        ("nodes: {a: {network: {interface: eth0}}}", "network", "at the left margin"),
        ("hosts: all\nstages: [{check: ping}]", "hosts", "nodes: all"),
        ("stages: [{check: ping, ignore_errors: true}]", "ignore_errors", "on_failure: continue"),
        ("max_fail_percentage: 20\nstages: [{check: ping}]", "max_fail_percentage", "min_nodes: N"),
        ("stages: [{command: nvidia-smi}]", "command", "shell: nvidia-smi"),
        ("stages: [{command: [train.py]}]", "command", "launch: {command: …}"),
        ("stages: [{check: allreduce, min_bytes: 1K}]", "min_bytes", "with: {min_bytes: 1K}"),
        ("stages: [{check: ping, tag: perf}]", "tag", "did you mean `tags`?"),
    ],
)
def test_keys_elsewhere(text: str, key: str, wanted: str) -> None:
    assert wanted in help_of_key(text, key)


@pytest.mark.parametrize(
    "text", ["hosts: {a: {}}", "node: {a: {}}", "stages: [{chek: ping}]", "stages: [{command: x}]"]
)
def test_what_a_key_was_meant_to_be_is_not_missing_as_well(text: str) -> None:
    assert len(helps(text)) == 1


def test_a_stage_of_no_kind_is_told_how_to_begin() -> None:
    (help,) = helps("stages: [{name: x}]").values()
    assert help == "begin it with one of them, for example `- check: ping`"


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nodes: {a: {address:10.0.0.1}}", "a space is missing after the colon: `address: 10.0.0.1`"),
        ("rendezvous: {port 29500}\nnodes: {a: {}}", "a colon is missing: `port: 29500`"),
        ("nodes: {a: {gpus=8}}", "a key is followed by a colon and a space, not by `=`: `gpus: 8`"),
        ("nodes: {a: {gpus:[0,1]}}", "a space is missing after the colon: `gpus: …`"),
        ("nodes:\n  a {gpus: 1}\n", "a colon is missing: `a: {…`"),
        ("nodes:\n  a:{gpus: 1}\n", "a space is missing after the colon: `a: {…`"),
        ("nodes: {a: {env: {NCCL_DEBUG:INFO}}}", "a space is missing after the colon: `NCCL_DEBUG: INFO`"),
        ("name: x\nnodes\n  a: {}\n", "a colon is missing: `nodes:`"),
        ("name x\nnodes:\n  a: {}\n", "a colon is missing: `name: x`"),
        (
            "nodes:\n  a:\n    address:10.0.0.1\n    gpus: 2\n",
            "a space is missing after the colon: `address: 10.0.0.1`",
        ),
        (
            "nodes:\n  a:\n    gpus: 2\n    address:10.0.0.1\n",
            "a space is missing after the colon: `address: 10.0.0.1`",
        ),
        ("stages:\n  - check ping\n", "a colon is missing: `check: ping`"),
        ("nodes: {a: {gpus\uff1a8}}", "`\uff1a` is not a colon in YAML: `gpus: 8`"),
        ("name: x\nnodes\uff1a\n  a: {}\n", "`\uff1a` is not a colon in YAML: `nodes:`"),
        ("nodes: {a: {address: \u201c10.0.0.1\u201d}}", "YAML's own quotes are \" and '"),
        ("nodes: {a: }\n\u00a0gpus: 1\n", "the blanks before `gpus` are not plain spaces: retype the indentation"),
        ("stages:\n  - check:ping\n", "a space is missing after the colon: `check: ping`"),
    ],
)
def test_a_colon_or_a_space_too_few(text: str, wanted: str) -> None:
    assert list(helps(text).values()) == [wanted]


def test_the_place_is_that_of_the_key_without_its_colon() -> None:
    (problem,) = parse_document("name: x\nnodes\n  a: {address: 10.0.0.1}\n", "x.yml").problems
    assert problem.span is not None
    assert (problem.span.line, problem.span.column) == (2, 1)


@pytest.mark.parametrize("text", ["https://host", "word", "10.0.0.1", "", "-x 1"])
def test_what_is_no_key_and_value(text: str) -> None:
    assert split_joined_key(text) is None


@pytest.mark.parametrize("line", ["  a: b", "key:", "  # comment", "- x: 1"])
def test_lines_that_are_right(line: str) -> None:
    assert missing_colon_help(line) is None


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ('rendezvous: {port: "29500"}\nnodes: {a: {}}', "without quotes: 29500"),
        ('nodes: {a: {ssh: {port: "22"}}}', "without quotes: 22"),
        ('nodes: {a: {gpus: "8"}}', "without quotes: 8"),
        ('nodes: {a: {gpus: [0, "1"]}}', "without quotes: 1"),
        ('nodes: {a: {processes: "2"}}', "without quotes: 2"),
        ('nodes: {a: {gpus: "0,1"}}', "write it as a list: [0, 1]"),
        ('infiniband: {min_rate_gbps: "200"}\nnodes: {a: {}}', "without quotes: 200"),
        ("infiniband: {min_rate_gbps: 200 Gbps}\nnodes: {a: {}}", "only the number: 200"),
        ('stages: [{shell: x, expect: {exit: "0"}}]', "without quotes: 0"),
        ('stages: [{launch: {command: [x], retries: "2"}}]', "without quotes: 2"),
        ('nodes: {a: {gpus: "{{ n }}"}}', "inventories fill in no templates: write the value itself"),
        ("nodes: {a: {address: {{ ip }}}}", "inventories fill in no templates: write the value itself"),
        ("stages: [{shell: {{ x }}}]", 'quote it: "{{ … }}"'),
        ('nodes: {a: {ssh: {port: "99999"}}}', "for example `29500`"),
        ("nodes: {a: {gpus: eight}}", "for example `2` or `[0, 1]`"),
    ],
)
def test_numbers_given_as_text_and_templates(text: str, wanted: str) -> None:
    assert list(helps(text).values()) == [wanted]


@pytest.mark.parametrize(
    ("text", "key", "wanted"),
    [
        ("nodes:\nnode-a: {address: 10.0.0.1}\n", "node-a", "indent it: it belongs under `nodes:`"),
        ("nodes: {a: {}}\ndefaults:\ngpus: 8\n", "gpus", "indent it: it belongs under `defaults:`"),
        ("nodes: {a: {}}\nenv:\nNCCL_DEBUG: INFO\n", "NCCL_DEBUG", "indent it: it belongs under `env:`"),
        ("nodes: {a: {}}\ndefaults:\n  ssh:\n  jump: b\n", "jump", "indent it: it belongs under `ssh:`"),
        ("nodes:\nrendevous: {master: a}\n", "rendevous", "did you mean `rendezvous`?"),
        ("nodes: {a: {}}\nenv:\nnmae: x\n", "nmae", "did you mean `name`?"),
        ("nodes:\n  a: {}\n  env: {NCCL_DEBUG: INFO}\n", "NCCL_DEBUG", "`env:` is among the nodes"),
        ("nodes:\n  a: {}\n  network: {interface: ib0}\n", "interface", "belongs at the left margin"),
    ],
)
def test_a_key_at_the_wrong_margin(text: str, key: str, wanted: str) -> None:
    assert wanted in help_of_key(text, key)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("nodes: {bab: {}}\nrendezvous: {master: b\u0430b}\n", "CYRILLIC SMALL LETTER A (U+0430)"),
        ("nodes: {a: {}}\nenv: {NCCL_DEBUG\u200b: INFO}\n", "ZERO WIDTH SPACE (U+200B)"),
        ("nodes: {a: {address: 10.0.0\u30021}}\n", "write 10.0.0.1"),
        ("nodes: {a: {address: 10.0.0.1\u200b}}\n", "write 10.0.0.1"),
        ("nodes: {a: {gpus: 1\uff0c env: {}}}\n", "`\uff0c` means nothing to YAML: write `,`"),
        ("nodes: {a: {env: {X: \u201ca\u201d b: c}}}\n", '`\u201c` means nothing to YAML: write `"`'),
    ],
)
def test_a_sign_of_another_keyboard(text: str, wanted: str) -> None:
    assert wanted in " ".join(filter(None, helps(text).values()))


def test_such_a_sign_in_a_comment_or_in_quotes_is_not_blamed() -> None:
    text = "name: 'a\uff0cb'  # \uff0c\nnodes: {a: {gpus: 1 python: x}}\n"
    assert "means nothing" not in str(helps(text))
