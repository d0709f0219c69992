"""The dashboard: pages rendered here, which need no script; one small script keeps a request's life up to date."""

from __future__ import annotations

import base64
import dataclasses
import datetime as dt
import hashlib
import json
import math
import re
import uuid
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlencode

import jinja2
from fastapi import APIRouter, Request
from starlette.responses import FileResponse, HTMLResponse, RedirectResponse, Response

from posterase.errors import PosteraseError
from posterase.record.certificate import page as certificate_page
from posterase.record.deadlines import LAWS, Regulation, now, text_of
from posterase.record.overview import counts, late, standings
from posterase.record.record import Record
from posterase.record.requests import OPEN, states_of
from posterase.record.requests import Request as Asked
from posterase.record.run_queue import newest_order, order_of, place_order
from posterase.record.tokens import end_session, token_of
from posterase.report.report import page as report_page
from posterase.service import formatting
from posterase.service.api import (
    AnyCaller,
    Auditor,
    Kept,
    Operator,
    RequestId,
    Submitter,
    budget_of,
    certificate_file,
    ledger,
    verified,
)
from posterase.service.middleware import CONTENT, PAGES, SIGN_IN, Caller, address_of, field
from posterase.service.sessions import cookie_name, new_session
from posterase.service.settings import Settings

router = APIRouter(include_in_schema=False)

EASTERNMOST = dt.timedelta(hours=14)
"""How far the earliest time zone is ahead of UTC."""

STATIC_FILES = Path(__file__).parent / "static"

templates = jinja2.Environment(
    loader=jinja2.PackageLoader("posterase.service"), autoescape=True, undefined=jinja2.StrictUndefined
)
templates.globals |= {"formatting": formatting, "PAGES": PAGES, "SIGN_IN": SIGN_IN}

OURS = re.compile(rf"{PAGES}(?:/[\w.-]+)*(?:\?[\w=&.%-]*)?")
"""Where signing in may lead."""

VIEWS = {
    "open": OPEN,
    "completed": ("completed",),
    "refused": ("refused",),
    "cancelled": ("cancelled",),
}
"""Lists of requests, by what people call them."""


def shown(name: str, caller: Caller | None, code: int = 200, **values: Any) -> HTMLResponse:
    """A page from its template."""
    roles = caller.token.roles if caller else ()
    common = {"who": caller, "operates": "operate" in roles, "sees": {"operate", "audit"} & set(roles)}
    return HTMLResponse(templates.get_template(name).render(**common, **values), code)


def problem_page(caller: Caller | None, code: int, said: str, advice: str) -> HTMLResponse:
    """What was wrong, and what to do."""
    return shown("problem.html", caller, code, said=said, advice=advice)


def settings_of(request: Request) -> Settings:
    """What the service allows."""
    return request.app.state.settings


def form_of(request: Request, *names: str) -> dict[str, str]:
    """Fields of a form that was sent."""
    body = request.scope["state"]["body"]
    return {name: field(body, name).strip() for name in names}


# --- signing in and out


@router.get(SIGN_IN)
async def sign_in_page(next: str = PAGES) -> HTMLResponse:
    """The only page without a token."""
    return shown("sign_in.html", None, next=next, wrong=False, wait=0)


@router.post(SIGN_IN)
async def sign_in(request: Request, keeper: Kept) -> Response:
    """Show a token; a cookie stands for it from then on."""
    answer: Response
    form, settings = form_of(request, "token", "next"), settings_of(request)
    found = await keeper.read(lambda record: token_of(record, form["token"]))
    if found is None:
        wait = math.ceil(request.app.state.strangers.wait(address_of(request.scope)))
        answer = shown("sign_in.html", None, 429 if wait else 401, next=form["next"], wrong=True, wait=wait)
        if wait:
            answer.headers["Retry-After"] = str(wait)
        return answer
    target = form["next"] if OURS.fullmatch(form["next"]) else PAGES
    answer = RedirectResponse(target, 303)
    session = new_session(keeper.record.keys, found.id, settings.session_s)
    answer.set_cookie(
        cookie_name(settings.https),
        session.written,
        max_age=settings.session_s,
        httponly=True,
        secure=settings.https,
        samesite="strict",
    )
    return answer


@router.post(f"{PAGES}/sign-out")
async def sign_out(request: Request, keeper: Kept, caller: AnyCaller) -> Response:
    """End the session, and forget its cookie."""
    settings, session = settings_of(request), caller.session
    assert session is not None
    await keeper.write(caller.token.name, lambda record: end_session(record, session.id, session.until))
    answer = RedirectResponse(SIGN_IN, 303)
    answer.delete_cookie(cookie_name(settings.https), httponly=True, secure=settings.https, samesite="strict")
    return answer


@router.get("/")
async def root(caller: AnyCaller) -> Response:
    """To the dashboard."""
    return RedirectResponse(PAGES, 303)


@router.get("/favicon.ico")
async def mark() -> Response:
    """What browsers ask for by themselves."""
    return FileResponse(STATIC_FILES / "mark.svg", media_type="image/svg+xml")


