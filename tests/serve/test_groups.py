"""Groups: their files, what is done with them, and that nobody's change is lost."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
import time
import zipfile
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from runbook.agent.protocol import Enrolment, GpuLoad, Heartbeat
from runbook.files.inventory import examine_inventory
from runbook.model.errors import FilesWrong
from runbook.model.events import Progress
from runbook.report.run_json import event_to_json
from runbook.serve import group_actions as actions
from runbook.serve import group_form
from runbook.serve.agent_fleet import Fleet
from runbook.serve.agent_states import AgentState, RankState
from runbook.serve.change_stream import Changed
from runbook.serve.group_files import MAX_GROUP_BYTES, ChangedMeanwhile, NameTaken, NoGroup
from runbook.serve.group_form import form_fields, open_group_text
from runbook.serve.group_preview import launch_scripts
from runbook.serve.pages import nodes
from runbook.serve.pages.nodes import RankCell, rank_cells
from runbook.serve.people import csrf_token
from runbook.serve.rendering import moment
from runbook.serve.run_folders import RunRow
from runbook.serve.settings import ServeSettings
from runbook.serve.store import Store
from runbook.serve.workspace import Workspace
from serve.server_in_process import HOST, World, world_of

POOL = """\
# the machines of the second room
name: pool
defaults: {connection: ssh, ssh: {user: train}}
nodes:
  gn6: {address: 10.0.0.6}   # rank 0, mostly
  "gn[39-40]": {address: "10.0.0.[39-40]"}
  gn7: {address: 10.0.0.7}
"""


@pytest.fixture
def workspace(tmp_path: Path) -> Any:
    store = Store(tmp_path / "serve.db")
    told: list[str] = []
    made = Workspace(tmp_path, store, told.append, Fleet(store, ServeSettings(tmp_path), Changed()))
    yield made
    store.close()


def pool(workspace: Workspace) -> None:
    (workspace.groups.folder / "pool.yml").write_text(POOL)


def saved(workspace: Workspace, name: str, **fields: str) -> str:
    """The text after these fields of the form were saved; `node__gn6__gpus` is node.gn6.gpus."""
    given = {field.replace("__", "."): value for field, value in fields.items()}
    actions.save_group(workspace, name, given, workspace.groups.read(name).hash, "ann")
    return workspace.groups.read(name).text


def moved(workspace: Workspace, target: str, *nodes: str, source: str = "pool") -> list[str]:
    return actions.move_nodes(workspace, [(source, node) for node in nodes], target, "ann", {})


def table(workspace: Workspace, name: str) -> list[tuple[str, int, int, int]]:
    ranks = workspace.view(name).meaning.ranks
    return [(one.worker, one.rank, one.local_rank, one.node_rank) for one in ranks]


def test_the_schema_that_a_new_group_names_is_there(workspace: Workspace) -> None:
    actions.create_group(workspace, "train", "ann")
    named = workspace.groups.read("train").text.split("$schema=")[1].splitlines()[0]
    assert json.loads((workspace.groups.folder / named).read_text())["title"].startswith("an inventory")


def test_the_seeds_first_example(workspace: Workspace) -> None:
    pool(workspace)
    actions.create_group(workspace, "train", "ann")
    moved(workspace, "train", "gn6", "gn39", "gn40", "gn7")
    saved(workspace, "train", master="gn6", backend="gloo", world_size="4")
    assert table(workspace, "train") == [
        ("gn6-0", 0, 0, 0),
        ("gn39-0", 1, 0, 1),
        ("gn40-0", 2, 0, 2),
        ("gn7-0", 3, 0, 3),
    ]


def test_the_seeds_second_example(workspace: Workspace) -> None:
    pool(workspace)
    actions.create_group(workspace, "train", "ann")
    moved(workspace, "train", "gn7", "gn6")
    saved(workspace, "train", master="gn6", backend="gloo", processes="2", world_size="4")
    assert table(workspace, "train") == [("gn6-0", 0, 0, 0), ("gn6-1", 1, 1, 0), ("gn7-0", 2, 0, 1), ("gn7-1", 3, 1, 1)]


def test_what_a_browser_cannot_send_back_is_no_change(workspace: Workspace) -> None:
    text = POOL + 'launch: {command: [sh, -c, "one\\ntwo"]}\n'
    (workspace.groups.folder / "pool.yml").write_text(text.replace("\n", "\r\n"), newline="")
    file = workspace.groups.read("pool")
    sent = {"text": text, "command": "sh -c 'onetwo'", "port": ""}  # a field of one line holds no line break
    assert actions.propose_change(workspace, file, sent).changed == []
    both = actions.propose_change(workspace, file, sent | {"text": text + "# new\n", "port": "29600"})
    assert (both.changed, both.text.count("# new"), both.text.count("port: 29600")) == (["text", "port"], 1, 1)
    assert '"one\\ntwo"' in both.text


VARIED = """\
nodes: {a: {}}
env:
  PS1: "> "
  CERT: |
    -----BEGIN
    B=2
    no variable
  C: "1"
  B: "3"
  ODD: "a\\u2028b\\r\\nc"
  LAST: "x  "
