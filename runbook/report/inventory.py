"""Prints an inventory as text and as JSON. `inventory list` and `graph`: a line a node, or one line for neighbours that
are alike; groups as a tree. `inventory explain NODE [KEY]`: the value of every key on a node, given or derived, with
the place of each given value, and which value wins."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property, partial
from itertools import groupby
from typing import Any

from runbook.files.node_sets import select_nodes
from runbook.files.suggestions import nearest_word
from runbook.files.value_origins import Candidate, Origins
from runbook.files.yaml_document import KeyPath
from runbook.launch.ranks import (
    NodeRanks,
    dialled_address,
    endpoint_text,
    network_environment,
    node_environment,
    rank_layout,
)
from runbook.model.errors import FilesWrong, Span
from runbook.model.grouping import values_by_key
from runbook.model.inventory import Inventory, Node
from runbook.model.node_ranges import fold
from runbook.model.safe_text import aligned_table, visible_text
from runbook.model.units import count_text, range_text
from runbook.report.run_json import json_value

MIN_FOLDED_NODES = 41  # nodes, from which on those that are alike share a line; fewer lines still fit on a screen
MAX_ADDRESS_CHARACTERS = 40  # columns of folded addresses
NODE_TABLE_HEADINGS = ("ranks", "node", "address", "gpus", "shell", "login", "groups")


def inventory_list_text(inventory: Inventory, ranked: Inventory, nodes: Sequence[Node]) -> str:
    """The text of `inventory list`. `ranked` is the inventory without the spares of its launch."""
    chosen = _nodes_with_ranks(ranked, nodes)
    groups = (
        [[node_ranks] for node_ranks in chosen] if len(chosen) < MIN_FOLDED_NODES else list(_similar_neighbours(chosen))
    )
    rows = [_node_table_row(same) for same in groups]
    used = [column for column in range(len(NODE_TABLE_HEADINGS)) if column < 4 or any(row[column] for row in rows)]
    lines = aligned_table([row[column] for column in used] for row in (NODE_TABLE_HEADINGS, *rows))
    return (
        f"{inventory_headline(inventory, ranked)}\n\n" + "\n".join(lines) + "\n" + _list_notes(inventory, nodes, rows)
    )


def _nodes_with_ranks(ranked: Inventory, nodes: Sequence[Node]) -> list[NodeRanks]:
    """The nodes with their ranks; a spare has none."""
    by_node = rank_layout(ranked).by_node
    return [by_node.get(node.name, NodeRanks(node, 0, ())) for node in nodes]


def inventory_headline(inventory: Inventory, ranked: Inventory) -> str:
    """The first line: name, file, numbers of nodes and ranks, backend, and the address that ranks dial."""
    gpus = sum(len(node.gpus) for node in ranked.nodes)
    where = endpoint_text(dialled_address(ranked.rendezvous, len(ranked.nodes)), ranked.rendezvous.port)
    on = (
        f" on {count_text(gpus, 'GPU')}"
        if gpus == ranked.world_size
        else f", {count_text(gpus, 'GPU')}"
        if gpus
        else ""
    )
    spares = len(inventory.nodes) - len(ranked.nodes)
    of_them = f" ({count_text(spares, 'spare')})" if spares else ""
    return visible_text(
        f"{inventory.name} ({inventory.source}): {count_text(len(inventory.nodes), 'node')}{of_them}, "
        f"{count_text(ranked.world_size, 'rank')}{on}; {ranked.rendezvous.backend}, ranks dial {where}"
    )


def gpus_text(node: Node) -> str:
    """The GPUs of a node as text: `8`, `[0, 2]`, or `cpu`, with the number of ranks if that is not one."""
    if not node.gpus:
        return "cpu" if node.processes == 1 else f"cpu x {node.processes}"
    if node.gpus == tuple(range(len(node.gpus))):
        return str(len(node.gpus))
    return "[" + ", ".join(map(str, node.gpus)) + "]"


def login_text(node: Node, host: str | None = None) -> str:
    """How a node is entered, beyond its address: user, other host, port, jump host; ssh chooses what is left out."""
    into = f", {entered}" if (entered := _container_text(node)) else ""
    if node.connection == "local":
        return f"this machine{into}"
    if node.connection == "agent":
        return f"its agent{into}"
    if node.connection == "slurm":
        return (f"a step of job {node.slurm.job}" if node.slurm.job else "a step of the job") + into
    if node.connection == "kubernetes":
        return f"{_pod_text(node)}{into}"
    ssh = node.ssh
    host = host or ssh.host
    at = f"@{host}" if host and host != node.address else ""
    who = f"{ssh.user or ''}{at}" + (f":{ssh.port}" if ssh.port and at else f" port {ssh.port}" if ssh.port else "")
    return (who + (f" via {ssh.jump}" if ssh.jump else "") + into).strip(" ,")


def _pod_text(node: Node) -> str:
    """`namespace/pod` and the container, as far as the inventory names them."""
    chosen = node.kubernetes
    pod = node.pod or f"the one of {chosen.selector}"
    return f"pod {chosen.namespace + '/' if chosen.namespace else ''}{pod}" + (
        f" {chosen.container}" if chosen.container else ""
    )


def _container_text(node: Node) -> str:
    if node.container is not None:
        return f"{node.container.runtime} {node.container.name}"
    return node.inside[0] if node.inside else ""


def inventory_list_json(inventory: Inventory, ranked: Inventory, nodes: Sequence[Node]) -> str:
    """One document with everything resolved; secrets are `***`. A spare has null for ranks."""
    document = {
        "version": 1,
        "name": inventory.name,
        "source": inventory.source,
        "world_size": ranked.world_size,
        "rendezvous": {**asdict(ranked.rendezvous), "dialled": dialled_address(ranked.rendezvous, len(ranked.nodes))},
        "network": asdict(inventory.network),
        "infiniband": inventory.infiniband and asdict(inventory.infiniband),
        "env": inventory.env,
        "nodes": list(map(_node_json, _nodes_with_ranks(ranked, nodes))),
        "groups": inventory.groups,
    }
    return json.dumps(json_value(document), indent=2, ensure_ascii=False) + "\n"


def _node_json(node_ranks: NodeRanks) -> dict[str, object]:
    node = node_ranks.node
    return {
        **{field.name: getattr(node, field.name) for field in fields(node)},
        "node_rank": node_ranks.node_rank if node_ranks.ranks else None,
        "ranks": [node_ranks.ranks[0].rank, node_ranks.ranks[-1].rank] if node_ranks.ranks else None,
        "ssh": {**asdict(node.ssh), "host": node.ssh.host or node.address},
        "slurm": asdict(node.slurm) if node.connection == "slurm" else None,
        "kubernetes": asdict(node.kubernetes) if node.connection == "kubernetes" else None,
        "container": node.container and asdict(node.container),
        "inside": node.inside or None,
    }


def _similar_neighbours(by_node: Sequence[NodeRanks]) -> Iterator[list[NodeRanks]]:
    """Yields lists of neighbours in rank order that differ only in name, address and ssh host."""

    def kind(numbered: tuple[int, NodeRanks]) -> object:
        place, node_ranks = numbered
        node = node_ranks.node
        ssh = (node.ssh.user, node.ssh.port, node.ssh.jump, node.ssh.host is None)
        # Where a pattern left nodes out, ranks do not go on from one to the next.
        entry = (node.container, node.inside, replace(node.kubernetes, pod=None))
        in_order = node_ranks.node_rank - place if node_ranks.ranks else "spare"
        return gpus_text(node), node.shell, node.connection, entry, node.groups, ssh, in_order

    for _, group in groupby(enumerate(by_node), key=kind):
        yield [node_ranks for _, node_ranks in group]


def _node_table_row(same: Sequence[NodeRanks]) -> tuple[str, ...]:
    nodes = [node_ranks.node for node_ranks in same]
    first = nodes[0]
    hosts = [node.ssh.host for node in nodes if node.ssh.host]
    return (
        range_text(same[0].ranks[0].rank, same[-1].ranks[-1].rank) if same[0].ranks else "spare",
        fold(node.name for node in nodes),
        _short_addresses([node.address for node in nodes]),
        gpus_text(first),
        first.shell,
        login_text(first, _short_addresses(hosts) if len(nodes) > 1 and hosts else None),
        ",".join(first.groups),
    )


def _short_addresses(addresses: Sequence[str]) -> str:
    folded = fold(addresses)
    return (
        folded if len(addresses) == 1 or len(folded) <= MAX_ADDRESS_CHARACTERS else f"{addresses[0]} … {addresses[-1]}"
    )


def _list_notes(inventory: Inventory, nodes: Sequence[Node], rows: Sequence[object]) -> str:
    notes = []
    if len(nodes) < len(inventory.nodes):
        notes.append(f"{count_text(len(nodes), 'node')} of {len(inventory.nodes)}")
    if len(rows) < len(nodes):
        notes.append(
            "nodes that are alike share a line, and `gpus` is what each of them has: -l shows some, -o json each"
        )
    return "".join(f"\n{note}\n" for note in notes)


def inventory_graph_text(inventory: Inventory, ranked: Inventory) -> str:
    """The text of `inventory graph`; `ranked` is the inventory without the spares of its launch."""
    by_name = {node.name: node for node in inventory.nodes}
    lines = [inventory_headline(inventory, ranked), "", "@all:"]
    for group, members in inventory.groups.items():
        lines.append(f"  |--@{group}:  {count_text(len(members), 'node')}")
        lines += [f"  |  |--{line}" for line in _node_tree_lines(by_name[name] for name in members)]
    alone = [node for node in inventory.nodes if not node.groups]
    if alone and inventory.groups:
        lines.append(f"  |--@ungrouped:  {count_text(len(alone), 'node')}")
        lines += [f"  |  |--{line}" for line in _node_tree_lines(alone)]
    else:
        lines += [f"  |--{line}" for line in _node_tree_lines(alone)]
    return "\n".join(map(visible_text, lines)) + "\n"


def _node_tree_lines(nodes: Iterable[Node]) -> Iterator[str]:
    """Yields a line for neighbours with the same GPUs: `gn[01-16]  8 GPUs each`."""
    for gpu, group in groupby(nodes, key=gpus_text):
        same = list(group)
        what = (
            f"{gpu} GPU" + ("" if gpu == "1" else "s") if gpu[0].isdigit() else f"GPUs {gpu}" if gpu[0] == "[" else gpu
        )
        yield f"{fold(node.name for node in same)}  {what}" + (" each" if len(same) > 1 else "")


DEFAULT_ORIGIN = "default"


@dataclass(frozen=True, slots=True)
class GivenValue:
    """One value that a level gives for a key: the level, the text as typed there, and its place."""

    level: str
    text: str
    span: Span | None


@dataclass(frozen=True, slots=True)
class ExplainedKey:
    """The value of a key on a node. `given` are the values of all levels, the weakest first; the last one wins. If it
    is empty, `why` says what made the value."""

    key: str
    value: str
    given: tuple[GivenValue, ...] = ()
    why: str = ""


KeyExplainer = Callable[[], ExplainedKey]
"""Works out the answer for one key when called: with 10,000 nodes only one key is asked for."""


class Answers:
    """Explains the values of an inventory's nodes, key by key."""

    def __init__(self, inventory: Inventory, ranked: Inventory, origins: Origins) -> None:
        """`ranked` is the inventory without the spares of its launch."""
        self._inventory = inventory
        self._origins = origins
        self._lines = origins.document.lines
        self._layout = rank_layout(ranked)

    def about(self, node: Node) -> dict[str, KeyExplainer]:
        """Every key of the node, in the order in which people read them."""
        node_ranks = self._layout.by_node.get(node.name)
        asks: dict[str, KeyExplainer] = {
            "ranks": partial(self._ranks, node_ranks),
            "groups": partial(self._groups, node),
        }
        for name, value, otherwise in _node_values(node):
            key = tuple(name.split("."))
            if value is not None or otherwise or self._origins.candidates(node.name, key):
                asks[name] = partial(self._key, node, key, value, otherwise or DEFAULT_ORIGIN)
        for name, value, otherwise in self._job_values():
            asks[name] = partial(self._top, tuple(name.split(".")), value, otherwise)
        of_spare = network_environment(self._inventory, node)
        for name, env in (node_environment(self._layout, node_ranks) if node_ranks else of_spare).items():
            asks[f"env.{name}"] = partial(self._env, node, name, env)
        for name, var in node.vars.items():
            asks[f"vars.{name}"] = partial(self._key, node, ("vars", name), var, DEFAULT_ORIGIN)
        return asks

    def _ranks(self, node_ranks: NodeRanks | None) -> ExplainedKey:
        if node_ranks is None:
            return ExplainedKey("ranks", "-", why="a spare of the launch: none before it takes another node's place")
        place = f"node {node_ranks.node_rank} of {len(self._layout.by_node)}"
        where = f"{place}, {len(node_ranks.ranks)} of {self._layout.world_size} ranks"
        return ExplainedKey("ranks", range_text(node_ranks.ranks[0].rank, node_ranks.ranks[-1].rank), why=where)

    def _groups(self, node: Node) -> ExplainedKey:
        return ExplainedKey(
            "groups",
            ", ".join(node.groups) or "-",
            why="the groups whose `nodes:` name it" if node.groups else "no group names it",
        )

    def _key(self, node: Node, key: KeyPath, value: object, otherwise: str) -> ExplainedKey:
        given = tuple(map(self._given, self._origins.candidates(node.name, key)))
        return ExplainedKey(".".join(map(str, key)), _value_text(value), given, "" if given else otherwise)

    def _job_values(self) -> Iterator[tuple[str, object, str]]:
        """Values of the whole job: key, value, and its origin if it is not set."""
        inventory = self._inventory
        yield "rendezvous.master", inventory.rendezvous.master, "the first node"
        yield "rendezvous.address", inventory.rendezvous.address, f"the address of {inventory.rendezvous.master}"
        yield "rendezvous.port", inventory.rendezvous.port, DEFAULT_ORIGIN
        yield "rendezvous.backend", inventory.rendezvous.backend, self._backend
        yield "network.interface", inventory.network.interface, "not set: NCCL and gloo choose by themselves"
        ports = ", ".join(range_text(low, high) for low, high in inventory.network.ports)
        yield "network.ports", ports or None, "not set: only the rendezvous port is checked"
        if inventory.infiniband is not None:
            yield "infiniband.hca", inventory.infiniband.hca, "not set: NCCL takes every active port"
            yield "infiniband.min_rate_gbps", inventory.infiniband.min_rate_gbps, "not set: any rate will do"

    @cached_property
    def _backend(self) -> str:
        windows = next((node.name for node in self._inventory.nodes if node.windows), None)
        if windows:
            return f"default: {windows} is a Windows node, and NCCL does not exist there"
        without = next((node.name for node in self._inventory.nodes if not node.gpus), None)
        return f"default: {without} has no GPUs" if without else "default: every node has GPUs"

    def _top(self, keys: KeyPath, value: object, otherwise: str) -> ExplainedKey:
        found = self._at_top(keys)
        return ExplainedKey(
            ".".join(map(str, keys)), _value_text(value), (found,) if found else (), "" if found else otherwise
        )

    def _at_top(self, keys: KeyPath, level: str = "inventory") -> GivenValue | None:
        """The value that the document itself gives at these keys; None if it gives none."""
        data: Any = self._origins.document.data
        for key in keys:
            if not isinstance(data, Mapping) or key not in data:
                return None
            data = data[key]
        return self._given(Candidate(data, self._origins.document.span(*keys), level, wins=False))

    def _env(self, node: Node, name: str, value: object) -> ExplainedKey:
        """A variable of the node's ranks: what a level gives wins over what is derived."""
        given = tuple(map(self._given, self._origins.candidates(node.name, ("env", name))))
        derived, why = self._derived(name)
        candidates = (derived, *given) if derived else given
        return ExplainedKey(f"env.{name}", str(value), candidates, "" if candidates else why)

    def _derived(self, name: str) -> tuple[GivenValue | None, str]:
        """Where a derived variable comes from: the value of a key of the inventory, or None and a sentence."""
        sources: dict[str, KeyPath] = {
            "MASTER_PORT": ("rendezvous", "port"),
            "NCCL_SOCKET_IFNAME": ("network", "interface"),
            "GLOO_SOCKET_IFNAME": ("network", "interface"),
            "NCCL_IB_HCA": ("infiniband", "hca"),
        }
        if name == "MASTER_ADDR":
            return self._master_address()
        if name in sources:
            keys = sources[name]
            found = self._at_top(keys, ".".join(map(str, keys)))
            return found, f"default of {'.'.join(map(str, keys))}"
        return None, {
            "WORLD_SIZE": "all ranks of the inventory",
            "LOCAL_WORLD_SIZE": "the ranks of this node",
            "NODE_RANK": "the node's place in rank order",
            "GROUP_RANK": "the node's place in rank order",
            "RUNBOOK_BACKEND": "rendezvous.backend",
            "CUDA_VISIBLE_DEVICES": "gpus",
            "OMP_NUM_THREADS": "as torchrun sets it where a node has several ranks",
        }.get(name, DEFAULT_ORIGIN)

    def _master_address(self) -> tuple[GivenValue | None, str]:
        inventory = self._inventory
        if len(self._layout.by_node) == 1:
            return None, "a job of one node dials itself over loopback"
        found = self._at_top(("rendezvous", "address"), "rendezvous.address")
        if found:
            return found, ""
        master = inventory.rendezvous.master
        addresses = self._origins.candidates(master, ("address",))
        if not addresses:
            return None, f"the name of {master}, which has no address"
        return GivenValue(f"address of {master}", self._layout.address, addresses[-1].span), ""

    def _given(self, candidate: Candidate) -> GivenValue:
        """The value of a candidate as its level gives it; a secret as `***`."""
        value, span = candidate.value, candidate.span
        if isinstance(value, Mapping) and set(value) == {"env"}:
            return GivenValue(candidate.level, f"*** (from {value['env']} of this machine)", span)
        if isinstance(value, str) or span is None or isinstance(value, Mapping | list):
            return GivenValue(candidate.level, _value_text(value), span)
        # As it was typed: 1.50 stays 1.50.
        typed = self._lines[span.line - 1][span.column - 1 : span.column - 1 + span.length]
        return GivenValue(candidate.level, typed, span)


