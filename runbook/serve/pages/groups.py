"""The pages of groups, and the same as JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from runbook.model.inventory import SHELLS
from runbook.model.units import parse_whole_number
from runbook.serve import group_actions as actions
from runbook.serve.group_files import MAX_GROUP_BYTES, ChangedMeanwhile, GroupFile, Groups, NoGroup, Version
from runbook.serve.group_form import form_fields, node_entries
from runbook.serve.group_preview import Linted, Meaning, group_diff_lines, launch_scripts, lint_group_text, zip_archive
from runbook.serve.guards import RequestRefused, read_json_body
from runbook.serve.page import Handler, Page
from runbook.serve.pages.nodes import fleet_rows
from runbook.serve.rendering import AsciiJson, html_response, json_response
from runbook.serve.run_folders import RunRow
from runbook.serve.workspace import GroupView, Workspace, fleet_of, workspace_of

T = TypeVar("T")
_NON_GROUP_FIELDS = ("csrf", "seen", "only")
ORDER_LABELS = {
    "": "of the file",
    "alphabet": "gn39 before gn7",
    "name": "gn7 before gn39",
}


async def _run_group_action(request: Request, action: Callable[..., T], *args: Any, **more: Any) -> T:
    """What an action of `group_actions` returns, called in a thread and in the name of the person who asks."""
    return await run_in_threadpool(action, workspace_of(request), *args, person=_person_name(request), **more)


def _group_name(request: Request) -> str:
    """The name of the group in the request's path."""
    return str(request.path_params["name"])


def _make_end_handler(**more: Any) -> Handler:
    """A handler that stops the group's run (or kills it, with `now=True`), and shows the group's page again with the
    changes in the form, which are not saved."""

    async def end(request: Request) -> Response:
        await _run_group_action(request, actions.end_latest_run, _group_name(request), **more)
        try:
            proposed = await _proposed_changes(request)
        except actions.Refused as refused:
            return await _group_page(request, wrong=f"Not saved: {refused}")
        return await _group_page(request, proposed) if proposed else _redirect_to_group(_group_name(request))

    return end


async def _proposed_changes(request: Request) -> actions.Proposed | None:
    """What saving the form would change; None if it would change nothing, or the request has no form. Raises Refused
    for changes that could not be saved."""
    if not form_file_hash(request):
        return None
    workspace = workspace_of(request)
    file = await run_in_threadpool(workspace.groups.read, _group_name(request))
    proposed = await run_in_threadpool(actions.propose_change, workspace, file, _group_fields(request))
    return proposed if proposed.changed else None


async def _refusal_of_unseen_file(request: Request, deed: str) -> Response | None:
    """The group's page again, with the reason why nothing was `deed` (started, restarted): the file was changed
    meanwhile, or changes in the form are not saved. None if the file is as the page shows it: people must start what
    they see."""
    seen = form_file_hash(request)
    if not seen:
        return None
    file = await run_in_threadpool(workspace_of(request).groups.read, _group_name(request))
    if file.hash != seen:
        says = f"Not {deed}: {ChangedMeanwhile(file)}. Undo shows the file as it is now."
        return await _group_page(request, wrong=says, status=412)
    try:
        proposed = await _proposed_changes(request)
    except actions.Refused as refused:
        return await _group_page(request, wrong=f"Not {deed}: what you changed is not saved, and {refused}", status=409)
    if proposed is None:
        return None
    what = ", ".join("the text of the file" if one == "text" else one for one in proposed.changed)
    says = f"Not {deed}: what you changed is not saved ({what}). Save it or undo it first."
    return await _group_page(request, proposed, wrong=says, status=409)


def _form_field(request: Request, name: str) -> str:
    value = request.state.form.get(name, "")
    return value if isinstance(value, str) else ""


def _person_name(request: Request) -> str:
    return str(request.state.person.name)


def _redirect_to_group(name: str = "") -> Response:
    return RedirectResponse(f"/groups/{quote(name)}" if name else "/groups", 303)


# All groups.


async def show_groups(request: Request) -> Response:
    workspace = workspace_of(request)
    found = await run_in_threadpool(_group_cards, workspace)
    every = await run_in_threadpool(fleet_rows, workspace, fleet_of(request))
    select = request.query_params.get("select", "")
    chosen = {"all": lambda row: True, "idle": lambda row: not row.busy}.get(select, lambda row: False)
    return await html_response(
        request, "groups.html", cards=found, rows=every, chosen=chosen, unheard=workspace.unheard
    )