"""


def test_a_changed_variable_changes_no_other(workspace: Workspace) -> None:
    (workspace.groups.folder / "pool.yml").write_text(VARIED)
    shown = form_fields(open_group_text("pool", VARIED))["env"]
    sent = re.sub(r"\r\n?|\n", "\r\n", shown)  # by a browser
    text = saved(workspace, "pool", env=sent.replace("C=1", "C=2"))
    assert text == VARIED.replace('C: "1"', 'C: "2"')
    text = saved(
        workspace, "pool", env="\n".join(line for line in shown.split("\n") if line != "C=2" and line != "C=1")
    )
    assert text == VARIED.replace('  C: "1"\n', "")
    with pytest.raises(actions.Refused, match="CERT has several lines"):
        saved(workspace, "pool", env=shown.replace("CERT=-----BEGIN", "CERT=-----END"))
    with pytest.raises(actions.Refused, match="B is there twice"):
        saved(workspace, "pool", env=f"B=9\n{shown}")


def test_a_file_that_could_not_be_opened_again_is_not_saved(workspace: Workspace) -> None:
    pool(workspace)
    before = workspace.groups.read("pool")
    most = MAX_GROUP_BYTES - len(POOL.encode())
    with pytest.raises(actions.Refused, match="are the most of a group"):
        saved(workspace, "pool", text=POOL + "#" + "é" * (most // 2) + "\n")
    assert workspace.groups.read("pool") == before
    assert len(saved(workspace, "pool", text=POOL + "#" * (most - 1) + "\n").encode()) == MAX_GROUP_BYTES
    with pytest.raises(actions.Refused, match="are the most of a group"):
        saved(workspace, "pool", port="29600")
    assert workspace.groups.read("pool").text.startswith(POOL)


def test_what_was_moved_before_a_group_that_refuses_is_told(tmp_path: Path) -> None:
    store, told = Store(tmp_path / "serve.db"), list[str]()
    workspace = Workspace(tmp_path, store, told.append, Fleet(store, ServeSettings(tmp_path), Changed()))
    pool(workspace)
    actions.create_group(workspace, "train", "ann")
    told.clear()
    with pytest.raises(actions.Refused, match="no agent has that name"):
        actions.move_nodes(workspace, [("pool", "gn6"), ("", "nobody")], "train", "ann", {})
    assert "gn6" not in workspace.groups.read("pool").text
    assert {"groups/pool", "groups/train"} <= set(told)
    store.close()


def test_a_file_is_examined_once_for_all_nodes_that_leave_it(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool(workspace)
    actions.create_group(workspace, "train", "ann")
    looked = list[str]()

    def examine(document: Any, **more: Any) -> Any:
        looked.append(document.path)
        return examine_inventory(document, **more)

    monkeypatch.setattr(group_form, "examine_inventory", examine)
    moved(workspace, "train", "gn6", "gn39", "gn40", "gn7")
    assert len(looked) == 1


def test_a_refused_move_leaves_no_new_group_behind(tmp_path: Path) -> None:
    async def look() -> None:
        async with world_of(tmp_path) as world:
            (tmp_path / "groups" / "pool.yml").write_text(POOL)
            headers = world.as_page("operator", content_type="application/x-www-form-urlencoded")
            for node, status in (("/nobody", 422), ("pool/nobody", 422), ("pool/gn6", 303)):
                answer = await world.ask("POST", "/move", headers, urlencode({"node": node, "new": "fresh"}).encode())
                assert answer.status == status
                names = world.app.state.workspace.groups.names()
                assert names == (["fresh", "pool"] if status == 303 else ["pool"])

    asyncio.run(look())


def test_nodes_that_the_table_has_no_room_for_are_named(tmp_path: Path) -> None:
    async def look() -> None:
        async with world_of(tmp_path) as world:
            for name, count in (("large", 300), ("small", 256)):
                text = f'name: {name}\nnodes: {{"gn[1-{count}]": {{processes: 1}}}}\n'
                (tmp_path / "groups" / f"{name}.yml").write_text(text)
                page = (await world.ask("GET", f"/groups/{name}", world.as_page("operator"))).body.decode()
                assert ("and 44 more nodes" in page) == (name == "large")
                assert ("more nodes:" in page) == (name == "large")

    asyncio.run(look())


@pytest.mark.parametrize(
    ("typed", "spares"),
    [
        ("gn[07-08]", ["gn[07-08]"]),
        ("gn[07,09], gn4", ["gn[07,09]", "gn4"]),
        ("[gn7, gn[08-09]]", ["gn7", "gn[08-09]"]),
        ("[gn7]", ["gn7"]),
    ],
)
def test_a_spare_may_be_a_range(typed: str, spares: list[str]) -> None:
    assert group_form._file_value("spares", "spares", typed) == spares


def test_a_spare_has_no_rank_and_leaves_with_its_node(workspace: Workspace) -> None:
    pool(workspace)
    actions.create_group(workspace, "train", "ann")
    moved(workspace, "train", "gn6", "gn39", "gn40", "gn7")
    text = saved(workspace, "train", spares="gn40, gn7", retries="1", world_size="2")
    assert "  spares: [gn40, gn7]" in text.splitlines()
    assert table(workspace, "train") == [("gn6-0", 0, 0, 0), ("gn39-0", 1, 0, 1)]
    means = workspace.view("train").meaning
    assert (means.nodes, means.spares) == (("gn6", "gn39"), ("gn40", "gn7"))
    moved(workspace, "pool", "gn40", source="train")
    assert workspace.view("train").meaning.spares == ("gn7",)
    moved(workspace, "pool", "gn7", source="train")
    assert "spares" not in workspace.groups.read("train").text


def agents(**addresses: str) -> dict[str, AgentState]:
    """Agents that are online, by name; from where each has dialled."""
    return {
        name: AgentState(name, "ONLINE", 0.0, 1.0, "0", name, address, (), None, (), "i", True, False)
        for name, address in addresses.items()
    }


def node_lines(workspace: Workspace, name: str) -> list[str]:
    text = workspace.groups.read(name).text
    return text.partition("nodes:\n")[2].partition("launch:")[0].splitlines()


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "203.0.113.7"], ids=["tunnel", "IPv6", "router"])
def test_agents_that_dial_from_one_address_are_grouped_and_given_their_own(workspace: Workspace, address: str) -> None:
    actions.create_group(workspace, "train", "ann")
    online = agents(one=address, two=address, far="198.51.100.4")
    actions.move_nodes(workspace, [("", name) for name in online], "train", "ann", online)
    assert node_lines(workspace, "train") == [
        "  one: {connection: agent}",
        "  two: {connection: agent}",
        "  far: {connection: agent, address: 198.51.100.4}",
    ]
    saved(workspace, "train", node__one__address="10.0.0.1", node__two__address="10.0.0.2", node__far__address="")
    assert node_lines(workspace, "train") == [
        "  one: {connection: agent, address: 10.0.0.1}",
        "  two: {connection: agent, address: 10.0.0.2}",
        "  far: {connection: agent}",
    ]


def test_a_node_by_itself_keeps_the_address_that_its_agent_dialled_from(workspace: Workspace) -> None:
    actions.create_group(workspace, "train", "ann")
    actions.move_nodes(workspace, [("", "one")], "train", "ann", agents(one="127.0.0.1", two="127.0.0.1"))
    assert node_lines(workspace, "train") == ["  one: {connection: agent, address: 127.0.0.1}"]


def test_the_address_of_a_node_in_a_range_is_its_own(workspace: Workspace) -> None:
    pool(workspace)
    text = saved(workspace, "pool", node__gn39__address="10.0.0.39", node__gn40__address="10.0.9.40")
    assert "  gn39: {address: 10.0.0.39}" in text.splitlines()
    assert "  gn40: {address: 10.0.9.40}" in text.splitlines()


def test_a_rank_that_has_moved_to_a_spare_is_shown_there() -> None:
    planned = {"a": {0: RankCell(0, "running")}, "b": {1: RankCell(1, "running")}, "c": {}}
    told = {
        "a": {0: RankCell(0, "running", "7", 0.5, 100, 2)},
        "b": {},
        "c": {1: RankCell(1, "running", "7", 0.5, 300)},
    }
    shown = {node: [cell.rank for cell in cells] for node, cells in rank_cells(planned, told).items()}
    assert shown == {"a": [0], "b": [], "c": [1]}
    silent = rank_cells(planned, {"a": {}, "b": {}, "c": {}})
    assert {node: len(cells) for node, cells in silent.items()} == {"a": 1, "b": 1, "c": 0}


def test_a_node_has_the_ranks_that_the_run_gave_it_alone(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each agent claims every rank, with later attempts than any: it is believed for what the run gave its node."""
    nodes_of = "".join(f"  {name}: {{address: 10.0.0.{at}, processes: 1}}\n" for at, name in enumerate("abcd", 1))
    text = f"name: train\nnodes:\n{nodes_of}launch: {{command: [python, train.py], spares: [c, d], retries: 1}}\n"
    (workspace.groups.folder / "train.yml").write_text(text)
    folder = workspace.runs.folder / "20260101-000000-abcdef"
    folder.mkdir(parents=True)
    row = RunRow(folder.name, 0.0, None, "", "", "", "", (), ("a", "b"), "", "job", "train")
    monkeypatch.setattr(workspace.runs, "path", lambda _id: folder)
    monkeypatch.setattr(workspace, "latest_run", lambda _group: row)
    claims = tuple(RankState("job", 1 << 50, rank, 1, "running", None, "7", 0.5) for rank in range(100))
    fleet = {name: replace(agents(**{name: ""})[name], jobs=claims) for name in "abcd"}

    def shown() -> dict[str, list[int]]:
        of_group = nodes._rows_of_group(workspace, workspace.view("train"), fleet)
        return {one.name: [cell.rank for cell in one.ranks] for one in of_group}

    assert shown() == {"a": [0], "b": [1], "c": [], "d": []}
    (folder / "group.yml").write_text(text)  # the run goes on as it began, whatever becomes of the group's file
    (workspace.groups.folder / "train.yml").write_text(text.replace("processes: 1", "processes: 2"))
    assert shown() == {"a": [0], "b": [1, 2, 3], "c": [], "d": []}
    (workspace.groups.folder / "train.yml").write_text(text)
    taken: dict[str, object] = {"spare": {"for": "a", "why": "it broke"}}
    events = [Progress(1.0, "launch", "c takes the place of a: it broke", "c", None, taken)]
    events.append(Progress(2.0, "launch", 'a says {"spare": {}}', "a"))
    events.append(Progress(2.0, "launch", "odd", "d", None, {"spare": "b"}))
    (folder / "events.jsonl").write_text(
        "".join(event_to_json(event) + "\n" for event in reversed(events)) + '{"spare": '
    )
    assert shown() == {"a": [], "b": [0], "c": [1], "d": []}  # ranks are given anew


