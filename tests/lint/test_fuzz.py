"""Whatever stands in a file, lint ends with findings in the file's own bounds, and never with a traceback."""

from __future__ import annotations

import copy
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from profiles import examples

from runbook.files.yaml_document import read_document
from runbook.lint.findings import REPORT_FORMATS
from runbook.lint.run import lint

HARD = examples(200, suppress_health_check=[HealthCheck.data_too_large])

INVENTORY: dict[str, Any] = {
    "name": "fuzz",
    "order": "name",
    "rendezvous": {"master": "gn01", "address": "10.0.1.1", "port": 29500, "backend": "nccl"},
    "network": {"interface": "ib0", "ports": ["29500-29510", 40000]},
    "infiniband": {"hca": "mlx5_0", "min_rate_gbps": 200},
    "env": {"NCCL_DEBUG": "WARN", "NCCL_IB_DISABLE": "1", "TOKEN": {"env": "TOKEN"}},
    "defaults": {
        "connection": "ssh",
        "ssh": {"user": "ubuntu", "connect_timeout": "10s"},
        "gpus": 8,
        "vars": {"d": "/d"},
    },
    "nodes": {
        "gn[01-04]": {"address": "10.0.1.[1-4]", "env": {"NCCL_SOCKET_IFNAME": "^lo"}},
        "win": {"address": "10.0.1.9", "shell": "bat", "gpus": [0, 2], "activate": "conda activate x"},
        "here": {"connection": "local", "processes": 2, "python": "/usr/bin/python3", "workdir": "~/x"},
    },
    "groups": {"rack1": {"nodes": ["gn[01-02]", "win"], "defaults": {"ssh": {"jump": "bastion"}}}},
}
PLAYBOOK: dict[str, Any] = {
    "name": "fuzz",
    "inventory": "inventory.yml",
    "nodes": "all:!here",
    "vars": {"iterations": 20, "size": "1G"},
    "stages": [
        {"check": "ping", "when": "node_count > 1", "tags": ["a", "b"]},
        {"check": "port", "timeout": "20s", "nodes": "rack1"},
        {"name": "sweep", "check": "allreduce", "with": {"max_bytes": "{{ size }}", "iterations": "{{ iterations }}"}},
        {"shell": "ls {{ d }}", "expect": {"exit": 0, "stdout": "x+"}, "on_failure": "continue"},
        {
            "launch": {
                "launcher": "torchrun",
                "command": ["train.py", "--n", 3, "{{ data }}"],
                "env": {"A": "{{ node }}", "B": {"env": "B"}},
                "workdir": "/srv",
                "retries": 2,
                "start_timeout": "2m",
            }
        },
    ],
}
WEIRD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**20),
    st.floats(),
    st.sampled_from(
        [
            "",
            " ",
            "all",
            "!",
            "a:b",
            "[1-",
            "gn[01-99]",
            "{{ x }}",
            "{{ nodes }}",
            "{{",
            "0644",
            "NO",
            "-1",
            "1G",
            "10s",
            "*",
        ]
    ),
    st.text(max_size=12),
    st.just({}),
    st.just([]),
    st.lists(st.sampled_from(["a", 1, None, {}]), max_size=3),
    st.dictionaries(
        st.sampled_from(["env", "nodes", "check", "x", "gpus"]), st.sampled_from([1, "a", None]), max_size=2
    ),
)


