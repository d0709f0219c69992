"""The web application: guards around an API and pages, over one record."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import Response
from starlette.staticfiles import StaticFiles

from posterase.errors import (
    MissingExtraError,
    NotFoundError,
    PosteraseError,
    ProjectError,
    RequestError,
    WrongStateError,
)
from posterase.service import api, pages
from posterase.service.async_record import Keeper
from posterase.service.middleware import PAGES, KnownCallers, SafeHeaders, SmallBodies
from posterase.service.rate_limit import Rates
from posterase.service.schemas import problem
from posterase.service.settings import Settings
from posterase.version import __version__

STATUS: tuple[tuple[type[PosteraseError], int], ...] = (
    (NotFoundError, 404),
    (WrongStateError, 409),
    (ProjectError, 503),
    (MissingExtraError, 503),
    (RequestError, 400),
)
"""What errors are over HTTP; others are the record's: 503."""


def create_app(keeper: Keeper, settings: Settings, workers: Callable[[], int]) -> FastAPI:
    """The application.

    Parameters
    ----------
    keeper
        The record.
    settings
        What it allows.
    workers
        How many workers are there to run requests.
    """

    @asynccontextmanager
    async def closing(_: FastAPI) -> AsyncIterator[None]:
        yield
        keeper.close()

    strangers = Rates(settings.strangers_rate, settings.strangers_burst)
    app = FastAPI(
        title="posterase",
        version=__version__,
        summary="Requests to erase data from posteriors, in OpenDSR's shape.",
        docs_url=None,
        redoc_url=None,
        lifespan=closing,
        redirect_slashes=False,
        middleware=[
            Middleware(SafeHeaders, settings=settings),
            Middleware(SmallBodies, settings=settings),
            Middleware(KnownCallers, keeper=keeper, settings=settings, strangers=strangers),
        ],
    )
    app.state.keeper, app.state.settings, app.state.workers = keeper, settings, workers
    app.state.strangers = strangers
    app.include_router(api.router)
    app.include_router(pages.router)
    app.mount("/static", StaticFiles(directory=pages.STATIC_FILES))
    app.add_exception_handler(PosteraseError, _told)
    app.add_exception_handler(HTTPException, _told)
    app.add_exception_handler(RequestValidationError, _told)
    _document(app)
    return app


async def _told(request: Request, error: Exception) -> Response:
    """An error as a page or in OpenDSR's shape."""
    code, said, advice = _words(error)
    if request.url.path.startswith(PAGES):
        return pages.problem_page(request.scope["state"].get("caller"), code, said, advice)
    return problem(code, said, advice, type(error).__name__)


def _words(error: Exception) -> tuple[int, str, str]:
    if isinstance(error, PosteraseError):
        code = next((code for kind, code in STATUS if isinstance(error, kind)), 503)
        return code, error.problem, error.advice
    if isinstance(error, RequestValidationError):
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"] if part != "body") or "the body"
        return 400, f"{place}: {first['msg']}.", "see /openapi.json."
    assert isinstance(error, HTTPException)
    return error.status_code, f"{error.detail}", "see /openapi.json."


def _document(app: FastAPI) -> None:
    """The OpenAPI document says what is answered: 400 where FastAPI would say 422."""
    made = app.openapi

    def openapi() -> dict[str, Any]:
        document = made()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]
