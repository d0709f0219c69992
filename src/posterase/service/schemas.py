"""What travels: requests, receipts and answers, in OpenDSR's words where it has them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import JSONResponse

from posterase.record.deadlines import Regulation
from posterase.record.requests import API_VERSION, Request, State
from posterase.record.run_queue import Order

IDENTITY = "controller_customer_id"
"""The kind of identity that a project's column of subjects holds: whatever the controller calls its customers."""

Short = Annotated[str, Field(min_length=1, max_length=1024)]


class Shape(BaseModel):
    """Nothing that we do not know is taken: it would be a wish that nobody hears."""

    model_config = ConfigDict(extra="forbid")


class Identity(Shape):
    """Whose rows."""

    identity_type: Literal["controller_customer_id"] = Field(description="The only kind there is here.")
    identity_format: Literal["raw"] = "raw"
    identity_value: Short = Field(description="The subject's key, as the project's column of subjects has it.")


class Submission(Shape):
    """A request to erase."""

    regulation: Regulation
    subject_request_id: str = Field(description="A UUID of version 4, made by whoever submits.", max_length=64)
    subject_request_type: Literal["erasure"]
    submitted_time: Short = Field(description="When the subject asked, by RFC 3339: the term begins then.")
    subject_identities: list[Identity] = Field(min_length=1, max_length=1)
    property_id: Short = Field(description="The project.")
    api_version: Literal["2.0"] = "2.0"
    due_time: Short | None = Field(None, description="When it is due, where no law says so, or earlier than the law.")


class Receipt(BaseModel):
    """That a request was received, or its cancellation; signed in the header X-OpenDSR-Signature."""

    api_version: str = API_VERSION
    controller_id: str
    subject_request_id: str
    received_time: str
    expected_completion_time: str
    encoded_request: str = Field(description="The request's body as it came, in base64.")


class Status(BaseModel):
    """Where a request stands."""

    api_version: str = API_VERSION
    controller_id: str = Field(description="The project.")
    subject_request_id: str
    subject_request_type: str
    regulation: Regulation
    received_time: str
    expected_completion_time: str
    request_status: State
    results_count: int | None = Field(description="Rows that it was about, once it is answered.")
    results_url: str | None = Field(description="Of its certificate.")
    reason: str | None = Field(description="Why it was refused or cancelled, or what else there is to say.")
    late: bool


class Listing(BaseModel):
    """A page of requests."""

    requests: list[Status]
    next: str | None = Field(description="What to give as `after` for the next page.")


class Discovery(BaseModel):
    """What can be asked here."""

    api_version: str = API_VERSION
    supported_identities: list[dict[str, str]]
    supported_subject_request_types: list[str]
    processor_certificate: str = Field(description="Where the public key is, which receipts and certificates show.")


class Extension(Shape):
    """The longer term that the law allows."""

    reason: Short = Field(description="What the subject was told. The ledger keeps it: do not name the subject.")


class NewOrder(Shape):
    """A run to be ordered."""

    due_within: str | None = Field(None, max_length=16, description="Only what is due so soon: 7d, 36h, 2w. Else all.")


class OrderState(BaseModel):
    """A run that was ordered."""

    order: int = Field(description="Its number.")
    project: str
    state: Literal["pending", "running", "done", "failed"]
    message: str
    ordered_at: str
    ended_at: str | None


class ProjectState(BaseModel):
    """A project and how it stands."""

    project: str
    version: int
    runs: int
    budget: float
    spent: float
    requests: dict[str, int]


class Verification(BaseModel):
    """Whether the record is whole and unchanged."""

    whole: bool
    size: int | None = None
    root: str | None = None
    message: str


class Health(BaseModel):
    """Whether the service works."""

    status: Literal["ok", "no worker"]
    version: str
    workers: int
    open_orders: int


class Fault(BaseModel):
    """One thing that was wrong."""

    domain: str
    reason: str
    message: str


class Trouble(BaseModel):
    """What was wrong, and what to do."""

    code: int
    message: str
    errors: list[Fault]


class Problem(BaseModel):
    """An answer that is none."""

    error: Trouble


def problem(code: int, said: str, advice: str, reason: str = "refused") -> JSONResponse:
    """An error in OpenDSR's shape."""
    fault = Fault(domain="posterase", reason=reason, message=f"{said} {advice}")
    return JSONResponse(Problem(error=Trouble(code=code, message=said, errors=[fault])).model_dump(), code)


def status_of(request: Request, now: Any) -> Status:
    """A request's state."""
    told = request.to_opendsr()
    url = f"/requests/{request.subject_request_id}/certificate" if request.certificate else None
    return Status(**told, results_url=url, reason=request.reason, late=request.late(now))


def order_state(order: Order) -> OrderState:
    """An order's state."""
    ended = "failed" if order.failed else "done"
    state: Any = ended if order.ended_at else "running" if order.started_at else "pending"
    return OrderState(
        order=order.id,
        project=order.project,
        state=state,
        message=order.said,
        ordered_at=order.ordered_at,
        ended_at=order.ended_at,
    )