def test_a_world_size_that_does_not_fit_is_refused_with_the_reason(workspace: Workspace) -> None:
    pool(workspace)
    with pytest.raises(actions.Refused, match=r"a world size of 5 does not fit: these nodes make 4 ranks \(gn6 1, "):
        saved(workspace, "pool", world_size="5")
    assert workspace.groups.read("pool").text == POOL


def test_a_node_takes_along_what_makes_it_reachable_and_ranges_are_split(workspace: Workspace) -> None:
    pool(workspace)
    actions.create_group(workspace, "train", "ann")
    moved(workspace, "train", "gn40")
    assert "  gn39: {address: 10.0.0.39}" in workspace.groups.read("pool").text.splitlines()
    assert workspace.groups.read("pool").text.startswith("# the machines of the second room\n")
    taken = workspace.groups.read("train").text
    assert "gn40: {connection: ssh, ssh: {user: train}, address: 10.0.0.40}" in taken
    moved(workspace, "pool", "gn40", source="train")
    assert (
        "  gn40: {address: 10.0.0.40}" in workspace.groups.read("pool").text.splitlines()
    )  # what the defaults say anyway


def test_settings_change_their_own_lines_alone(workspace: Workspace) -> None:
    pool(workspace)
    text = saved(
        workspace, "pool", port="29600", interface="eth0", node__gn6__gpus="0, 2", env="A=1\nTOKEN={env: HF_TOKEN}"
    )
    assert [line for line in POOL.splitlines() if line not in text.splitlines()] == [
        "  gn6: {address: 10.0.0.6}   # rank 0, mostly"
    ]
    assert "  gn6: {address: 10.0.0.6, gpus: [0, 2]}   # rank 0, mostly" in text.splitlines()
    look = workspace.view("pool")
    assert look.meaning.where.endswith(":29600")
    environment = look.meaning.environments[0]
    assert (environment["A"], environment["TOKEN"], environment["CUDA_VISIBLE_DEVICES"]) == ("1", "***", "0,2")
    assert environment["NCCL_SOCKET_IFNAME"] == "eth0"
    assert saved(workspace, "pool", port="", interface="", node__gn6__gpus="", env="") == POOL


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("port", "many", "not a number"),
        ("port", "99999", "above 65535"),
        ("env", "A", "is no variable"),
        ("env", "A=1\nA=2", "twice"),
        ("gpus", "all", "neither how many"),
        ("command", "python 'x", "quote is not closed"),
        ("order", "backwards", "inventory, name or alphabet"),
    ],
)
def test_what_lint_would_refuse_is_not_saved(workspace: Workspace, field: str, value: str, says: str) -> None:
    pool(workspace)
    with pytest.raises(actions.Refused) as refused:
        saved(workspace, "pool", **{field.replace(".", "__"): value})
    assert says in str(refused.value)
    assert workspace.groups.read("pool").text == POOL


