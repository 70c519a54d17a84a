"""Keys of Ansible, ssh and torchrun, and keys at the wrong level: what to write in their place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from runbook.files.suggestions import did_you_mean, nearest, spaced
from runbook.files.yaml_document import Keys

Path = tuple[str, ...]


class Advice(NamedTuple):
    """What to write for an unknown key; `key` is the key of the same mapping that was meant, if it is one of it."""

    help: str | None
    key: str | None


_NO_ROOT = "runbook never becomes another user: log in as the one that owns the job, `ssh: {user: …}`"
_NO_PASSWORD = "passwords are never used: log in by key, `ssh: {key: ~/.ssh/id_ed25519}`, or by an agent"
_NO_LOOPS = "there are no loops: write one stage for each"
_REMOVE = "remove it: nothing here does that"
_GO_ON = "`when_bad: drop` goes on without nodes that failed, as long as `min_nodes: N` are left"

_SSH: Mapping[str, Path] = {
    **dict.fromkeys(("ansibleuser", "ansiblesshuser", "remoteuser", "username", "login", "loginname"), ("user",)),
    **dict.fromkeys(("ansibleport", "ansiblesshport", "sshport"), ("port",)),
    **dict.fromkeys(
        (
            *("ansiblesshprivatekeyfile", "ansibleprivatekeyfile", "privatekeyfile", "privatekey", "identityfile"),
            *("keyfile", "identity", "sshkey", "keypath", "sshkeyfile"),
        ),
        ("key",),
    ),
    **dict.fromkeys(("proxyjump", "jumphost", "bastion", "proxy", "gateway"), ("jump",)),
    **dict.fromkeys(("stricthostkeychecking", "hostkeychecking", "ansiblehostkeychecking"), ("host_keys",)),
    **dict.fromkeys(("ansibletimeout", "ansiblesshtimeout", "connecttimeout", "timeout"), ("connect_timeout",)),
}
"""Every word without its case, `_` and `-`."""

_NODE: Mapping[str, Path | str] = {
    **{word: ("ssh", *path) for word, path in _SSH.items()},
    **dict.fromkeys(
        (
            "ansiblehost",
            "ansiblesshhost",
            "host",
            "hostname",
            "ip",
            "ipaddress",
            "ipaddr",
            "ipv4",
            "addr",
            "dns",
            "fqdn",
        ),
        ("address",),
    ),
    **dict.fromkeys(("ansibleconnection", "transport"), ("connection",)),
    **dict.fromkeys(("ansiblepythoninterpreter", "pythoninterpreter", "interpreter", "pythonpath"), ("python",)),
    **dict.fromkeys(("ansibleshelltype", "ansibleshellexecutable", "shelltype"), ("shell",)),
    **dict.fromkeys(("ansibleremotetmp", "remotetmp", "chdir", "cwd", "dir", "directory"), ("workdir",)),
    **dict.fromkeys(("environment", "envvars"), ("env",)),
    **dict.fromkeys(("slots", "numgpus", "gpucount", "ngpus", "nprocpernode", "gpuspernode", "devices"), ("gpus",)),
    **dict.fromkeys(("nproc", "ranks", "workers", "numprocesses"), ("processes",)),
    **dict.fromkeys(("venv", "conda", "condaenv", "virtualenv", "setup"), ("activate",)),
    **dict.fromkeys(("variables", "hostvars"), ("vars",)),
    **dict.fromkeys(("group", "groups"), "groups belong at the left margin: `groups: {NAME: {nodes: [NODE, …]}}`"),
    **dict.fromkeys(("interface", "ifname", "nic", "iface"), "for one node: `env: {NCCL_SOCKET_IFNAME: …}`"),
    **dict.fromkeys(("become", "becomeuser", "becomemethod", "sudo", "sudouser"), _NO_ROOT),
    **dict.fromkeys(("password", "pass", "ansiblepassword", "ansiblesshpass", "sshpass"), _NO_PASSWORD),
}
_GROUP: Mapping[str, Path | str] = {
    **dict.fromkeys(("hosts", "host", "members", "node"), ("nodes",)),
    **dict.fromkeys(("vars", "groupvars", "variables"), ("defaults", "vars")),
    "children": "a group holds nodes, no groups: list the nodes of all of them under `nodes:`",
    **{
        word: ("defaults", *path) if isinstance(path, tuple) else path for word, path in _NODE.items() if word != "host"
    },
}
_INVENTORY: Mapping[str, Path | str] = {
    **{word: ("defaults", *path) for word, path in _NODE.items() if isinstance(path, tuple) and path != ("address",)},
    **dict.fromkeys(("become", "becomeuser", "becomemethod", "sudo", "sudouser"), _NO_ROOT),
    **dict.fromkeys(("password", "ansiblepassword", "ansiblesshpass", "sshpass"), _NO_PASSWORD),
    **dict.fromkeys(("hosts", "host", "node", "machines", "servers", "workers", "all", "hostlist"), ("nodes",)),
    **dict.fromkeys(("children", "group", "hostgroups"), ("groups",)),
    "groupvars": "a group's values belong into it: `groups: {NAME: {nodes: …, defaults: {vars: …}}}`",
    "hostvars": "a node's values belong into it: `nodes: {NAME: {vars: …}}`",
    "vars": ("defaults", "vars"),
    "variables": ("defaults", "vars"),
    "globals": ("defaults",),
    **dict.fromkeys(("masteraddr", "masteraddress", "masterip", "mainaddr"), ("rendezvous", "address")),
    **dict.fromkeys(("masterport", "rdzvport", "mainport"), ("rendezvous", "port")),
    "rdzvendpoint": "`rendezvous: {address: …, port: …}`",
    **dict.fromkeys(("rdzv", "masternode"), ("rendezvous", "master")),
    **dict.fromkeys(("ifname", "nic", "iface", "ncclsocketifname"), ("network", "interface")),
    **dict.fromkeys(("ib", "rdma"), ("infiniband",)),
    "stages": "stages belong into a playbook: a file of its own",
    "tasks": "tasks belong into a playbook, as `stages:`: a file of its own",
}
_PLAYBOOK: Mapping[str, Path | str] = {
    **dict.fromkeys(("hosts", "host", "targets", "node", "limit"), ("nodes",)),
    **dict.fromkeys(("tasks", "steps", "stage", "checks", "plays", "jobs", "pretasks", "posttasks"), ("stages",)),
    **dict.fromkeys(("variables", "extravars"), ("vars",)),
    **dict.fromkeys(("varsfiles", "varsfile"), "name the file on the command line: -e @FILE"),
    **dict.fromkeys(("environment", "env"), "`env:` belongs into the inventory, or into a stage's `launch: {env: …}`"),
    **dict.fromkeys(("become", "becomeuser", "becomemethod", "remoteuser"), _NO_ROOT),
    **dict.fromkeys(
        ("roles", "handlers", "collections", "importplaybook"), "there are none here: write out the stages"
    ),
    **dict.fromkeys(("gatherfacts", "strategy", "serial", "forks"), _REMOVE + "; `-f` says how many nodes at once"),
    **dict.fromkeys(("maxfailpercentage", "anyerrorsfatal"), _GO_ON),
    "inventories": ("inventory",),
    "connection": "how a node is reached belongs into the inventory: `nodes: {NAME: {connection: local}}`",
}
_STAGE: Mapping[str, Path | str] = {
    **dict.fromkeys(("cmd", "run", "bash", "sh", "exec", "script", "raw", "ansiblebuiltinshell"), ("shell",)),
    **dict.fromkeys(("command", "ansiblebuiltincommand"), ("shell",)),
    **dict.fromkeys(("task", "step", "test", "type", "module", "action"), ("check",)),
    **dict.fromkeys(("hosts", "host", "delegateto", "limit", "node"), ("nodes",)),
    **dict.fromkeys(("args", "arguments", "params", "parameters", "options", "vars"), ("with",)),
    **{name.replace("_", ""): ("with", name) for name in ("min_bytes", "min_gbps")},  # near to min_nodes
    **dict.fromkeys(("tag",), ("tags",)),
    **dict.fromkeys(("if", "condition"), ("when",)),
    **dict.fromkeys(("ignoreerrors", "continueonerror", "ignoreunreachable"), "write `on_failure: continue`"),
    **dict.fromkeys(("maxfailpercentage", "anyerrorsfatal"), _GO_ON),
    **dict.fromkeys(
        ("failedwhen", "changedwhen", "until"), "what must come out of a command: `expect: {stdout: regex}`"
    ),
    **dict.fromkeys(("rc", "returncode", "exitcode"), ("expect", "exit")),
    **dict.fromkeys(("output", "regex"), ("expect", "stdout")),
    **dict.fromkeys(("environment", "envvars"), ("launch", "env")),
    **dict.fromkeys(("become", "becomeuser", "sudo"), _NO_ROOT + " in the inventory"),
    **dict.fromkeys(("loop", "withitems", "loopcontrol", "withsequence", "withdict"), _NO_LOOPS),
    **dict.fromkeys(
        ("register", "notify", "listen"), "a stage hands nothing on: put what depends on it in its `shell:`"
    ),
    **dict.fromkeys(("runonce", "delegatefacts", "nolog", "checkmode", "async", "poll", "throttle"), _REMOVE),
}
_LAUNCH: Mapping[str, Path | str] = {
    **dict.fromkeys(("cmd", "script", "program", "args", "run", "entrypoint"), ("command",)),
    **dict.fromkeys(("environment", "envvars"), ("env",)),
    **dict.fromkeys(("chdir", "cwd", "dir", "directory"), ("workdir",)),
    **dict.fromkeys(("maxrestarts", "restarts", "retry"), ("retries",)),
    **dict.fromkeys(
        ("nprocpernode", "nnodes", "gpus", "processes"), "how many ranks a node has belongs into the inventory"
    ),
}


def _words(kind: str, keys: Keys) -> Mapping[str, Path | str]:
    """What is known from elsewhere, for the mapping at `keys`."""
    if kind == "playbook":
        if keys[:1] != ("stages",):
            return _PLAYBOOK if not keys else {}
        return _STAGE if len(keys) == 2 else _LAUNCH if keys[2:] == ("launch",) else {}
    if not keys:
        return _INVENTORY
    if keys[-1] == "ssh":
        return {**_SSH, **dict.fromkeys(("hostname", "address", "ansiblehost", "ip"), ("host",))}
    if keys[0] == "groups" and len(keys) == 2:
        return _GROUP
    if keys == ("defaults",) or (keys[0] == "nodes" and len(keys) == 2) or (keys[0] == "groups" and len(keys) == 3):
        return _NODE
    return {}


def advise(name: str, value: object, keys: Keys, kind: str, rule: Mapping[str, Any], root: Mapping[str, Any]) -> Advice:
    """What to write for the unknown key `name` with this value, in the mapping at `keys` that `rule` describes."""
    known = list(rule.get("properties", {}))
    joined = spaced(name)
    if joined is not None:
        key = joined[0]
        meant = key if key in known else advise(key, None, keys, kind, rule, root).key
        return Advice(joined[1], meant)
    target = _words(kind, keys).get(re.sub("[^a-z0-9]", "", name.lower()))
    if isinstance(target, str):
        return Advice(target, None)
    if target == ("shell",) and isinstance(value, list):
        target = ("launch", "command")
    if target is None:
        below = [path for path in _below(rule, root) if path[-1] == name or path == tuple(name.split("."))]
        below += [path for path in _below(rule, root) if "_".join(path) == name]
        target = min(below, key=len, default=None)
    near = nearest(name, known)
    if target is not None and target != (near,):
        verb = "it belongs inside:" if kind == "playbook" and len(target) > 1 else "write"
        return Advice(f"{verb} `{written(target, value)}`", target[0])
    if near is not None:
        return Advice(f"did you mean `{near}`?", near)
    above = _above(name, keys, root)
    if above is not None:
        return Advice(above, None)
    if name.startswith("ansible_"):
        return Advice("an Ansible setting with no place here; variables of your own belong under `vars:`", None)
    if kind == "playbook" and len(keys) == 2:
        return Advice(f"an argument of a check belongs under `{written(('with', name), value)}`", None)
    return Advice(did_you_mean(name, known), None)


def written(path: Sequence[str], value: object) -> str:
    """`ssh: {user: ubuntu}`: the value itself where it is short, `…` in its place where it is not."""
    shown = "…"
    if isinstance(value, bool):
        shown = str(value).lower()
    elif isinstance(value, int | float | str) and value != "" and len(str(value)) <= 40:
        shown = str(value)
    for key in reversed(path[1:]):
        shown = f"{{{key}: {shown}}}"
    return f"{path[0]}: {shown}"


def _below(rule: Mapping[str, Any], root: Mapping[str, Any], before: Path = ()) -> Iterator[Path]:
    """The keys inside the known keys of a mapping; what has names of the user's own is not looked into."""
    for name, inner in _properties(rule, root).items():
        if before:
            yield (*before, name)
        if len(before) < 2:
            yield from _below(inner, root, (*before, name))