def _node_values(node: Node) -> Iterator[tuple[str, object, str]]:
    """Yields a node's own keys: key, value, and the text for a value that no level gives. If that text is empty too, a
    key without a value is left out."""
    ssh = node.ssh
    yield "address", node.address, "the node's name"
    yield "connection", node.connection, DEFAULT_ORIGIN
    reached = node.connection == "ssh"
    for name, value, otherwise in (
        ("host", ssh.host or node.address, "the address"),
        ("user", ssh.user, "as ssh would: ~/.ssh/config, else yours"),
        ("port", ssh.port, "as ssh would: ~/.ssh/config, else 22"),
        ("key", ssh.key, "as ssh would: the agent's, and ~/.ssh/config"),
        ("jump", ssh.jump, "as ssh would: ~/.ssh/config, else none"),
        ("host_keys", ssh.host_keys, DEFAULT_ORIGIN),
        ("connect_timeout", f"{ssh.connect_timeout_s:g}s", DEFAULT_ORIGIN),
    ):
        yield f"ssh.{name}", value if reached else None, otherwise if reached else ""
    slurm = node.connection == "slurm"
    yield "slurm.job", node.slurm.job if slurm else None, "SLURM_JOB_ID" if slurm else ""
    pod = node.connection == "kubernetes"
    for name, otherwise in (
        ("pod", "" if node.kubernetes.selector else "the node's name"),
        ("selector", ""),
        ("namespace", "that of the context"),
        ("container", "the first, or the one that the pod names"),
        ("context", "the current one"),
        ("kubeconfig", "KUBECONFIG, else ~/.kube/config"),
    ):
        yield f"kubernetes.{name}", getattr(node.kubernetes, name) if pod else None, otherwise if pod else ""
    container = node.container and {"runtime": node.container.runtime, "name": node.container.name}
    yield "container", container, ""
    yield "inside", node.inside or None, ""
    yield "python", node.python, DEFAULT_ORIGIN
    yield "shell", node.shell, DEFAULT_ORIGIN
    yield "activate", node.activate, DEFAULT_ORIGIN
    yield "workdir", node.workdir, DEFAULT_ORIGIN
    yield "gpus", gpus_text(node), DEFAULT_ORIGIN
    yield "processes", None if node.gpus else node.processes, ""
    yield "rack", node.rack, ""
    yield "leaf", node.leaf, ""