def _group_cards(workspace: Workspace) -> list[tuple[GroupView, RunRow | None, bool]]:
    found = []
    for look in workspace.all_groups():
        latest = workspace.latest_run(look.file.name)
        found.append((look, latest, latest is not None and workspace.processes.lives(latest.id)))
    return found


async def submit_new_group(request: Request) -> Response:
    name = _form_field(request, "name").strip()
    await _create_named_group(request, name)
    return _redirect_to_group(name)


async def _create_named_group(request: Request, name: str) -> GroupFile:
    request.state.about = name
    return await _run_group_action(request, actions.create_group, name)


async def submit_node_move(request: Request) -> Response:
    """Move nodes. The form has a field `node` for each node, `GROUP/NODE` (`/NODE` for a node of no group), and
    `target`, empty for no group, or `new`, the name of a group to create."""
    target = _form_field(request, "target")
    parts = [str(one).partition("/") for one in request.state.form.getlist("node")]
    chosen = [(group, node) for group, between, node in parts if between]
    if not chosen:
        raise RequestRefused(422, "no node is chosen", "tick those that are to be moved")
    made = None
    if _form_field(request, "new").strip():
        target = _form_field(request, "new").strip()
        made = await _run_group_action(request, actions.create_group, target)
    try:
        await _move_chosen_nodes(request, chosen, target)
    except Exception:
        if made is not None:
            with contextlib.suppress(ChangedMeanwhile):  # some nodes are in the new group already: it stays
                await _run_group_action(request, actions.delete_group, target, made.hash)
        raise
    back = _form_field(request, "back")
    return _redirect_to_group(back if back in workspace_of(request).groups.names() else "")


async def _move_chosen_nodes(request: Request, chosen: Sequence[tuple[str, str]], target: str) -> list[str]:
    request.state.about = f"{', '.join(node for _, node in chosen)} to {target or 'no group'}"
    agents = {agent.name: agent for agent in fleet_of(request).nodes()}
    return await _run_group_action(request, actions.move_nodes, chosen, target, agents=agents)


# One group.


async def show_group(request: Request) -> Response:
    return await _group_page(request)


async def _group_page(
    request: Request, proposed: actions.Proposed | None = None, wrong: str = "", status: int = 200
) -> Response:
    workspace, name = workspace_of(request), _group_name(request)
    look = await run_in_threadpool(workspace.view, name)
    latest = await run_in_threadpool(workspace.latest_run, name)
    lives = latest is not None and await run_in_threadpool(workspace.processes.lives, latest.id)
    text, shown = actions.editable_text(look.file, look.linted), look.linted.shown
    fields = form_fields(text) if text else {}
    given = _group_fields(request) if request.method == "POST" else {}
    every = await run_in_threadpool(fleet_rows, workspace, fleet_of(request))
    return await html_response(
        request,
        "group.html",
        status=status,
        group=name,
        address=f"/groups/{quote(name)}" if request.method == "POST" else "",
        look=look,
        seen=form_file_hash(request) or look.file.hash,
        fields={**fields, **given},
        world_size=given.get("world_size", ""),
        nodes=list(node_entries(text)) if text else [],
        text=given.get("text", shown),
        editing_text=actions.with_unix_line_ends(given.get("text", shown)) != actions.with_unix_line_ends(shown),
        proposed=proposed,
        unsaved=bool(wrong or (proposed and proposed.changed)),
        now=proposed.meaning if proposed else look.meaning,
        findings=(proposed.linted if proposed else look.linted).findings,
        before={rank.worker: rank.rank for rank in look.meaning.ranks},
        wrong=wrong,
        latest=latest,
        lives=lives,
        ending=workspace.ending(latest) if latest else "",
        not_restarted=workspace.restarts.why_not(latest.id) if latest else "",
        unheard=workspace.unheard,
        versions=await run_in_threadpool(workspace.groups.history, name),
        others=[other for other in workspace.groups.names() if other != name],
        outside=[row for row in every if row.group != name],
        members={row.name: row for row in every if row.group == name},
        orders=ORDER_LABELS,
        shells=SHELLS,
    )