def test_two_people_and_an_editor(workspace: Workspace) -> None:
    pool(workspace)
    seen = workspace.groups.read("pool").hash
    actions.save_group(workspace, "pool", {"port": "29600"}, seen, "ann")
    with pytest.raises(ChangedMeanwhile):
        actions.save_group(workspace, "pool", {"port": "29700"}, seen, "bob")
    (workspace.groups.folder / "pool.yml").write_text(POOL + "# by hand\n")
    with pytest.raises(ChangedMeanwhile):
        actions.delete_group(workspace, "pool", seen, "bob")
    assert [(one.person, one.what) for one in workspace.groups.history("pool")] == [
        ("", "changed outside of this server"),
        ("ann", "changed port"),
        ("", "found"),
    ]
    first = workspace.groups.history("pool")[-1]
    actions.restore_version(workspace, "pool", first.id, workspace.groups.read("pool").hash, "bob")
    assert workspace.groups.read("pool").text == POOL
    with pytest.raises(actions.Refused, match="version"):
        actions.restore_version(workspace, "pool", 10**9, workspace.groups.read("pool").hash, "bob")


def test_a_page_of_a_group_does_not_read_every_text_that_it_ever_had(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hundred of a megabyte each would be in memory at once, while every other page waits for the database."""
    pool(workspace)
    for number in range(5):
        saved(workspace, "pool", port=str(29600 + number))
    read = workspace.groups._store.read
    rows: list[Any] = []

    def kept(sql: str, *args: Any) -> list[Any]:
        found = read(sql, *args)
        rows.extend(found)
        return found

    monkeypatch.setattr(workspace.groups._store, "read", kept)
    assert len(workspace.groups.history("pool")) == 6
    assert not [row for row in rows if "text" in row.keys()]  # noqa: SIM118  a row is no mapping


def test_a_version_shows_what_it_changed(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        workspace = world.app.state.workspace
        saved(workspace, "pool", port="29600")
        saved(workspace, "pool", port="29700")
        for one, lines in zip(
            workspace.groups.history("pool"),
            (
                [b"-  port: 29600", b"+  port: 29700"],
                [b"+  port: 29600"],
                [b"+name: pool"],
            ),
            strict=True,
        ):
            page = await world.ask("GET", f"/groups/pool/history/{one.id}", world.as_page("viewer"))
            assert page.status == 200
            assert all(line in page.body for line in lines), (one, page.body)
        assert (await world.ask("GET", "/groups/pool/history/999999", world.as_page("viewer"))).status == 404

    on(tmp_path, look)


def test_names(workspace: Workspace) -> None:
    pool(workspace)
    for name in ("", ".hidden", "a/b", "../a", "a b", "x" * 64, "a\n"):
        with pytest.raises(NameTaken):
            actions.create_group(workspace, name, "ann")
        with pytest.raises(NoGroup):
            workspace.groups.read(name)
    with pytest.raises(NameTaken):
        actions.create_group(workspace, "pool", "ann")
    actions.create_group(workspace, "train", "ann")
    with pytest.raises(NameTaken):
        actions.rename(workspace, "train", "pool", workspace.groups.read("train").hash, "ann")
    actions.rename(workspace, "train", "other", workspace.groups.read("train").hash, "ann")
    assert workspace.groups.names() == ["other", "pool"]
    assert [one.what for one in workspace.groups.history("other")] == ["renamed from train", "created"]
    actions.delete_group(workspace, "other", workspace.groups.read("other").hash, "ann")
    assert workspace.groups.names() == ["pool"]


@pytest.mark.parametrize("name", ["2026", "1.5", "null", "true", "no", "0x10"])
def test_a_group_may_be_called_what_yaml_takes_for_something_else(workspace: Workspace, name: str) -> None:
    pool(workspace)
    actions.create_group(workspace, name, "ann")
    moved(workspace, name, "gn6", "gn7")
    look = workspace.view(name)
    assert (look.linted.errors, look.meaning.why, look.meaning.world_size) == ([], "", 2)


def test_a_link_is_no_group(workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "passwords").write_text("nodes: {a: {}}\n")
    (workspace.groups.folder / "linked.yml").symlink_to(tmp_path / "passwords")
    assert workspace.groups.names() == []
    with pytest.raises(NoGroup):
        workspace.groups.read("linked")


SECRET = "4d8f1b0c93e27a65"
WITH_SECRET = POOL + f"env: {{MY_API_KEY: {SECRET}}}\n"


def test_a_secret_in_plain_text_is_not_shown_and_not_lost(workspace: Workspace) -> None:
    (workspace.groups.folder / "pool.yml").write_text(WITH_SECRET)
    look = workspace.view("pool")
    assert SECRET not in look.linted.shown
    assert SECRET not in repr(look.meaning)
    proposed = actions.propose_change(workspace, look.file, {"text": look.linted.shown.replace("gn7", "gn8")})
    assert SECRET not in "".join(proposed.difference)
    assert proposed.text == WITH_SECRET.replace("gn7", "gn8")
    text = actions.editable_text(look.file, look.linted)
    assert text is not None
    assert saved(workspace, "pool", port="29600", env="MY_API_KEY=hidden-secret-1\nA=1").count(SECRET) == 1


def test_a_secret_cannot_be_moved_to_where_it_is_shown(workspace: Workspace) -> None:
    (workspace.groups.folder / "pool.yml").write_text(WITH_SECRET)
    look = workspace.view("pool")
    stolen = look.linted.shown.replace("name: pool", "name: hidden-secret-1")
    with pytest.raises(actions.Refused):
        actions.propose_change(workspace, look.file, {"text": stolen})
    stolen = stolen.replace("env: {MY_API_KEY: hidden-secret-1}", "")
    with pytest.raises(actions.Refused):
        actions.propose_change(workspace, look.file, {"text": stolen})


@pytest.mark.parametrize("field", ["port", "processes", "retries", "gpus", "backend", "interface", "spares", "master"])
@pytest.mark.parametrize("secret", [SECRET, f"{SECRET}-{'b7' * 40}"])
def test_a_secret_that_is_put_into_another_field_is_not_quoted(workspace: Workspace, field: str, secret: str) -> None:
    (workspace.groups.folder / "pool.yml").write_text(WITH_SECRET.replace(SECRET, secret))
    look = workspace.view("pool")
    with pytest.raises(actions.Refused) as refused:
        actions.propose_change(workspace, look.file, {field: "hidden-secret-1"})
    assert SECRET not in str(refused.value)


def test_what_is_wrong_in_a_file_is_told_without_what_it_holds(workspace: Workspace) -> None:
    text = POOL + f'env: "DB_PASSWORD={SECRET}"\n'
    (workspace.groups.folder / "pool.yml").write_text(text)
    with pytest.raises(FilesWrong) as wrong:
        launch_scripts(workspace.groups.folder / "pool.yml", text, "sh")
    assert SECRET not in str(wrong.value)


@pytest.mark.parametrize(
    "lines",
    [
        f"env: {{MY_API_KEY: {SECRET}}}  # noqa: secret.value",
        f"env: {{MY_API_KEY: {SECRET}, OTHER_TOKEN: 7ab3c45d9e021f68}}",
        f"env: {{OTHER_TOKEN: 7ab3c45d9e021f68, MY_API_KEY: {SECRET}}}",
        f"env: {{MY_API_KEY: {SECRET}}}\nnetwork: {{ports: 1-2",  # no YAML
        "env:\n" + "".join(f"  NUMBER_{number}_TOKEN: 7ab3c45d9e02{number:04d}\n" for number in range(600))
        + f"  MY_API_KEY: {SECRET}",
    ],
    ids=["silenced", "first of two in a line", "second of two in a line", "broken YAML", "one of very many"],
)  # fmt: skip
def test_a_secret_is_hidden_whether_lint_tells_of_it_or_not(workspace: Workspace, lines: str) -> None:
    (workspace.groups.folder / "pool.yml").write_text(f"{POOL}{lines}\n")
    look = workspace.view("pool")
    assert SECRET not in repr((look.linted.findings, look.linted.shown, look.meaning))
    assert not look.linted.closed
    assert "7ab3c45d9e02" not in look.linted.shown
    proposed = actions.propose_change(workspace, look.file, {"text": look.linted.shown.replace("gn7", "gn8")})
    assert proposed.text == look.file.text.replace("gn7", "gn8")


def test_what_cannot_be_hidden_closes_the_text(workspace: Workspace) -> None:
    of_two_lines = f'defaults: {{activate: "source env\n    && export MY_API_KEY={SECRET}"}}'
    block = f"defaults:\n  activate: |\n    export MY_API_KEY={SECRET}"
    for lines in (of_two_lines, block):
        text = POOL.replace("defaults: {connection: ssh, ssh: {user: train}}", lines)
        (workspace.groups.folder / "pool.yml").write_text(text)
        look = workspace.view("pool")
        assert SECRET not in repr((look.linted, look.meaning)), lines


def test_a_secret_on_the_command_line_is_hidden_in_json_as_well(workspace: Workspace) -> None:
    command = f"launch: {{command: [python, train.py, --api-key, {SECRET}]}}\n"
    (workspace.groups.folder / "pool.yml").write_text(POOL + command)
    look = workspace.view("pool")
    assert look.meaning.command == ("python", "train.py", "--api-key", "***")
    assert SECRET not in repr((look.linted.shown, look.meaning))


# As a server answers.


def on(folder: Path, look: Callable[[World], Awaitable[None]]) -> None:
    async def run() -> None:
        (folder / "groups").mkdir()
        (folder / "groups" / "pool.yml").write_text(POOL)
        async with world_of(folder) as world:
            await look(world)

    asyncio.run(run())


async def post(world: World, path: str, **fields: str) -> Any:
    headers = world.as_page("operator", content_type="application/x-www-form-urlencoded")
    return await world.ask("POST", path, headers, body=urlencode(fields).encode())


async def api(world: World, method: str, path: str, body: object = None, **headers: str) -> Any:
    given = world.as_program("operator", content_type="application/json", **headers)
    return await world.ask(method, path, given, body=b"" if body is None else json.dumps(body).encode())


def test_the_page_of_a_group_shows_its_ranks_and_takes_a_change(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        page = await world.ask("GET", "/groups/pool", world.as_page("viewer"))
        assert page.status == 200
        assert b"gn39-0" in page.body
        seen = world.app.state.workspace.groups.read("pool").hash
        assert (await post(world, "/groups/pool", seen=seen, port="29600")).status == 303
        late = await post(world, "/groups/pool", seen=seen, port="29700")
        assert late.status == 412
        assert b'value="29700"' in late.body  # what was typed is still there
        assert "port: 29600" in world.app.state.workspace.groups.read("pool").text
        part = await post(world, "/groups/pool/preview?part=1", master="gn7")
        assert b"gn7-0</th>" in part.body
        assert b"<html" not in part.body

    on(tmp_path, look)


def test_a_change_over_the_api_says_which_state_it_is_made_for(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        shown = await api(world, "GET", "/api/v1/groups/pool")
        change = {"fields": {"port": "29600"}}
        assert (await api(world, "PUT", "/api/v1/groups/pool", change)).status == 428
        assert (await api(world, "PUT", "/api/v1/groups/pool", change, if_match='"0"')).status == 412
        done = await api(world, "PUT", "/api/v1/groups/pool", change, if_match=shown.header("etag"))
        assert (done.status, done.json()["changed"]) == (200, ["port"])
        assert (await api(world, "DELETE", "/api/v1/groups/pool", if_match=shown.header("etag"))).status == 412
        assert (await api(world, "DELETE", "/api/v1/groups/pool", if_match=done.header("etag"))).status == 200
        assert (await api(world, "GET", "/api/v1/groups/pool")).status == 404

    on(tmp_path, look)


def test_json_that_says_nothing_here_is_refused(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        etag = (await api(world, "GET", "/api/v1/groups/pool")).header("etag")
        half = "\ud800"
        tried = [
            ("PUT", "/api/v1/groups/pool", {"text": POOL + f"# {half}"}, 400),
            ("POST", "/api/v1/move", {"nodes": [{"group": "", "node": half}], "target": "pool"}, 400),
            ("POST", "/api/v1/groups/pool/rename", [half], 400),
            ("PUT", "/api/v1/groups/pool", {"fields": {"prot": "29600"}}, 422),
            ("POST", "/api/v1/groups/pool/preview", {"fields": {"node.gn8.gpus": "1"}}, 422),
        ]
        for method, path, body, status in tried:
            answer = await api(world, method, path, body, if_match=etag)
            assert answer.status == status, (path, body, answer.body)
        assert "no such field" in answer.json()["error"]["says"]
        assert world.app.state.workspace.groups.read("pool").text == POOL

    on(tmp_path, look)


def test_scripts_are_downloaded_without_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret_token")

    async def look(world: World) -> None:
        workspace = world.app.state.workspace
        text = POOL + "env: {TOKEN: {env: HF_TOKEN}, PLAIN: seen}\nlaunch: {command: [python, train.py]}\n"
        workspace.groups.save("pool", text, workspace.groups.read("pool").hash, "ann", "")
        answer = await world.ask("GET", "/groups/pool/scripts/sh", world.as_page("viewer"))
        archive = zipfile.ZipFile(BytesIO(answer.body))
        assert archive.namelist() == [f"{node}/launch.sh" for node in ("gn6", "gn39", "gn40", "gn7")]
        scripts = b"".join(archive.read(name) for name in archive.namelist())
        assert b"PLAIN" in scripts
        assert b"very_secret" not in scripts
        one = await world.ask("GET", "/groups/pool/scripts/ps1/gn7", world.as_page("viewer"))
        assert one.body.startswith(b"\xef\xbb\xbf")
        assert (await world.ask("GET", "/groups/pool/scripts/ps1/gn8", world.as_page("viewer"))).status == 404
        whole = await world.ask("GET", "/groups/pool", world.as_page("viewer"))
        assert b"very_secret" not in whole.body

    on(tmp_path, look)


def test_markup_in_a_file_is_text_on_every_page(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        workspace = world.app.state.workspace
        hostile = "<script>alert(1)</script>"
        text = POOL + f'env: {{A: "{hostile}"}}\nlaunch: {{command: ["{hostile}"]}}\n# {hostile}\n'
        workspace.groups.save("pool", text, workspace.groups.read("pool").hash, hostile, hostile)
        for path in ("/groups", "/groups/pool", "/", "/nodes/gn6"):
            page = await world.ask("GET", path, world.as_page("admin"))
            assert page.status == 200, path
            assert b"<script>alert" not in page.body, path

    on(tmp_path, look)


def test_the_fleet_has_every_node_of_every_group(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        nodes: list[Mapping[str, Any]] = (await api(world, "GET", "/api/v1/fleet")).json()["nodes"]
        assert [(node["name"], node["group"], node["state"]) for node in nodes] == [
            (name, "pool", "no agent") for name in ("gn6", "gn39", "gn40", "gn7")
        ]
        filtered = await world.ask("GET", "/?q=gn4", world.as_page("viewer"))
        assert b"/nodes/gn40" in filtered.body
        assert b"/nodes/gn39" not in filtered.body

    on(tmp_path, look)


def test_an_open_page_of_the_fleet_is_sent_what_changes_packed_and_without_a_token(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        page = await world.ask("GET", "/?q=gn", world.as_page("viewer", accept_encoding="gzip"))
        token = csrf_token(world.sessions["viewer"]).encode()
        assert token in page.body
        assert page.header("content-encoding") is None
        whole = await world.ask("GET", "/?q=gn", world.as_page("viewer", x_live="1"))
        packed = await world.ask("GET", "/?q=gn", world.as_page("viewer", x_live="1", accept_encoding="br, gzip"))
        assert packed.header("content-encoding") == "gzip"
        for part in (whole.body, gzip.decompress(packed.body)):
            assert part.startswith(b'<div id="fleet"')
            assert b"/nodes/gn40" in part
            assert part in page.body
            assert token not in part
        stranger = await world.ask("GET", "/", [("host", HOST), ("x-live", "1")])
        assert stranger.status == 303

    on(tmp_path, look)


def test_a_node_that_is_silent_can_be_undrained_and_tells_of_its_gpus(tmp_path: Path) -> None:
    async def look(world: World) -> None:
        fleet = world.app.state.fleet
        _, token = fleet.enrol_host(Enrolment.of(fleet.make_enrolment_string("ann")).secret, "gn6")
        member = fleet.by_token(token)
        member.beat = Heartbeat(1, gpus=[GpuLoad(0, "NVIDIA H100", 97.0, 40960, 81559), GpuLoad(1, "NVIDIA H100")])
        page = await world.ask("GET", "/nodes/gn6", world.as_page("operator"))
        assert b"2 GPUs" in page.body
        assert b'97 %</td><td class="number">40 GiB of 79.6 GiB</td>' in page.body
        assert (await post(world, "/nodes/gn6/drain", drain="on")).status == 303
        fleet._awake.seconds += 3600
        assert fleet.node("gn6").state == "LOST"
        for path in ("/nodes/gn6", "/admin"):
            page = await world.ask("GET", path, world.as_page("admin"))
            assert b"LOST" in page.body, path
            assert b'name="drain" value="off"' in page.body, path
        assert (await post(world, "/nodes/gn6/drain", drain="off")).status == 303
        assert not fleet.node("gn6").drained_here

    on(tmp_path, look)


def test_a_node_goes_up_and_down_with_its_comment(workspace: Workspace) -> None:
    pool(workspace)

    def shifted(node: str, by: int) -> list[str]:
        actions.shift_group_node(workspace, "pool", node, by, workspace.groups.read("pool").hash, "ann")
        return [worker for worker, *_ in table(workspace, "pool")]

    assert shifted("gn40", -1) == ["gn6-0", "gn40-0", "gn39-0", "gn7-0"]
    assert shifted("gn6", 1) == ["gn40-0", "gn6-0", "gn39-0", "gn7-0"]
    assert "gn6: {address: 10.0.0.6}   # rank 0, mostly" in workspace.groups.read("pool").text
    assert shifted("gn40", -1) == ["gn40-0", "gn6-0", "gn39-0", "gn7-0"]
    with pytest.raises(actions.Refused, match="no node"):
        shifted("gn8", 1)
    saved(workspace, "pool", order="alphabet")
    with pytest.raises(actions.Refused, match="ordered by their names"):
        shifted("gn6", 1)


def test_a_moment_tells_of_which_zone_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "EST5")
    time.tzset()
    try:
        assert moment(0.0) == "1969-12-31 19:00:00 EST"
    finally:
        monkeypatch.undo()
        time.tzset()
