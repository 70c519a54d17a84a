"""Whatever a node calls its interfaces, tables and paths: a remedy that is pasted runs the command that it shows, and no other."""

from __future__ import annotations

import json
import re
import shlex
import string
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from syntax_trees import SOURCE

from runbook.firewall.collected_rules import Evidence
from runbook.firewall.evaluate import Flow
from runbook.firewall.explain_node import explain_leg, find_arp_stop
from runbook.firewall.front_ends import firewalld_allow_commands, firewalld_allow_out_commands, parse_firewalld_zones
from runbook.model.command_quoting import NFT_LIST_COMMAND, netsh_name, nft_words, powershell_word, shell_word
from runbook.model.remedy import Remedy
from runbook.model.safe_text import visible_text

from .commands import holes

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow], max_examples=200)
PIECES = (
    "eth0", "a b", "$(touch hit)", "`touch hit`", "; touch hit", "&& touch hit", "| sh", "> hit", "'", '"', "\\", "$HOME", "!!",
    "*", "?", "~", "#", "-rf", "\n", "\r", "\t", "\0", "\x1b[31m", "\u202e", "\u200b", "\udcff", "%PATH%", "’", "{a,b}", "=",
    "; on node-b: sudo reboot", "flush ruleset", "漢字", "é",
)  # fmt: skip
NAMES = st.lists(st.sampled_from(PIECES) | st.text(string.printable, max_size=4), min_size=1, max_size=4).map("".join)
ARP, DROP = "arp", {"drop": None}


# The functions.


@SLOW
@given(NAMES)
def test_a_name_is_one_word_of_a_shell(name: str) -> None:
    typed = shell_word(name)
    assert visible_text(typed) == typed
    assert "`" not in typed
    assert len(shlex.split(f"sudo ip link show {typed} up")) == 6
    if typed.isascii() and name.isprintable() and "`" not in name and "; on " not in name:
        assert shlex.split(typed) == [name]


@settings(SLOW, max_examples=40)
@given(st.lists(NAMES, min_size=1, max_size=5))
def test_a_real_shell_takes_it_as_one_word(names: list[str]) -> None:
    line = "printf '%s\\n' " + " ".join(map(shell_word, names))
    done = subprocess.run(["sh", "-c", line], capture_output=True, check=False, env={"HOME": "/nowhere"})
    told = done.stdout.decode("utf-8", "surrogateescape")
    wanted = [shlex.split(shell_word(name))[0].replace("~/", "/nowhere/", 1) if shell_word(name).startswith("~/") else shlex.split(shell_word(name))[0] for name in names]  # fmt: skip
    assert (done.stderr, told) == (b"", "".join(f"{one}\n" for one in wanted))


def test_ordinary_names_stand_as_they_are() -> None:
    for name in (
        "eth0",
        "mlx5_0",
        "/var/tmp/x.log",
        "10.0.0.1",
        "fd00::1",
        "node-a",
        "~/.ssh/id_ed25519",
        "a@b",
        "0,1",
    ):
        assert shell_word(name) == name
    assert shell_word("Two words") == "'Two words'"


@SLOW
@given(st.lists(NAMES, min_size=1, max_size=4))
def test_what_nft_would_read_as_more_than_a_name_is_not_typed(names: list[str]) -> None:
    typed = nft_words("add", "rule", *names)
    assert typed is None or typed.split(" ") == ["add", "rule", *names]
    assert typed is None or re.fullmatch(r"[\w/. -]+", typed)


@SLOW
@given(NAMES)
def test_powershell_takes_it_as_one_word(name: str) -> None:
    typed = powershell_word(name)
    bare = re.fullmatch(r"[A-Za-z0-9_.:-]+", typed)
    inside = typed[1:-1]
    assert bare or (typed[0] == typed[-1] == "'" and not re.search("['‘’‚‛]", re.sub("(['‘’‚‛])\\1", "", inside)))
    assert visible_text(typed) == typed


@SLOW
@given(NAMES)
def test_a_rule_of_windows_is_named_or_not(name: str) -> None:
    assert re.fullmatch(r'"[^"$`%&|<>^!\x00-\x1f]*"', netsh_name(name))


# Everything in the package that is a command: no value goes in but through those functions.

