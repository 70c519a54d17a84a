"""The admins' page of people, tokens, agents and the audit, and the same as JSON. Every change is a function that both
call; a person's own account is here as well."""

from __future__ import annotations

import asyncio
import dataclasses

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from runbook.agent.protocol import Enrolment
from runbook.serve.guards import RequestRefused, query_number, read_json_body
from runbook.serve.page import Page
from runbook.serve.pages.nodes import NODE_GLYPHS
from runbook.serve.people import Audit, parse_role
from runbook.serve.rendering import AsciiJson, html_response
from runbook.serve.workspace import fleet_of, people_of

AUDIT_ENTRIES_PER_PAGE = 100


def _audit_of(request: Request) -> Audit:
    audit: Audit = request.app.state.audit
    return audit


# The page.


async def show_admin_page(request: Request, **made: str) -> Response:
    """The admins' page. `made` has secrets that are shown only once: a new token, a login link, an enrolment string."""
    before = query_number(request, "before")
    people, audit = people_of(request), _audit_of(request)
    entries = audit.newest(AUDIT_ENTRIES_PER_PAGE + 1, before)
    return await html_response(
        request,
        "admin.html",
        people=people.all(),
        tokens=people.tokens(),
        agents=fleet_of(request).nodes(),
        entries=entries[:AUDIT_ENTRIES_PER_PAGE],
        older=entries[AUDIT_ENTRIES_PER_PAGE - 1].id if len(entries) > AUDIT_ENTRIES_PER_PAGE else None,
        made={"token": "", "link": "", "who": "", "string": "", "name": "", **made},
        local="string" in made and Enrolment.of(made["string"]).local,
        node_glyphs=NODE_GLYPHS,
        address="/admin" if made else "",
    )


async def add_person(request: Request) -> Response:
    """Add a person; shows a link that logs them in once, so that nobody chooses another person's password."""
    form = request.state.form
    name = str(form.get("name", ""))
    _save_person(request, name, str(form.get("role", "")))
    return await show_admin_page(request, who=name, link=_login_link(request, name))


def _save_person(request: Request, name: str, role: str) -> None:
    request.state.about = f"{name}, {role}"
    people_of(request).add(name, parse_role(role))


def _login_link(request: Request, name: str) -> str:
    return f"{request.state.origin}/login/{people_of(request).link(name)}"


async def change_person(request: Request) -> Response:
    _change_role(request, str(request.state.form.get("role", "")))
    return _back_to_admin()


def _change_role(request: Request, role: str) -> None:
    request.state.about = role
    people_of(request).change(request.path_params["name"], role=parse_role(role))


async def remove_person(request: Request) -> Response:
    people_of(request).remove(request.path_params["name"])
    return _back_to_admin()


async def show_new_login_link(request: Request) -> Response:
    name = request.path_params["name"]
    return await show_admin_page(request, who=name, link=_login_link(request, name))


async def add_token(request: Request) -> Response:
    form = request.state.form
    _, secret = _make_token(request, str(form.get("role", "")), str(form.get("purpose", "")))
    return await show_admin_page(request, token=secret)


def _make_token(request: Request, role: str, purpose: str) -> tuple[str, str]:
    """Make a token for the person who asks; returns its id and the token itself."""
    request.state.about = f"{role}, {purpose}"
    return people_of(request).make_token(request.state.person.name, parse_role(role), purpose)


async def revoke_token(request: Request) -> Response:
    people_of(request).revoke_token(request.path_params["id"])
    return _back_to_admin()


async def enrol_agent(request: Request) -> Response:
    """Show a new enrolment string; if no name is given, the host chooses its own."""
    name = str(request.state.form.get("name", "")).strip()
    return await show_admin_page(request, name=name, string=await asyncio.to_thread(_make_enrolment, request, name))


async def revoke_agent(request: Request) -> Response:
    await asyncio.to_thread(fleet_of(request).revoke, request.path_params["name"])
    return RedirectResponse("/admin#agents", 303)


def _make_enrolment(request: Request, name: str) -> str:
    request.state.about = name
    return fleet_of(request).make_enrolment_string(request.state.person.name, name.strip() or None)


def _back_to_admin() -> Response:
    return RedirectResponse("/admin", 303)


# The account of the person who asks.


async def show_account(request: Request) -> Response:
    return await html_response(request, "account.html")


async def change_password(request: Request) -> Response:
    """Change the own password, which ends every session of the person, this one too, and so a stolen one. Raises
    RequestRefused for a token: it may allow less than its person, and a password allows all that the person may do."""
    form, person = request.state.form, request.state.person
    if not person.session:
        raise RequestRefused(403, "a password is changed by logging in, not with a token")
    await asyncio.to_thread(people_of(request).change, person.name, password=str(form.get("password", "")))
    return RedirectResponse("/login", 303)


# JSON.


async def api_list_people(request: Request) -> Response:
    return AsciiJson({"people": [{"name": one.name, "role": one.role} for one in people_of(request).all()]})