def form_file_hash(request: Request) -> str:
    """The hash of the file that the form was made from; empty if the request has none."""
    return _form_field(request, "seen") if request.method == "POST" else ""


def _group_fields(request: Request) -> dict[str, str]:
    return {name: str(value) for name, value in request.state.form.items() if name not in _NON_GROUP_FIELDS}


async def show_preview(request: Request) -> Response:
    """What saving the form would do, as a whole page; with `part=1`, for the page's script, only the part that
    changes."""
    workspace, name = workspace_of(request), _group_name(request)
    file = (await run_in_threadpool(workspace.view, name)).file
    alone = request.query_params.get("part") == "1"
    try:
        proposed = await run_in_threadpool(actions.propose_change, workspace, file, _group_fields(request))
    except actions.Refused as refused:
        if alone:
            return await html_response(request, "group_wrong.html", wrong=str(refused))
        return await _group_page(request, wrong=f"Not saved: {refused}", status=422)
    if not alone:
        return await _group_page(request, proposed)
    look = await run_in_threadpool(workspace.view, name)
    return await html_response(
        request,
        "group_preview.html",
        group=name,
        proposed=proposed,
        now=proposed.meaning,
        findings=proposed.linted.findings,
        before={rank.worker: rank.rank for rank in look.meaning.ranks},
        shells=SHELLS,
    )


async def submit_group_save(request: Request) -> Response:
    workspace, name = workspace_of(request), _group_name(request)
    try:
        await run_in_threadpool(
            actions.save_group, workspace, name, _group_fields(request), form_file_hash(request), _person_name(request)
        )
    except actions.Refused as refused:
        return await _group_page(request, wrong=f"Not saved: {refused}", status=422)
    except ChangedMeanwhile as error:
        return await _group_page(request, wrong=f"Not saved: {error}. What you typed is below.", status=412)
    return _redirect_to_group(name)


async def submit_node_shift(request: Request) -> Response:
    """Move a node one place up or down: the form's field `shift` is up/NODE or down/NODE."""
    name, (way, _, node) = _group_name(request), _form_field(request, "shift").partition("/")
    if way not in ("up", "down"):
        raise RequestRefused(422, "up or down?")
    by = -1 if way == "up" else 1
    await _run_group_action(request, actions.shift_group_node, name, node, by, form_file_hash(request))
    return RedirectResponse(f"/groups/{quote(name)}#nodes-of", 303)


async def rename(request: Request) -> Response:
    new = request.state.about = _form_field(request, "new").strip()
    await _run_group_action(request, actions.rename, _group_name(request), new, form_file_hash(request))
    return _redirect_to_group(new)


async def submit_group_deletion(request: Request) -> Response:
    await _run_group_action(request, actions.delete_group, _group_name(request), form_file_hash(request))
    return _redirect_to_group()


async def submit_version_restore(request: Request) -> Response:
    await _run_group_action(
        request, actions.restore_version, _group_name(request), _version_number(request), form_file_hash(request)
    )
    return _redirect_to_group(_group_name(request))


def _version_number(request: Request) -> int:
    version = parse_whole_number(str(request.path_params["version"]))
    if version is None:
        raise RequestRefused(404, "there is no such version")
    return version


async def version_page(request: Request) -> Response:
    """The page of one version of the file: what the version changed."""
    name, groups = _group_name(request), workspace_of(request).groups
    one, _, lines = await run_in_threadpool(_version_and_diff, groups, name, _version_number(request))
    now = ""
    with contextlib.suppress(NoGroup):
        now = (await run_in_threadpool(groups.read, name)).hash
    return await html_response(request, "group_version.html", group=name, one=one, lines=lines, now=now)


def _version_and_diff(groups: Groups, name: str, number: int) -> tuple[Version, Linted, list[str]]:
    """A version of a group, its text as people may see it, and the diff to the version before it. Raises
    RequestRefused."""
    history = groups.history(name)
    at = next((at for at, one in enumerate(history) if one.id == number), None)
    if at is None:
        raise RequestRefused(404, "there is no such version")
    seen = [lint_group_text(groups.path(name), groups.text_of(name, one.id) or "") for one in history[at : at + 2]]
    new, old = seen[0], seen[1] if len(seen) > 1 else Linted([], "", {})
    closed = old.closed or new.closed
    return history[at], new, [closed] if closed else group_diff_lines(name, old.shown, new.shown)


