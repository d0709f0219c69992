"""The record over HTTP: OpenDSR's requests, status and cancellation; certificates, orders, the ledger."""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping
from typing import Annotated, Any
from urllib.parse import quote

from anyio import CapacityLimiter
from fastapi import APIRouter, Depends, Path, Query, Request, Response, Security
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from posterase.errors import LedgerError
from posterase.projects.spec import Project
from posterase.record.deadlines import span_of
from posterase.record.overview import Standing, standings
from posterase.record.record import Record
from posterase.record.requests import OPEN, State, states_of
from posterase.record.requests import Request as Asked
from posterase.record.run_queue import open_orders, order, place_order
from posterase.record.tokens import Role
from posterase.service.async_record import Keeper
from posterase.service.middleware import Caller
from posterase.service.schemas import (
    IDENTITY,
    Discovery,
    Extension,
    Health,
    Listing,
    NewOrder,
    OrderState,
    Problem,
    ProjectState,
    Receipt,
    Status,
    Submission,
    Verification,
    order_state,
    problem,
    status_of,
)
from posterase.version import __version__

WITHDRAWN = "withdrawn by whoever submitted it"

bearer = HTTPBearer(auto_error=False, description="A token: posterase tokens new NAME --role submit")
ANSWERS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "Something in it is wrong."},
    401: {"model": Problem, "description": "There is no valid token."},
    403: {"model": Problem, "description": "The token has another role."},
    404: {"model": Problem, "description": "There is no such thing."},
    408: {"model": Problem, "description": "The body took too long."},
    409: {"model": Problem, "description": "Not in the state that it is in."},
    413: {"model": Problem, "description": "The body is too large."},
    429: {"model": Problem, "description": "Too many requests: wait as long as Retry-After says."},
    503: {"model": Problem, "description": "The record cannot be reached or used now."},
}

router = APIRouter(dependencies=[Security(bearer)], responses=ANSWERS)


def caller_of(request: Request) -> Caller:
    """Who asks; the guards have seen to it that there is one."""
    return request.scope["state"]["caller"]


async def keeper_of(request: Request) -> Keeper:
    """The record. What is not async would be called in a thread."""
    return request.app.state.keeper


def needs(*roles: Role) -> Callable[[Request], Awaitable[Caller]]:
    """A caller with one of these roles."""

    async def allowed(request: Request) -> Caller:
        caller = caller_of(request)
        if not set(roles) & set(caller.token.roles):
            raise HTTPException(403, f"this needs a token with the role {' or '.join(roles)}.")
        return caller

    return allowed


Kept = Annotated[Keeper, Depends(keeper_of)]
AnyCaller = Annotated[Caller, Depends(needs("submit", "operate", "audit"))]
Submitter = Annotated[Caller, Depends(needs("submit", "operate"))]
Operator = Annotated[Caller, Depends(needs("operate"))]
Auditor = Annotated[Caller, Depends(needs("audit", "operate"))]
RequestId = Annotated[str, Path(description="The request's id.", max_length=64)]
Name = Annotated[str, Path(description="The project's name.", max_length=64)]


def signed(keeper: Keeper, body: bytes, code: int) -> Response:
    """A receipt that whoever has it can prove."""
    keys = keeper.record.keys
    signature = base64.b64encode(keys.signer.sign(body)).decode()
    headers = {"X-OpenDSR-Processor-Domain": quote(keys.public.name, safe="/:@"), "X-OpenDSR-Signature": signature}
    return Response(body, code, headers, media_type="application/json")


@router.get("/discovery")
async def discovery(caller: AnyCaller) -> Discovery:
    """What can be asked here."""
    return Discovery(
        supported_identities=[{"identity_type": IDENTITY, "identity_format": "raw"}],
        supported_subject_request_types=["erasure"],
        processor_certificate="/public-key",
    )


@router.post(
    "/requests",
    status_code=201,
    response_model=Receipt,
    responses={200: {"model": Receipt, "description": "The same was handed in before."}},
)
async def submit(asked: Submission, request: Request, keeper: Kept, caller: Submitter) -> Response:
    """Hand in a request. The same one twice is one request."""
    answer = await keeper.write(
        caller.token.name,
        lambda record: record.add(
            asked.property_id,
            asked.subject_identities[0].identity_value,
            asked.regulation,
            subject_request_id=asked.subject_request_id,
            received_at=asked.submitted_time,
            due_at=asked.due_time,
        ),
    )
    if answer.outcome == "conflict":
        said = f"request {answer.request.subject_request_id} was handed in before, and says something else."
        return problem(409, said, "give every request an id of its own.", "conflict")
    receipt = _receipt(answer.request, request.scope["state"]["body"])
    return signed(keeper, receipt, 201 if answer.outcome == "received" else 200)


def _receipt(found: Asked, body: bytes) -> bytes:
    made = Receipt(
        controller_id=found.project,
        subject_request_id=found.subject_request_id,
        received_time=found.received_at,
        expected_completion_time=found.due_at,
        encoded_request=base64.b64encode(body).decode(),
    )
    return made.model_dump_json().encode()