def _value_text(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_value_text, value)) + "]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_value_text(inner)}" for key, inner in value.items()) + "}"
    return str(value)


MAX_VALUES_WITH_NODES = 3
"""Up to so many values of one key are printed one by one, each with its nodes."""

MAX_EXPLAINED_NODES = 8
"""The most nodes for which every key is listed; one key can be asked for any number."""


def inventory_explain_text(
    inventory: Inventory, ranked: Inventory, origins: Origins, pattern: str, key: str | None
) -> str:
    """The text of `inventory explain`; `ranked` is as `Answers` takes it. Raises FilesWrong for a node, or a key, that
    does not exist."""
    nodes = select_nodes(pattern, inventory)
    answers = Answers(inventory, ranked, origins)
    if key is not None:
        return _keys_under_text(answers, nodes, key)
    if len(nodes) > MAX_EXPLAINED_NODES:
        message = f"`{pattern}` means {len(nodes):,} nodes; every key of so many is too much to read"
        raise FilesWrong.of("arguments.too-many-nodes", message, help="name one node, or a KEY as well")
    return f"{inventory_headline(inventory, ranked)}\n" + "".join(_every_key_text(answers, node) for node in nodes)


def _every_key_text(answers: Answers, node: Node) -> str:
    rows = []
    for ask in answers.about(node).values():
        answer = ask()
        best = answer.given[-1] if answer.given else None
        place = str(best.span) if best and best.span else ""
        more = f"  (over {', '.join(one.level for one in answer.given[-2::-1])})" if len(answer.given) > 1 else ""
        rows.append((answer.key, answer.value, (best.level if best else answer.why) + more, place))
    return f"\n{visible_text(node.name)}\n" + _indented_table(rows)