def _above(name: str, keys: Keys, root: Mapping[str, Any]) -> str | None:
    """Where a key stands that was put too deep."""
    rules = [root]
    for key in keys:
        rules.append(_inside(rules[-1], key, root))
    for depth in range(len(keys) - 1, -1, -1):
        candidates = [(one,) for one in _properties(rules[depth], root)] + list(_below(rules[depth], root))
        path = min((one for one in candidates if one[-1] == name), key=len, default=None)
        if path is not None:
            where = "at the left margin" if depth == 0 else f"beside `{keys[depth]}`"
            return f"it belongs {where}: `{written(path, None)}`"
    return None


def _inside(rule: Mapping[str, Any], key: str | int, root: Mapping[str, Any]) -> Mapping[str, Any]:
    rule = _resolved(rule, root)
    found = rule.get("items", {}) if isinstance(key, int) else rule.get("properties", {}).get(key)
    if found is None:
        found = rule.get("additionalProperties", {})
    return _resolved(found, root) if isinstance(found, Mapping) else {}


def _properties(rule: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    found: Mapping[str, Any] = _resolved(rule, root).get("properties", {})
    return found


def _resolved(rule: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in rule:
        rule = {**root["$defs"][rule["$ref"].rpartition("/")[2]], **{k: v for k, v in rule.items() if k != "$ref"}}
    return rule