async def submit_group_start(request: Request) -> Response:
    if (refused := await _refusal_of_unseen_file(request, "started")) is not None:
        return refused
    only = _form_field(request, "only") == "launch"
    id = await _run_group_action(request, actions.start_group, _group_name(request), only_launch=only)
    return RedirectResponse(f"/runs/{id}", 303)


async def submit_group_restart(request: Request) -> Response:
    if (refused := await _refusal_of_unseen_file(request, "restarted")) is not None:
        return refused
    await _run_group_action(request, actions.restart_group, _group_name(request))
    return _redirect_to_group(_group_name(request))


async def download(request: Request) -> Response:
    """The launch scripts of all nodes as a ZIP archive, or the script of one node."""
    name, shell, node = _group_name(request), request.path_params["shell"], request.path_params.get("node", "")
    if shell not in SHELLS:
        raise RequestRefused(404, "there are scripts for sh, bat and ps1")
    file = (await run_in_threadpool(workspace_of(request).view, name)).file
    found = await run_in_threadpool(launch_scripts, file.path, file.text, shell)
    if not node:
        archive = await run_in_threadpool(zip_archive, found)
        return _attachment_response(archive, f"{name}-{shell}.zip", "application/zip")
    if f"{node}/launch.{shell}" not in found:
        raise RequestRefused(404, "there is no such node in this group")
    return _attachment_response(found[f"{node}/launch.{shell}"], f"{node}-launch.{shell}", "application/octet-stream")


def _attachment_response(data: bytes, name: str, kind: str) -> Response:
    return Response(data, media_type=kind, headers={"content-disposition": f'attachment; filename="{name}"'})


# JSON.


def group_json(look: GroupView, latest: RunRow | None, *, whole: bool = False) -> dict[str, Any]:
    """A group for the API; with `whole`, also its text, ranks, environments and findings."""
    means = look.meaning
    document: dict[str, Any] = {
        "name": look.file.name,
        "hash": look.file.hash,
        "nodes": list(means.nodes),
        "spares": list(means.spares),
        "world_size": means.world_size,
        "rendezvous": means.where,
        "backend": means.backend,
        "errors": len(look.linted.errors),
        "latest_run": latest.id if latest else None,
    }
    if whole:
        document |= {"text": look.linted.shown, **meaning_json(means), "findings": findings_json(look.linted)}
    return document


def meaning_json(means: Meaning) -> dict[str, Any]:
    return {
        "ranks": [{**asdict(one), "environment": dict(means.environments.get(one.rank, {}))} for one in means.ranks],
        "launcher": means.launcher,
        "command": list(means.command),
        "why_no_ranks": means.why or None,
    }


def findings_json(seen: Linted) -> list[dict[str, Any]]:
    return list(map(asdict, seen.findings))


def _if_match_hash(request: Request) -> str:
    """The hash, in If-Match, of the file that a change is made for. Raises RequestRefused without one: a change over a
    state that nobody saw would lose that state."""
    given = request.headers.get("if-match", "").strip().strip('"')
    if not given:
        raise RequestRefused(428, "say which state this change is made for", 'If-Match: "HASH", from the ETag of GET')
    return given


def _body_text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name, "")
    if not isinstance(value, str):
        raise RequestRefused(400, f"`{name}` is a text")
    return value


async def api_list_groups(request: Request) -> Response:
    cards = await run_in_threadpool(_group_cards, workspace_of(request))
    return AsciiJson({"groups": [group_json(look, latest) for look, latest, _ in cards]})


async def api_create_group(request: Request) -> Response:
    body = await read_json_body(request)
    file = await _create_named_group(request, _body_text(body, "name"))
    return AsciiJson({"name": file.name, "hash": file.hash}, 201, headers={"etag": f'"{file.hash}"'})


async def api_show_group(request: Request) -> Response:
    workspace, name = workspace_of(request), _group_name(request)
    look = await run_in_threadpool(workspace.view, name)
    latest = await run_in_threadpool(workspace.latest_run, name)
    return await json_response(lambda: group_json(look, latest, whole=True), headers={"etag": f'"{look.file.hash}"'})