def _keys_under_text(answers: Answers, nodes: Sequence[Node], key: str) -> str:
    """The text for every key inside `key`, such as `env` or `ssh`, or else for `key` itself."""
    known = [answers.about(node) for node in nodes]
    under = dict.fromkeys(name for asks in known for name in asks if name.startswith(f"{key}."))
    having = {name: [node for node, asks in zip(nodes, known, strict=True) if name in asks] for name in under}
    return "\n".join(_one_key_text(answers, some, name) for name, some in having.items()) or _one_key_text(
        answers, nodes, key
    )


def _one_key_text(answers: Answers, nodes: Sequence[Node], key: str) -> str:
    """The text for one key. A value that several nodes share is printed once, and so are values that differ on every
    node for one reason."""
    found = {node.name: _find_key(answers.about(node), node, key)() for node in nodes}
    same = values_by_key((answer, name) for name, answer in found.items())
    if len(same) == len(found) > MAX_VALUES_WITH_NODES and (one := _folded_answer(list(same))):
        same = {one: list(found)}
    return "\n".join(_answer_text(fold(names), answer) for answer, names in same.items())


def _folded_answer(differing: Sequence[ExplainedKey]) -> ExplainedKey | None:
    """One answer for several that differ only in their values, such as the ranks of nodes; its values are in the order
    of the nodes. None if the answers differ in more."""
    first = differing[0]
    if any(answer.given or answer.why != first.why for answer in differing):
        return None
    return replace(first, value=f"{_short_addresses([answer.value for answer in differing])}, one for each node")