def places(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [at, *(place for key, one in inner for place in places(one, (*at, key)))]


def changed(data: st.DataObject, whole: dict[str, Any]) -> Any:
    """A copy with a few places replaced, removed, renamed or doubled."""
    copied: Any = copy.deepcopy(whole)
    for _ in range(data.draw(st.integers(0, 4))):
        place = data.draw(st.sampled_from(places(copied)))
        if not place:
            continue
        around: Any = copied
        for key in place[:-1]:
            around = around[key]
        match data.draw(st.sampled_from(["replace", "remove", "rename", "add"])):
            case "replace":
                around[place[-1]] = data.draw(WEIRD)
            case "remove":
                del around[place[-1]]
            case "rename" if isinstance(around, dict):
                around[data.draw(st.sampled_from(["nodse", "gpu", "x y", "", "all", "0644", "é"]))] = around.pop(
                    place[-1]
                )
            case _:
                if isinstance(around, list):
                    around.append(data.draw(WEIRD))
                else:
                    around[data.draw(st.text(max_size=5))] = data.draw(WEIRD)
    return copied


def check(folder: str) -> None:
    report = lint([folder])
    for finding in report.findings:
        lines = read_document(finding.span.file).lines
        assert 1 <= finding.span.line <= max(1, len(lines))
        assert finding.span.column >= 1
        assert finding.span.length >= 1
        assert finding.message
    for write in REPORT_FORMATS.values():
        assert write(report)
    assert len(json.loads(REPORT_FORMATS["json"](report))["findings"]) == len(report.findings)


@pytest.mark.slow
@HARD
@given(st.data())
def test_changed_files_never_break_lint(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for name, whole in (("inventory.yml", INVENTORY), ("playbook.yml", PLAYBOOK)):
            text = yaml.safe_dump(changed(data, whole), sort_keys=False, allow_unicode=True)
            Path(folder, name).write_text(text, encoding="utf-8")
        try:
            check(folder)
        except Exception:
            for name in ("inventory.yml", "playbook.yml"):
                print(Path(folder, name).read_text(encoding="utf-8"))
            raise


@pytest.mark.slow
@HARD
@given(st.data())
def test_damaged_text_never_breaks_lint(data: st.DataObject) -> None:
    texts = {
        name: yaml.safe_dump(whole, sort_keys=False)
        for name, whole in (("inventory", INVENTORY), ("playbook", PLAYBOOK))
    }
    with tempfile.TemporaryDirectory() as folder:
        for name, text in texts.items():
            raw = text.encode()
            for _ in range(data.draw(st.integers(0, 3))):
                at, end = sorted((data.draw(st.integers(0, len(raw))), data.draw(st.integers(0, len(raw)))))
                junk = data.draw(
                    st.sampled_from(
                        [b"", b"\t", b"# noqa: x", b"&a ", b"*a ", b"<<: ", b": ", b"- ", b'"', b"\xff", b"{{", b"\n"]
                    )
                )
                raw = raw[:at] + junk + raw[min(end, at + 20) :]
            path = Path(folder, "inventories" if name == "inventory" else "playbooks")
            path.mkdir()
            (path / f"{name}.yml").write_bytes(raw)
        check(folder)


@pytest.mark.slow
@HARD
@given(st.sampled_from(places(INVENTORY)), WEIRD)
def test_a_value_that_loading_refuses_brings_no_findings_about_its_default(place: tuple[Any, ...], value: Any) -> None:
    """What else is found then was found in the sound file as well, or stands at the place itself."""
    if not place or isinstance(value, dict):
        return  # a mapping in place of `defaults` really takes its keys away
    wrong = copy.deepcopy(INVENTORY)
    around: Any = wrong
    for key in place[:-1]:
        around = around[key]
    around[place[-1]] = value

    def found(data: Any) -> tuple[bool, dict[str, set[str]]]:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "inventory.yml")
            path.write_text(yaml.safe_dump(data, sort_keys=False), encoding="utf-8")
            document = read_document(path)
            refused = any(finding.rule.always for finding in lint([str(path)]).findings)
            keys: dict[str, set[str]] = {}
            for finding in lint([str(path)]).findings:
                here = {str(keys[0]) for keys in document.spans if keys and document.span(*keys) == finding.span}
                here |= {str(keys[0]) for keys in document.key_spans if document.key_span(*keys) == finding.span}
                keys.setdefault(finding.rule.id, set()).update(here)
            return refused, keys

    refused, now = found(wrong)
    _, before = found(INVENTORY)
    if refused:
        extra = {rule: where for rule, where in now.items() if rule not in before and not rules_of_loading(rule)}
        assert all(str(place[0]) in where for where in extra.values()), extra


def rules_of_loading(rule: str) -> bool:
    from runbook.lint.findings import lint_rules

    return lint_rules()[rule].always or rule.startswith(("pattern.", "yaml."))