def _fields_from_body(body: Mapping[str, Any]) -> dict[str, str]:
    if "text" in body:
        return {"text": _body_text(body, "text")}
    fields = body.get("fields")
    if not isinstance(fields, dict) or not all(isinstance(value, str) for value in fields.values()):
        raise RequestRefused(400, "either `text`, or `fields`: an object of texts")
    return fields


async def api_save_group(request: Request) -> Response:
    workspace, name = workspace_of(request), _group_name(request)
    fields, seen = _fields_from_body(await read_json_body(request)), _if_match_hash(request)
    changed = await run_in_threadpool(actions.save_group, workspace, name, fields, seen, _person_name(request))
    now = await run_in_threadpool(workspace.groups.read, name)
    return AsciiJson({"changed": changed, "hash": now.hash}, headers={"etag": f'"{now.hash}"'})


async def api_preview_change(request: Request) -> Response:
    workspace, name = workspace_of(request), _group_name(request)
    file = (await run_in_threadpool(workspace.view, name)).file
    proposed = await run_in_threadpool(
        actions.propose_change, workspace, file, _fields_from_body(await read_json_body(request))
    )
    document = {"changed": proposed.changed, "diff": proposed.difference, "findings": findings_json(proposed.linted)}
    means = proposed.meaning
    return await json_response(lambda: {**document, **meaning_json(means), "world_size": means.world_size})


async def api_delete_group(request: Request) -> Response:
    await _run_group_action(request, actions.delete_group, _group_name(request), _if_match_hash(request))
    return AsciiJson({})


async def api_rename_group(request: Request) -> Response:
    new = request.state.about = _body_text(await read_json_body(request), "name")
    await _run_group_action(request, actions.rename, _group_name(request), new, _if_match_hash(request))
    return AsciiJson({"name": new})


async def api_move_nodes(request: Request) -> Response:
    """Move nodes: `{"nodes": [{"group": "a", "node": "gn1"}], "target": "b"}`. An empty group, or target, means no
    group."""
    body = await read_json_body(request)
    nodes = body.get("nodes")
    if not isinstance(nodes, list) or not all(isinstance(one, dict) for one in nodes) or not nodes:
        raise RequestRefused(400, "`nodes` is a list of objects with `group` and `node`")
    chosen = [(_body_text(one, "group"), _body_text(one, "node")) for one in nodes]
    changed = await _move_chosen_nodes(request, chosen, _body_text(body, "target"))
    return AsciiJson({"changed": changed})


async def api_start_group(request: Request) -> Response:
    body = await read_json_body(request)
    await _refuse_changed_file(request)
    only = body.get("only") == "launch"
    id = await _run_group_action(request, actions.start_group, _group_name(request), only_launch=only)
    return AsciiJson({"run": id}, 201)


async def api_stop_group(request: Request) -> Response:
    body = await read_json_body(request)
    says = await _run_group_action(request, actions.end_latest_run, _group_name(request), now=body.get("now") is True)
    return AsciiJson({"says": says})


async def _refuse_changed_file(request: Request) -> None:
    """Raises ChangedMeanwhile if the request names a hash of the file, in If-Match, and the file has another by now."""
    if "if-match" in request.headers:
        file = await run_in_threadpool(workspace_of(request).groups.read, _group_name(request))
        if file.hash != _if_match_hash(request):
            raise ChangedMeanwhile(file)


async def api_restart_group(request: Request) -> Response:
    await _refuse_changed_file(request)
    await _run_group_action(request, actions.restart_group, _group_name(request))
    return AsciiJson({"says": actions.RESTART_ANSWER}, 202)


async def api_list_versions(request: Request) -> Response:
    history = await run_in_threadpool(workspace_of(request).groups.history, _group_name(request))
    return AsciiJson({"versions": list(map(asdict, history))})


async def api_show_version(request: Request) -> Response:
    groups = workspace_of(request).groups
    one, seen, lines = await run_in_threadpool(
        _version_and_diff, groups, _group_name(request), _version_number(request)
    )
    return AsciiJson({**asdict(one), "text": seen.shown, "diff": lines})


async def api_restore_version(request: Request) -> Response:
    await _run_group_action(
        request, actions.restore_version, _group_name(request), _version_number(request), _if_match_hash(request)
    )
    now = await run_in_threadpool(workspace_of(request).groups.read, _group_name(request))
    return AsciiJson({"hash": now.hash}, headers={"etag": f'"{now.hash}"'})