@router.get("/requests")
async def find(
    keeper: Kept,
    caller: Auditor,
    project: Annotated[str | None, Query(max_length=64)] = None,
    state: Annotated[list[State] | None, Query(description="Default: pending and in progress.")] = None,
    after: Annotated[str | None, Query(max_length=64, description="The last id of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Listing:
    """Requests by their dates, the earliest first."""
    wanted = states_of(state) if state else OPEN

    def ask(record: Record) -> Listing:
        last = None if after is None else record.get(after)
        found = record.find(project=project, states=wanted, after=last, limit=limit + 1)
        more = found[limit - 1].subject_request_id if len(found) > limit else None
        return Listing(requests=[status_of(each, record.clock()) for each in found[:limit]], next=more)

    return await keeper.read(ask)


@router.get("/requests/{subject_request_id}")
async def status(subject_request_id: RequestId, keeper: Kept, caller: AnyCaller) -> Status:
    """Where a request stands."""
    return await keeper.read(lambda record: status_of(record.get(subject_request_id), record.clock()))


@router.delete("/requests/{subject_request_id}", status_code=202, response_model=Receipt)
async def cancel(subject_request_id: RequestId, keeper: Kept, caller: Submitter) -> Response:
    """Cancel a pending request."""
    found = await keeper.write(caller.token.name, lambda record: record.cancel(subject_request_id, WITHDRAWN))
    return signed(keeper, _receipt(found, b""), 202)


@router.post("/requests/{subject_request_id}/extension")
async def extend(subject_request_id: RequestId, asked: Extension, keeper: Kept, caller: Operator) -> Status:
    """The longer term that the law allows, once."""
    return await keeper.write(
        caller.token.name, lambda record: status_of(record.extend(subject_request_id, asked.reason), record.clock())
    )


@router.get("/requests/{subject_request_id}/certificate", response_class=JSONResponse)
async def certificate(subject_request_id: RequestId, keeper: Kept, caller: AnyCaller) -> Response:
    """The certificate of a completed request, byte for byte as the ledger names it."""
    return certificate_file(await keeper.read(lambda record: record.certificate(subject_request_id)))


def certificate_file(document: bytes) -> Response:
    """As a file to keep."""
    headers = {"Content-Disposition": 'attachment; filename="certificate.json"'}
    return Response(document, media_type="application/json", headers=headers)


@router.get("/projects")
async def projects(keeper: Kept, caller: Auditor) -> list[ProjectState]:
    """Projects, what they have spent of their budgets, and their requests."""
    return await keeper.read(lambda record: [_project_state(each) for each in standings(record)])


def _project_state(standing: Standing) -> ProjectState:
    return ProjectState(
        project=standing.project.name,
        version=standing.version,
        runs=standing.runs,
        budget=budget_of(standing.project),
        spent=standing.spent,
        requests={f"{state}": number for state, number in standing.counts.items()},
    )


def budget_of(project: Project) -> float:
    """What repeated erasures may add up to. What knows policies knows jax: it is imported where it is asked."""
    from posterase.projects.builders import policy_of

    return policy_of(project).budget


ALL_THAT_WAIT = NewOrder(due_within=None)


@router.post("/projects/{name}/orders", status_code=202)
async def new_order(name: Name, keeper: Kept, caller: Operator, asked: NewOrder = ALL_THAT_WAIT) -> OrderState:
    """Run the pending requests of a project. A worker does it; ask for its state."""
    due_within = None if asked.due_within is None else span_of(asked.due_within)
    return order_state(await keeper.write(caller.token.name, lambda record: place_order(record, name, due_within)))


@router.get("/orders/{number}")
async def order_status(
    number: Annotated[int, Path(ge=1, le=2**31 - 1, description="The order's number.")], keeper: Kept, caller: Auditor
) -> OrderState:
    """How an order goes."""
    return order_state(await keeper.read(lambda record: order(record, number)))


@router.get(
    "/ledger",
    response_class=StreamingResponse,
    responses={200: {"content": {"application/jsonl": {"schema": {"type": "string"}}}, "description": "Its lines."}},
)
async def ledger(keeper: Kept, caller: Auditor) -> StreamingResponse:
    """The ledger, whole and signed, for `posterase verify`."""
    headers = {"Content-Disposition": 'attachment; filename="ledger.jsonl"'}
    record = await keeper.with_fresh_keys()
    return _Export(keeper.exporting, record.ledger_lines(), headers)


class _Export(StreamingResponse):
    """Lines that wait for their turn, and give their connection back when their reader has gone."""

    def __init__(self, turns: CapacityLimiter, lines: Generator[bytes], headers: Mapping[str, str]):
        super().__init__(lines, media_type="application/jsonl", headers=headers)
        self.turns, self.lines = turns, lines

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send them, among few others."""
        async with self.turns:
            with contextlib.closing(self.lines):
                await super().__call__(scope, receive, send)


@router.get("/ledger/checkpoint", response_class=PlainTextResponse)
async def checkpoint(keeper: Kept, caller: Auditor) -> PlainTextResponse:
    """The newest signed checkpoint, to be kept somewhere else."""
    return PlainTextResponse(await keeper.read(lambda record: record.checkpoint()))


@router.post("/ledger/verification")
async def verification(keeper: Kept, caller: Auditor) -> Verification:
    """Verify the ledger, and that the record's tables are what it says."""
    return await keeper.verify(verified)


def verified(record: Record) -> Verification:
    """What verifying comes to, in words too."""
    try:
        found = record.verify()
    except LedgerError as error:
        return Verification(whole=False, message=f"{error.problem} {error.advice}")
    return Verification(whole=True, size=found.size, root=found.root.hex(), message=str(found))


@router.get("/public-key", response_class=PlainTextResponse)
async def public_key(keeper: Kept, caller: AnyCaller) -> PlainTextResponse:
    """The key that certificates, receipts and the ledger are verified with."""
    record = await keeper.with_fresh_keys()
    return PlainTextResponse(f"{record.keys.public}\n")


@router.get("/health")
async def health(request: Request, keeper: Kept, caller: AnyCaller) -> Health:
    """Whether the service works: it reads the record, and there is somebody who runs requests."""
    workers: int = request.app.state.workers()
    waiting = await keeper.read(open_orders)
    return Health(
        status="ok" if workers else "no worker", version=__version__, workers=workers, open_orders=len(waiting)
    )