NUMBERS = re.compile(
    r"(?:\w+\.)*(?:port|\w*pid|number|handle|prefixlen|netmask|length|cause)$|number\[1\]$|rule\.index \+ 1$|1500 if mtu|"
    r"','\.join\(map\(str, numbers\)\)$|name_list_text\(|gpu_numbers_text\(|ports\[0\]$|errors\[0\]\['port'\]$|wanted\.partition\('/'\)\[2\]|"
    r"'\w*'$|None$|now\.prefixes\[0\]\.partition\('/'\)\[2\]|next\(\(one\['pid'\] "
)
OURS = {
    # what is made of checked parts beside the command itself
    "firewall/explain_connection.py": {"', '.join(RULE_READ_COMMANDS)", "2 * full[1]"},
    "firewall/collected_rules.py": {
        "policy.typed",
        "way",
        "where",
        "RULE_LIST_COMMANDS.get(whose[0], whose[0] + '-save')",
    },
    "firewall/explain_node.py": {"base.engine", "table", "words", "where", "match"},
    "firewall/front_ends.py": {
        *("where", "peer", "part", "protocol", "rules"),
        "' '.join(_rich_rule_options('source', members, ports, protocol, first=first))",
    },
    "firewall/remedies.py": {
        *("how", "address", "port", "state", "table", "where", "peers", "match", "protocol", "wanted.protocol"),
        "base.engine",
    },
    "parsers/host_resources.py": {"remedy"},
    "checks/bandwidth/adapters.py": {"'clsact' if 'clsact' in tc.get('qdisc', '') else 'ingress'"},
    "checks/ping/host_names.py": {"append"},
    "checks/network/routing.py": {
        "ip_family_switch(target)",
        "ip_family_switch(ipaddress.ip_address(address))",
        "quoted_route(words)",
    },
    "checks/ping/routes.py": {
        *(
            "prefix",
            "ip_family_switch(network)",
            "ip_family_switch(target)",
            "quoted_route(route)",
            "ipaddress.ip_interface(prefix).network",
            "mine.ip",
        ),
        "f'{mine.ip}/{network.prefixlen}'",
    },
    "checks/ping/no_answer.py": {
        *("''", "quoted_route(route)", "family", "policy.typed", "ipaddress.ip_interface(mine).network"),
        "ip_family_switch(address)",
        "':'.join(['02', *(digits[at:at + 2] for at in range(0, 10, 2))])",
    },
    "checks/reach/gpu_faults.py": {"' '.join(map(shell_word, sorted(pids)))"},
    "checks/reach/gpus.py": {"words"},
    "checks/reach/torch.py": {"node.interpreter_typed"},
    "transport/session.py": {"quoted"},
    "transport/slurm.py": {"what"},
    "transport/ssh_errors.py": {"rename", "jump", "trust", "_quoted_host_entry(target.entry)"},
}
SENTENCES = re.compile(
    r"\S+ (?:on \{\}|does not return|stopped|ended with|fails|refuses|crashed|default policy|rule in|rule \{\}|chain \{\}|"
    r"-M do -s \{\} from|neigh on|\{\} on \{\}: From|\{\}: )|runbook (?:\{\}|serves )"
)
"""What only begins like a command."""
SCRIPTS = ("launch/", "files/environment_values.py", "transport/bootstrap.py", "report/run_text.py", "cli/argument_parser.py", "collect/local_files.py", "importers/survey_facts.py")  # fmt: skip
FUNCTIONS = ("shell_word(", "nft_words(", "powershell_word(", "netsh_name(")


@SOURCE
def test_every_value_in_a_command_is_quoted() -> None:
    found = list(holes())
    assert sum(hole.source.startswith(FUNCTIONS) for hole in found) > 150  # the search finds them
    raw = [
        f"{hole.file}:{hole.line}: {{{hole.source}}} in `{hole.command}`"
        for hole in found
        if not hole.source.startswith(FUNCTIONS)
        and not NUMBERS.match(hole.source)
        and hole.source not in OURS.get(hole.file, ())
        and not SENTENCES.match(hole.command)
        and not hole.file.startswith(SCRIPTS)
    ]
    assert raw == []


# Remedies as they come out.


def ok(stdout: str) -> dict[str, Any]:
    return {"status": "ok", "rc": 0, "stdout": stdout, "stderr": "", "flavour": "nft"}