def _answer_text(names: str, answer: ExplainedKey) -> str:
    """The text of an answer: the value that wins, then the values that it won over, the strongest first."""
    lines = [visible_text(f"{names}: {answer.key} = {answer.value}")]
    rows = [
        ("wins" if number == 0 else "", one.level, one.text, str(one.span) if one.span else "")
        for number, one in enumerate(reversed(answer.given))
    ]
    if answer.why:
        rows.append(("" if answer.given else "wins", answer.why, "", ""))
    return "\n".join(lines) + "\n" + _indented_table(rows)


def _find_key(known: dict[str, KeyExplainer], node: Node, key: str) -> KeyExplainer:
    """The answer to a key as people write it: `env.NCCL_DEBUG`, `NCCL_DEBUG`, `user` for `ssh.user`."""
    if key in known:
        return known[key]
    ends = [name for name in known if name.rpartition(".")[2] == key]
    if len(ends) == 1:
        return known[ends[0]]
    if ends:
        message, help = f"`{key}` may mean several keys", f"write {' or '.join(ends)}"
        raise FilesWrong.of("arguments.unknown-key", message, help=help)
    by_users = f"{key}.".startswith(("env.", "vars."))
    message = f"nothing sets `{key}` on {node.name}" if by_users else f"a node has no key `{key}`"
    words = [*known, *(name.rpartition(".")[2] for name in known)]
    near = nearest_word(key, words)
    help = f"did you mean `{near}`?" if near else "without a KEY all of them are listed"
    raise FilesWrong.of("arguments.unknown-key", message, help=help)


def _indented_table(rows: Iterable[Sequence[str]]) -> str:
    return "".join(f"  {line}\n" for line in aligned_table(rows, widest=48))