async def api_add_person(request: Request) -> Response:
    asked = await json_text_fields(request, "name", "role")
    _save_person(request, asked["name"], asked["role"])
    return AsciiJson({"name": asked["name"], "role": asked["role"]}, 201)


async def api_change_person(request: Request) -> Response:
    role = (await json_text_fields(request, "role"))["role"]
    _change_role(request, role)
    return AsciiJson({"name": request.path_params["name"], "role": role})


async def api_make_login_link(request: Request) -> Response:
    return AsciiJson({"link": _login_link(request, request.path_params["name"])}, 201)


async def api_remove_person(request: Request) -> Response:
    people_of(request).remove(request.path_params["name"])
    return Response(status_code=204)


async def api_me(request: Request) -> Response:
    return AsciiJson({"name": request.state.person.name, "role": request.state.person.role})


async def api_list_tokens(request: Request) -> Response:
    return AsciiJson({"tokens": [dataclasses.asdict(token) for token in people_of(request).tokens()]})


async def api_add_token(request: Request) -> Response:
    asked = await json_text_fields(request, "role", "purpose")
    identity, secret = _make_token(request, asked["role"], asked["purpose"])
    return AsciiJson({"id": identity, "token": secret}, 201)


async def api_revoke_token(request: Request) -> Response:
    people_of(request).revoke_token(request.path_params["id"])
    return Response(status_code=204)


async def api_enrol_agent(request: Request) -> Response:
    asked = await json_text_fields(request, "name")
    return AsciiJson({"string": await asyncio.to_thread(_make_enrolment, request, asked["name"])}, 201)


async def api_revoke_agent(request: Request) -> Response:
    await asyncio.to_thread(fleet_of(request).revoke, request.path_params["name"])
    return Response(status_code=204)


async def api_list_audit(request: Request) -> Response:
    """A page of the audit, the newest entry first; `before=` is the id of an entry after which the page begins."""
    entries = _audit_of(request).newest(AUDIT_ENTRIES_PER_PAGE, query_number(request, "before"))
    return AsciiJson({"audit": [dataclasses.asdict(entry) for entry in entries]})


async def json_text_fields(request: Request, *names: str) -> dict[str, str]:
    """The texts of a JSON object that has exactly these keys. Raises RequestRefused."""
    asked = await read_json_body(request)
    if set(asked) != set(names):
        raise RequestRefused(422, f"the body must be an object with {', '.join(names)} and nothing else")
    for name in names:
        if not isinstance(asked[name], str):
            raise RequestRefused(422, f"{name} must be text")
    return asked


PAGES = [
    Page("/admin", ("GET",), show_admin_page, "admin", says="People, tokens, agents and the audit", nav="Admin"),
    Page("/admin/people", ("POST",), add_person, "admin", says="Add a person"),
    Page("/admin/people/{name}/role", ("POST",), change_person, "admin", says="Change a person's role"),
    Page("/admin/people/{name}/remove", ("POST",), remove_person, "admin", says="Remove a person"),
    Page("/admin/people/{name}/link", ("POST",), show_new_login_link, "admin", says="Make a login link"),
    Page("/admin/tokens", ("POST",), add_token, "admin", says="Make a token"),
    Page("/admin/tokens/{id}/revoke", ("POST",), revoke_token, "admin", says="Revoke a token"),
    Page("/admin/agents", ("POST",), enrol_agent, "admin", says="Make a string that enrols a node"),
    Page("/admin/agents/{name}/revoke", ("POST",), revoke_agent, "admin", says="Revoke an agent"),
    Page("/account", ("GET",), show_account, "viewer", says="One's own account"),
    Page("/account/password", ("POST",), change_password, "viewer", says="Change the own password"),
    Page("/api/v1/me", ("GET",), api_me, "viewer", kind="api", says="The person who asks, and the role"),
    Page("/api/v1/people", ("GET",), api_list_people, "admin", kind="api", says="List the people"),
    Page("/api/v1/people", ("POST",), api_add_person, "admin", kind="api", says="Add a person"),
    Page("/api/v1/people/{name}", ("PUT",), api_change_person, "admin", kind="api", says="Change a person's role"),
    Page("/api/v1/people/{name}/link", ("POST",), api_make_login_link, "admin", kind="api", says="Make a login link"),
    Page("/api/v1/people/{name}", ("DELETE",), api_remove_person, "admin", kind="api", says="Remove a person"),
    Page("/api/v1/tokens", ("GET",), api_list_tokens, "admin", kind="api", says="List the tokens"),
    Page("/api/v1/tokens", ("POST",), api_add_token, "admin", kind="api", says="Make a token"),
    Page("/api/v1/tokens/{id}", ("DELETE",), api_revoke_token, "admin", kind="api", says="Revoke a token"),
    Page("/api/v1/agents", ("POST",), api_enrol_agent, "admin", "api", "Make a string that enrols a node"),
    Page("/api/v1/agents/{name}", ("DELETE",), api_revoke_agent, "admin", "api", "Revoke an agent"),
    Page("/api/v1/audit", ("GET",), api_list_audit, "admin", kind="api", says="Who changed what"),
]