def evidence(**tools: Mapping[str, Any]) -> Evidence:
    empty = json.dumps({"nftables": [{"metainfo": {"version": "1.0.6"}}]})
    records: dict[str, Any] = {"nft-json": ok(empty), "iptables-save": ok(""), "ip6tables-save": ok("")}
    records |= {name.replace("_", "-"): record for name, record in tools.items()}
    records["route 10.0.0.1"] = ok('[{"dst": "10.0.0.1", "dev": "eth0"}]')
    return Evidence.of({"tools": records, "facts": {"legacy_tables": {"ip": [], "ip6": []}}})


def ruleset(family: str, table: str, chain: str, policy: str, handle: object) -> Evidence:
    at = {"family": family, "table": table}
    base = {**at, "name": chain, "handle": 1, "type": "filter", "hook": "input", "prio": 0, "policy": policy}
    items: list[Any] = [{"table": {"family": family, "name": table, "handle": 1}}, {"chain": base}]
    if policy == "accept":
        items.append({"rule": {**at, "chain": chain, "handle": handle, "expr": [DROP]}})
    return evidence(nft_json=ok(json.dumps({"nftables": items})))


@SLOW
@given(NAMES, NAMES, st.sampled_from(["accept", "drop"]), st.integers(1, 99) | NAMES)
def test_tables_and_chains_of_nft(table: str, chain: str, policy: str, handle: object) -> None:
    told = explain_leg(ruleset("inet", table, chain, policy, handle), Flow("10.0.0.1", "10.0.0.2", 29500))
    if told.allow == NFT_LIST_COMMAND or not told.allow:
        return
    words = shlex.split(told.allow)
    verb = ["insert"] if policy == "accept" else ["add"]
    place = ["position", str(handle)] if policy == "accept" else []
    rest = ["ip", "saddr", "10.0.0.1", "tcp", "dport", "29500", "accept"]
    assert words == ["sudo", "nft", *verb, "rule", "inet", table, chain, *place, *rest]
    assert not re.search(r"[;{}\s\"'`$]", table + chain + "".join(place))


def test_plain_names_of_nft_are_still_typed() -> None:
    told = explain_leg(ruleset("inet", "my-table", "a.b/c_d", "accept", 7), Flow("10.0.0.1", "10.0.0.2", 29500))
    assert told.allow.startswith("sudo nft insert rule inet my-table a.b/c_d position 7 ")


@SLOW
@given(NAMES, NAMES)
def test_tables_of_arp(table: str, chain: str) -> None:
    stop = find_arp_stop(ruleset(ARP, table, chain, "accept", 3), "eth0", "10.0.0.2", "10.0.0.1")
    if stop is not None and stop.remedy != NFT_LIST_COMMAND:
        assert shlex.split(stop.remedy)[:9] == ["sudo", "nft", "insert", "rule", ARP, table, chain, "position", "3"]


@SLOW
@given(NAMES)
def test_zones_of_firewalld(zone: str) -> None:
    status = parse_firewalld_zones(f"{zone} (default, active)\n  target: default\n  interfaces: eth0\n")
    for command in firewalld_allow_commands(status, "eth0", ("10.0.0.1",), ((1, 2),), "tcp", first=False):
        words = shlex.split(command)
        assert words[:2] == ["sudo", "firewall-cmd"]
        assert len(words) in (3, 5)
    for command in firewalld_allow_out_commands(zone, ("10.0.0.1",), ((1, 2),), "tcp"):
        assert len(shlex.split(command)) in (3, 5)


@SLOW
@given(NAMES)
def test_no_name_makes_a_command_for_another_node(name: str) -> None:
    command = f"sudo ip link set dev {shell_word(name)} mtu 1500"
    assert [where for where, _ in Remedy.run(command).typed("node-a")] == ["node-a"]
    assert [where for where, _ in Remedy.run(command, node="node-a").typed("node-b")] == ["node-a"]


@pytest.mark.parametrize("name", PIECES)
def test_hosts_file(name: str) -> None:
    from runbook.checks.ping.host_names import hosts_file_command

    assert len(shlex.split(hosts_file_command(name, "10.0.0.1", []))) == 7  # echo LINE | sudo tee -a FILE: `|` counts
    both = shlex.split(hosts_file_command(name, "10.0.0.1", [[2, "x"]]))
    assert both[:4] == ["sudo", "sed", "-i", "-E"]
    assert both[5:7] == ["/etc/hosts", "&&"]