_GROUP_PATH = "/groups/{name}"
_API_GROUPS_PATH = "/api/v1/groups"
_API_GROUP_PATH = f"{_API_GROUPS_PATH}/{{name}}"
_MAX_FORM_BYTES = 4 * MAX_GROUP_BYTES  # in a form a byte may take three (%XX)


def _operator_form(path: str, handler: Handler, says: str) -> Page:
    """A form that operators send, with or without the text of a group."""
    return Page(path, ("POST",), handler, "operator", says=says, most_bytes=_MAX_FORM_BYTES)


PAGES = [
    Page("/groups", ("GET",), show_groups, "viewer", says="Groups", nav="Groups"),
    _operator_form("/groups", submit_new_group, "Create a group"),
    _operator_form("/move", submit_node_move, "Move nodes between groups"),
    Page(_GROUP_PATH, ("GET",), show_group, "viewer", says="A group"),
    _operator_form(_GROUP_PATH, submit_group_save, "Change a group"),
    _operator_form(f"{_GROUP_PATH}/preview", show_preview, "Preview a change of a group"),
    _operator_form(f"{_GROUP_PATH}/rename", rename, "Rename a group"),
    _operator_form(f"{_GROUP_PATH}/order", submit_node_shift, "Order the nodes of a group"),
    _operator_form(f"{_GROUP_PATH}/delete", submit_group_deletion, "Delete a group"),
    _operator_form(f"{_GROUP_PATH}/start", submit_group_start, "Start a group"),
    _operator_form(f"{_GROUP_PATH}/stop", _make_end_handler(), "Stop a group"),
    _operator_form(f"{_GROUP_PATH}/kill", _make_end_handler(now=True), "Kill a group"),
    _operator_form(f"{_GROUP_PATH}/restart", submit_group_restart, "Restart a group"),
    Page(f"{_GROUP_PATH}/history/{{version}}", ("GET",), version_page, "viewer", says="A state of a group"),
    _operator_form(f"{_GROUP_PATH}/history/{{version}}", submit_version_restore, "Restore a state of a group"),
    Page(f"{_GROUP_PATH}/scripts/{{shell}}", ("GET",), download, "viewer", says="Scripts of a group"),
    Page(f"{_GROUP_PATH}/scripts/{{shell}}/{{node}}", ("GET",), download, "viewer", says="The script of a node"),
    Page(_API_GROUPS_PATH, ("GET",), api_list_groups, "viewer", "api", "Groups"),
    Page(_API_GROUPS_PATH, ("POST",), api_create_group, "operator", "api", "Create a group"),
    Page(_API_GROUP_PATH, ("GET",), api_show_group, "viewer", "api", "A group"),
    Page(_API_GROUP_PATH, ("PUT",), api_save_group, "operator", "api", "Change a group", most_bytes=_MAX_FORM_BYTES),
    Page(_API_GROUP_PATH, ("DELETE",), api_delete_group, "operator", "api", "Delete a group"),
    Page(
        f"{_API_GROUP_PATH}/preview",
        ("POST",),
        api_preview_change,
        "operator",
        "api",
        "Preview a change",
        most_bytes=_MAX_FORM_BYTES,
    ),
    Page(f"{_API_GROUP_PATH}/rename", ("POST",), api_rename_group, "operator", "api", "Rename a group"),
    Page(f"{_API_GROUP_PATH}/history", ("GET",), api_list_versions, "viewer", "api", "The history of a group"),
    Page(f"{_API_GROUP_PATH}/history/{{version}}", ("GET",), api_show_version, "viewer", "api", "A state of a group"),
    Page(
        f"{_API_GROUP_PATH}/history/{{version}}",
        ("POST",),
        api_restore_version,
        "operator",
        "api",
        "Restore a state of a group",
    ),
    Page(f"{_API_GROUP_PATH}/start", ("POST",), api_start_group, "operator", "api", "Start a group"),
    Page(f"{_API_GROUP_PATH}/stop", ("POST",), api_stop_group, "operator", "api", "Stop or kill a group"),
    Page(f"{_API_GROUP_PATH}/restart", ("POST",), api_restart_group, "operator", "api", "Restart a group"),
    Page("/api/v1/move", ("POST",), api_move_nodes, "operator", "api", "Move nodes between groups"),
]
