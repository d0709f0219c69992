"""What every request passes before anything else: size, who asks, how often; and what every answer carries.

Nothing is answered without a token but the page to sign in and its style; not even that something does not exist.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import math
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qs, quote, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from posterase.errors import RecordError
from posterase.record.runs import place_of
from posterase.record.tokens import Token, has_ended, token_by_id, token_of
from posterase.service.async_record import Keeper
from posterase.service.rate_limit import Rates
from posterase.service.schemas import problem
from posterase.service.sessions import Session, cookie_name, csrf_of, same, session_of
from posterase.service.settings import Settings

log = logging.getLogger("posterase.service")

PAGES = "/dashboard"
SIGN_IN = "/sign-in"
STATIC = "/static/"
MARK = "/favicon.ico"

CONTENT = "; ".join(
    (
        "default-src 'none'",
        "style-src 'self'",
        "script-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "form-action 'self'",
        "frame-ancestors 'none'",
        "base-uri 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": CONTENT,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


@dataclasses.dataclass(frozen=True)
class Caller:
    """Who asks."""

    token: Token
    session: Session | None = None
    """Where it is a person at the dashboard."""
    csrf: str = ""


class SafeHeaders:
    """Headers that make a browser careful; an answer may have its own. An error that nobody expected is one too."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self.app = app
        self.headers = HEADERS | ({"Strict-Transport-Security": "max-age=31536000"} if settings.https else {})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and add headers to what comes back."""
        begun = False

        async def sent(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                headers = MutableHeaders(scope=message)
                for name, value in self.headers.items():
                    headers.setdefault(name, value)
            await send(message)

        try:
            await self.app(scope, receive, sent)
        except Exception as error:
            if scope["type"] != "http" or begun:
                raise
            log.error("%s %r ended in %s", scope["method"], scope["path"], place_of(error))
            await problem(500, "something went wrong here.", "the service's log says where.")(scope, receive, sent)


class SmallBodies:
    """Bodies are read whole, up to a limit, before anybody works on them."""

    def __init__(self, app: ASGIApp, settings: Settings):
        self.app, self.settings = app, settings

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Read the body, or refuse it."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self.settings.patience_s):
                body = await self._read(scope, receive)
        except TimeoutError:
            await problem(408, "the body took too long to arrive.", "send it again.")(scope, receive, send)
            return
        if body is None:
            said = f"the body is larger than {self.settings.largest} bytes."
            await problem(413, said, "send less.")(scope, receive, send)
            return
        scope.setdefault("state", {})["body"] = body
        await self.app(scope, _replayed(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        declared = Headers(scope=scope).get("content-length", "0")
        if not declared.isdigit() or int(declared) > self.settings.largest:
            return None
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.settings.largest:
                return None
            if message["type"] != "http.request" or not message.get("more_body", False):
                return body


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The body as one message; then whatever comes."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


class KnownCallers:
    """Tokens for the API, signed-in people for the pages, nobody else; each as often as is allowed."""

    def __init__(self, app: ASGIApp, keeper: Keeper, settings: Settings, strangers: Rates):
        self.app, self.keeper, self.settings, self.strangers = app, keeper, settings, strangers
        self.rates = Rates(settings.rate, settings.burst)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on whoever is known."""
        if scope["type"] == "http":
            try:
                refused = await self._refused(scope)
            except RecordError as error:
                refused = problem(503, error.problem, error.advice)
            if refused is not None:
                await refused(scope, receive, send)
                return
        await self.app(scope, receive, send)

    async def _refused(self, scope: Scope) -> Response | None:
        """Why not; None where the caller is known, or need not be."""
        path, headers = scope["path"], Headers(scope=scope)
        browser = path.startswith((PAGES, SIGN_IN)) or path == "/"
        if browser and scope["method"] not in ("GET", "HEAD") and not _own(headers):
            return _form_refused("This form came from another site.")
        if path in (SIGN_IN, MARK) or path.startswith(STATIC):
            return None
        caller = await (self._signed_in(headers) if browser else self._bearer(headers))
        if caller is None:
            return self._stranger(scope, browser)
        wait = self.rates.wait(caller.token.id)
        if wait:
            return _slower(wait)
        if browser and scope["method"] == "POST" and not same(field(scope["state"]["body"], "csrf"), caller.csrf):
            return _form_refused("This form is too old.")
        scope["state"]["caller"] = caller
        return None

    async def _bearer(self, headers: Headers) -> Caller | None:
        kind, _, secret = headers.get("authorization", "").partition(" ")
        if kind.lower() != "bearer":
            return None
        found = await self.keeper.read(lambda record: token_of(record, secret.strip()))
        return None if found is None else Caller(found)

    async def _signed_in(self, headers: Headers) -> Caller | None:
        keys = self.keeper.record.keys
        session = session_of(keys, cookie_of(headers, cookie_name(self.settings.https)))
        if session is None:
            return None
        found = await self.keeper.read(
            lambda record: None if has_ended(record, session.id) else token_by_id(record, session.token)
        )
        return None if found is None else Caller(found, session, csrf_of(keys, session))

    def _stranger(self, scope: Scope, browser: bool) -> Response:
        if browser and scope["method"] in ("GET", "HEAD"):
            asked = scope["path"] + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else "")
            return RedirectResponse(f"{SIGN_IN}?next={quote(asked, safe='/')}", 303)
        wait = self.strangers.wait(address_of(scope))
        if wait:
            return _slower(wait)
        refused = problem(401, "this needs a token.", "send one: Authorization: Bearer posterase_…")
        refused.headers["WWW-Authenticate"] = "Bearer"
        return refused


def _slower(wait: float) -> JSONResponse:
    refused = problem(429, "too many requests.", f"wait {math.ceil(wait)} s.")
    refused.headers["Retry-After"] = str(math.ceil(wait))
    return refused


def _form_refused(why: str) -> HTMLResponse:
    page = f'<!doctype html><html lang="en"><title>{why}</title><p>{why} <a href="{PAGES}">Begin again</a></p></html>'
    return HTMLResponse(page, 403)


def _own(headers: Headers) -> bool:
    """Whether a form was sent by a page of ours: browsers say where it was."""
    origin = headers.get("origin")
    try:
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return False
    except ValueError:  # it is no URL
        return False
    return headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def address_of(scope: Scope) -> str:
    """Where a request comes from."""
    client = scope.get("client")
    return client[0] if client else "unknown"


def cookie_of(headers: Headers, name: str) -> str:
    """A cookie; empty where there is none."""
    try:
        found = SimpleCookie(headers.get("cookie", "")).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


def field(body: bytes, name: str) -> str:
    """A field of a form; empty where it is not there."""
    try:
        values = parse_qs(body.decode(), keep_blank_values=True, max_num_fields=50).get(name, [""])
    except ValueError:
        return ""
    return values[0]