# --- requests


@router.get(PAGES)
async def requests(request: Request, keeper: Kept, caller: AnyCaller) -> Response:
    """Requests by their dates, the late ones first."""
    if not {"operate", "audit"} & set(caller.token.roles):
        return RedirectResponse(f"{PAGES}/submit", 303)
    asked = {name: request.query_params.get(name, "") for name in ("view", "project", "after")}
    view = asked["view"] if asked["view"] in VIEWS else "open"
    size = settings_of(request).page

    def ask(record: Record) -> dict[str, Any]:
        last = record.get(asked["after"]) if asked["after"] else None
        known = [each.name for each in record.projects()]
        project = asked["project"] if asked["project"] in known else None
        answered = view != "open"
        states = states_of(VIEWS[view])
        found = record.find(project=project, states=states, after=last, limit=size + 1, latest_first=answered)
        return {
            "project": project,
            "answered": answered,
            "found": found[:size],
            "more": found[size - 1].subject_request_id if len(found) > size else None,
            "counts": counts(record, project),
            "late": late(record, project),
            "projects": known,
            "now": record.clock(),
        }

    told = await keeper.read(ask)
    kept = {"view": view} | ({"project": told["project"]} if told["project"] else {})
    following = f"{PAGES}?{urlencode({**kept, 'after': told['more']})}" if told["more"] else None
    first = f"{PAGES}?{urlencode(kept)}" if asked["after"] else None
    return shown("requests.html", caller, view=view, following=following, first=first, **told)


@router.get(f"{PAGES}/requests")
async def look_up(request: Request, keeper: Kept, caller: AnyCaller) -> Response:
    """To a request by its id."""
    subject_request_id = request.query_params.get("id", "").strip()
    found = await keeper.read(lambda record: record.get(subject_request_id))
    return to_request(found)


@router.get(f"{PAGES}/requests/{{subject_request_id}}")
async def one_request(subject_request_id: RequestId, keeper: Kept, caller: AnyCaller) -> Response:
    """A request: its life, its answer, what can be done with it."""
    return shown("request.html", caller, **await keeper.read(lambda record: _life(record, subject_request_id)))


@router.get(f"{PAGES}/requests/{{subject_request_id}}/life")
async def life(subject_request_id: RequestId, keeper: Kept, caller: AnyCaller) -> Response:
    """The part of it that changes."""
    return shown("life.html", caller, **await keeper.read(lambda record: _life(record, subject_request_id)))


def _life(record: Record, subject_request_id: str) -> dict[str, Any]:
    found = record.get(subject_request_id)
    certificate = json.loads(record.certificate(subject_request_id)) if found.certificate else None
    return {
        "asked": found,
        "history": record.history(subject_request_id),
        "order": order_of(record, found) if found.state in OPEN else None,
        "certificate": certificate,
        "now": record.clock(),
        "may_extend": found.state == "pending" and found.regulation in LAWS and found.extended_because is None,
    }


@router.get(f"{PAGES}/requests/{{subject_request_id}}/certificate.json")
async def certificate_json(subject_request_id: RequestId, keeper: Kept, caller: AnyCaller) -> Response:
    """Its certificate as a file."""
    return certificate_file(await keeper.read(lambda record: record.certificate(subject_request_id)))


@router.get(f"{PAGES}/requests/{{subject_request_id}}/certificate")
async def certificate(subject_request_id: RequestId, keeper: Kept, caller: AnyCaller) -> Response:
    """Its certificate as a page to read and print."""
    return _whole_page(
        certificate_page(await keeper.read(lambda record: record.certificate(subject_request_id))), subject_request_id
    )


@router.get(f"{PAGES}/requests/{{subject_request_id}}/report")
async def report(subject_request_id: RequestId, keeper: Kept, caller: AnyCaller) -> Response:
    """The report of its erasure, made from its certificate."""
    document = await keeper.read(lambda record: record.certificate(subject_request_id))
    certificate = json.loads(document)
    if certificate["erasure"] is None:
        return RedirectResponse(f"{PAGES}/requests/{subject_request_id}/certificate", 303)
    others = certificate["run"]["requests"] - 1
    title = f"Result report, with {others} other request{'s' if others > 1 else ''}" if others else "Result report"
    date = dt.date.fromisoformat(certificate["issued_at"][:10])
    made = report_page(certificate["erasure"], certificate=document, title=title, date=date)
    return _whole_page(made, subject_request_id)


def _whole_page(text: str, subject_request_id: str) -> HTMLResponse:
    """A page that brings its own style: that one is allowed, by its hash, and no other. With a way back."""
    back = f'<p><a href="{PAGES}/requests/{subject_request_id}">Back to the request</a></p>'
    text = text.replace("<main>", f"<main>{back}", 1)
    hashes = [
        base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        for style in re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    ]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    policy = CONTENT.replace("style-src 'self'", f"style-src {allowed}")
    return HTMLResponse(text, headers={"Content-Security-Policy": policy})


@router.post(f"{PAGES}/requests/{{subject_request_id}}/cancel")
async def cancel(subject_request_id: RequestId, request: Request, keeper: Kept, caller: Submitter) -> Response:
    """Take it back."""
    reason = form_of(request, "reason")["reason"]
    return to_request(await keeper.write(caller.token.name, lambda record: record.cancel(subject_request_id, reason)))


@router.post(f"{PAGES}/requests/{{subject_request_id}}/extend")
async def extend(subject_request_id: RequestId, request: Request, keeper: Kept, caller: Operator) -> Response:
    """The longer term."""
    reason = form_of(request, "reason")["reason"]
    return to_request(await keeper.write(caller.token.name, lambda record: record.extend(subject_request_id, reason)))


@router.post(f"{PAGES}/requests/{{subject_request_id}}/run")
async def run_for(subject_request_id: RequestId, keeper: Kept, caller: Operator) -> Response:
    """Run it, with all pending requests of its project."""

    def transaction(record: Record) -> Asked:
        found = record.get(subject_request_id)
        place_order(record, found.project)
        return found

    return to_request(await keeper.write(caller.token.name, transaction))


def to_request(found: Asked) -> Response:
    """To its page."""
    return RedirectResponse(f"{PAGES}/requests/{found.subject_request_id}", 303)


# --- submitting


@router.get(f"{PAGES}/submit")
async def submit_page(keeper: Kept, caller: Submitter) -> Response:
    """A form."""
    return shown("submit.html", caller, **await keeper.read(_choices), entered={}, wrong="")


@router.post(f"{PAGES}/submit")
async def submit(request: Request, keeper: Kept, caller: Submitter) -> Response:
    """Hand in what the form says; where it is wrong, the form again."""
    form = form_of(request, "subject_request_id", "project", "subject", "regulation", "received", "due")
    received = _beginning(form["received"])
    due = f"{form['due']}T23:59:59Z" if form["due"] else None
    try:
        answer = await keeper.write(
            caller.token.name,
            lambda record: record.add(
                form["project"],
                form["subject"],
                form["regulation"],
                subject_request_id=form["subject_request_id"],
                received_at=received,
                due_at=due,
            ),
        )
    except PosteraseError as error:
        wrong = f"{error.problem} {error.advice}"
        return shown("submit.html", caller, 400, **await keeper.read(_choices), entered=form, wrong=wrong)
    if answer.outcome == "conflict":
        wrong = "This form was sent before, with something else in it. Send it again to submit another request."
        return shown("submit.html", caller, 409, **await keeper.read(_choices), entered=form, wrong=wrong)
    return to_request(answer.request)


def _beginning(day: str) -> str | None:
    """When a day began in UTC; now, where it is today's already for people in the east only."""
    begins = f"{day}T00:00:00Z"
    return begins if (day and begins <= text_of(now())) or day > text_of(now() + EASTERNMOST) else None


def _choices(record: Record) -> dict[str, Any]:
    return {
        "projects": [each.name for each in record.projects()],
        "regulations": get_args(Regulation),
        "today": now().date().isoformat(),
        "subject_request_id": str(uuid.uuid4()),
    }


# --- projects and the ledger


@router.get(f"{PAGES}/projects")
async def projects(keeper: Kept, caller: Auditor) -> Response:
    """Projects, with what they have spent of their budgets."""

    def ask(record: Record) -> list[dict[str, Any]]:
        return [
            {
                **{field.name: getattr(each, field.name) for field in dataclasses.fields(each)},
                "budget": budget_of(each.project),
                "order": newest_order(record, each.project.name),
            }
            for each in standings(record)
        ]

    return shown("projects.html", caller, found=await keeper.read(ask))


@router.post(f"{PAGES}/projects/{{name}}/run")
async def run(name: str, keeper: Kept, caller: Operator) -> Response:
    """Run all pending requests of a project."""
    await keeper.write(caller.token.name, lambda record: place_order(record, name))
    return RedirectResponse(f"{PAGES}/projects", 303)


@router.get(f"{PAGES}/ledger")
async def ledger_page(keeper: Kept, caller: Auditor) -> Response:
    """The ledger's newest checkpoint, and what to do with it."""
    await keeper.with_fresh_keys()
    return shown("ledger.html", caller, **await keeper.read(_ledger), verification=None)


@router.post(f"{PAGES}/ledger")
async def verify_now(keeper: Kept, caller: Auditor) -> Response:
    """Verify it now."""
    found = await keeper.verify(verified)
    return shown("ledger.html", caller, **await keeper.read(_ledger), verification=found)


def _ledger(record: Record) -> dict[str, Any]:
    return {
        "checkpoint": record.checkpoint(),
        "origin": record.origin,
        "key": str(record.keys.public),
        "newest": record.newest_entries(20),
    }


@router.get(f"{PAGES}/ledger.jsonl")
async def ledger_file(keeper: Kept, caller: Auditor) -> Response:
    """The whole of it, as a file."""
    return await ledger(keeper, caller)
