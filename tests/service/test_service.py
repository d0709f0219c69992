"""The service: nobody without a token, OpenDSR's shape, limits, workers that die; on a real server."""

import asyncio
import base64
import datetime as dt
import html
import json
import os
import re
import signal
import socket
import subprocess
import uuid
from pathlib import Path

import pytest
import sqlalchemy as sa

from posterase.draws.origins import ORIGINS
from posterase.errors import (
    InvalidOptionError,
    LedgerError,
    NotFoundError,
    RecordError,
    RequestError,
    WrongStateError,
)
from posterase.projects.spec import Project
from posterase.record.certificate import CAUTIONS
from posterase.record.deadlines import now
from posterase.record.ledger.keyring import promote_staged, rotated, stage_signer
from posterase.record.ledger.signed_note import PublicKey
from posterase.record.overview import counts, late, standings
from posterase.record.record import Record
from posterase.record.run_queue import newest_order, open_orders, order, order_of, place_order
from posterase.record.store import schema
from posterase.record.tokens import make_token, revoke_token, token_of, tokens
from posterase.service import api, connections, pages
from posterase.service.async_record import EXPORTS, Keeper
from posterase.service.rate_limit import MOST, Rates
from posterase.service.serve import serve
from posterase.service.sessions import csrf_of, new_session, session_of
from posterase.service.settings import Settings
from posterase.service.worker import MOST_ATTEMPTS, PERIOD, Worker
from tests.databases import new_database
from tests.services import NAME, client, new_record, serving, until, working
from tests.small_erasures import new_draws, opener, read_draws

ROLES = ("submit", "operate", "audit")
NOBODYS = "00000000-0000-4000-8000-000000000000"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def url(folder):
    return f"sqlite:///{folder}/record.db"


@pytest.fixture(scope="module")
def record(folder, url):
    opened = new_record(folder, url, subjects=300)
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def secrets(record):
    """A token of each role."""
    return {role: make_token(record, f"the {role} desk", [role])[1] for role in ROLES}


@pytest.fixture(scope="module")
def address(url, folder, record):
    with serving(url, folder, Settings(rate=10_000, burst=10_000, strangers_rate=10_000, strangers_burst=10_000)) as at:
        yield at


@pytest.fixture(scope="module")
def callers(address, secrets):
    """Somebody of each role."""
    made = {role: client(address, secret) for role, secret in secrets.items()}
    yield made
    for each in made.values():
        each.close()


def submission(subject="s1", **changes):
    return {
        "regulation": "gdpr",
        "subject_request_id": str(uuid.uuid4()),
        "subject_request_type": "erasure",
        "submitted_time": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "subject_identities": [{"identity_type": "controller_customer_id", "identity_value": subject}],
        "property_id": "visits",
    } | changes


# --- tokens


def test_a_token_is_known_by_its_hash_only(record, folder):
    made, secret = make_token(record, "a desk", ["submit", "audit"])
    assert token_of(record, secret) == made
    assert made.roles == ("submit", "audit")
    assert token_of(record, secret[:-1] + ("A" if secret[-1] != "A" else "B")) is None
    assert token_of(record, secret + "A") is None
    held = b"".join(path.read_bytes() for path in folder.glob("record.db*"))
    assert secret.rpartition("_")[2].encode() not in held
    assert made.id.encode() in held


def test_a_token_ends(record):
    gone, secret = make_token(record, "somebody", ["audit"])
    with pytest.raises(RequestError, match="there is a token"):
        make_token(record, "somebody", ["submit"])
    revoke_token(record, "somebody")
    assert token_of(record, secret) is None
    with pytest.raises(WrongStateError, match="was revoked"):
        revoke_token(record, gone.id)
    with pytest.raises(NotFoundError):
        revoke_token(record, "0" * 16)
    short, secret = make_token(record, "somebody", ["audit"], dt.timedelta(hours=1))
    assert token_of(record, secret) == short
    later = Record(record.database, record.keys, "later", lambda: record.clock() + dt.timedelta(hours=1))
    assert token_of(later, secret) is None
    assert {gone.id, short.id} <= {each.id for each in tokens(record)}


@pytest.mark.parametrize(
    ("name", "roles", "said"),
    [
        ("", ["audit"], "cannot name"),
        ("a\nb", ["audit"], "cannot name"),
        ("x" * 65, ["audit"], "cannot name"),
        ("a", ["god"], "no role 'god'"),
        ("a", [], "no role"),
        ("the worker", ["audit"], "there is a token"),
    ],
)
def test_a_token_has_a_name_and_a_role(record, name, roles, said):
    with pytest.raises(RequestError, match=said):
        make_token(record, name, roles)


def test_a_token_is_revoked_and_named_once_whoever_is_faster(record, monkeypatch):
    """What two processes that ask at once have read, before either has written."""
    make_token(record, "twice", ["submit"])
    both = tokens(record)
    revoke_token(record, "twice")
    monkeypatch.setattr("posterase.record.tokens.tokens", lambda _: both)
    with pytest.raises(WrongStateError, match="just now"):
        revoke_token(record, "twice")
    make_token(record, "twice", ["submit"])
    with pytest.raises(RequestError, match="there is a token of 'twice'"):
        make_token(record, "twice", ["submit"])
    record.verify()


def test_a_token_that_somebody_put_there_is_found(tmp_path):
    record = new_record(tmp_path, f"sqlite:///{tmp_path}/record.db")
    made, _ = make_token(record, "a desk", ["submit"])
    record.verify()
    for change in (
        schema.tokens.update().where(schema.tokens.c.id == made.id).values(roles="operate"),
        schema.tokens.delete(),
        schema.tokens.insert().values(id="0" * 16, name="x", roles="operate", hash="sha256:0", made_at="2026"),
    ):
        with pytest.raises(LedgerError, match="token"), record.database.writing() as connection:  # noqa: PT012
            connection.execute(change)
            from posterase.record.consistency import check_tables

            check_tables(connection)  # and the change is undone
    record.verify()
    record.close()


# --- who may what


def test_everything_is_refused_without_a_token(address):
    routes = [*api.router.routes, *pages.router.routes]
    paths = {(method, route.path) for route in routes for method in route.methods} | {("GET", "/openapi.json")}
    assert len(paths) > 30
    with client(address) as nobody:
        for method, path in sorted(paths):
            if path in ("/sign-in", "/favicon.ico"):
                continue
            answer = nobody.request(method, re.sub(r"\{\w+\}", "7c9e6679", path))
            if method in ("GET", "HEAD") and (path == "/" or path.startswith("/dashboard")):
                assert (answer.status_code, answer.headers["location"].split("?")[0]) == (303, "/sign-in"), path
            else:
                assert answer.status_code == 401, (method, path)
        assert nobody.get("/no-such-thing").status_code == 401
        assert nobody.get("/sign-in").status_code == 200
        assert nobody.get("/static/style.css").status_code == 200
        for wrong in ("Bearer", "Bearer x", "Basic eDp5", f"Bearer posterase_{'0' * 16}_{'A' * 43}"):
            assert nobody.get("/health", headers={"Authorization": wrong}).status_code == 401


@pytest.mark.parametrize(
    ("method", "path", "roles"),
    [
        ("GET", "/health", ROLES),
        ("GET", "/openapi.json", ROLES),
        ("GET", "/requests", ("operate", "audit")),
        ("GET", "/projects", ("operate", "audit")),
        ("GET", "/ledger", ("operate", "audit")),
        ("GET", "/ledger/checkpoint", ("operate", "audit")),
        ("POST", "/ledger/verification", ("operate", "audit")),
        ("GET", "/orders/1", ("operate", "audit")),
        ("POST", "/requests", ("submit", "operate")),
        ("DELETE", f"/requests/{NOBODYS}", ("submit", "operate")),
        ("POST", f"/requests/{NOBODYS}/extension", ("operate",)),
        ("POST", "/projects/visits/orders", ("operate",)),
    ],
)
def test_a_role_allows_what_it_says(callers, method, path, roles):
    for role, caller in callers.items():
        refused = caller.request(method, path, json={} if method == "POST" else None).status_code == 403
        assert refused == (role not in roles), role


def test_answers_make_browsers_careful(address, callers):
    with client(address) as nobody:
        for answer in (nobody.get("/sign-in"), callers["audit"].get("/health"), nobody.get("/health")):
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["cache-control"] == "no-store"
            assert "strict-transport-security" not in answer.headers


# --- requests in OpenDSR's shape


def test_a_request_is_received_once_and_its_receipt_can_be_proved(callers):
    asked = submission("s2")
    first = callers["submit"].post("/requests", json=asked)
    assert first.status_code == 201
    told = first.json()
    assert told["subject_request_id"] == asked["subject_request_id"]
    assert json.loads(base64.b64decode(told["encoded_request"])) == asked
    key = PublicKey.parse(callers["submit"].get("/public-key").text)
    signature = base64.b64decode(first.headers["x-opendsr-signature"])
    assert first.headers["x-opendsr-processor-domain"] == NAME
    assert key.verifies(first.content, signature)
    assert not key.verifies(first.content + b" ", signature)
    again = callers["submit"].post("/requests", json=asked)
    assert (again.status_code, again.json()) == (200, told)
    other = callers["submit"].post("/requests", json=asked | {"regulation": "ccpa"})
    assert other.status_code == 409
    status = callers["submit"].get(f"/requests/{asked['subject_request_id']}").json()
    assert (status["request_status"], status["results_url"], status["late"]) == ("pending", None, False)


@pytest.mark.parametrize(
    ("changes", "code", "said"),
    [
        ({"property_id": "nothing"}, 404, "no project"),
        ({"subject_request_id": "7"}, 400, "UUID"),
        ({"submitted_time": "yesterday"}, 400, "RFC 3339"),
        ({"submitted_time": "2999-01-01T00:00:00Z"}, 400, "future"),
        ({"subject_request_type": "access"}, 400, "subject_request_type"),
        ({"regulation": "law"}, 400, "regulation"),
        ({"regulation": "other"}, 400, "term"),
        ({"subject_identities": []}, 400, "subject_identities"),
        ({"subject_identities": [{"identity_type": "email", "identity_value": "a@example.org"}]}, 400, "identity_type"),
        ({"status_callback_urls": ["https://example.org"]}, 400, "status_callback_urls"),
        (
            {"subject_identities": [{"identity_type": "controller_customer_id", "identity_value": "a\0"}]},
            400,
            "subject",
        ),
    ],
)
def test_a_wrong_request_is_told_what_is_wrong(callers, changes, code, said):
    answer = callers["submit"].post("/requests", json=submission(**changes))
    assert answer.status_code == code
    error = answer.json()["error"]
    assert error["code"] == code
    assert said in error["message"] + error["errors"][0]["message"]
    assert "a@example.org" not in answer.text


def test_a_request_is_cancelled_or_extended(callers):
    asked = submission("s3")
    path = f"/requests/{asked['subject_request_id']}"
    callers["submit"].post("/requests", json=asked)
    longer = callers["operate"].post(f"{path}/extension", json={"reason": "many at once"}).json()
    assert longer["expected_completion_time"] > callers["submit"].post("/requests", json=asked).json()["received_time"]
    assert callers["operate"].post(f"{path}/extension", json={"reason": "again"}).status_code == 409
    gone = callers["submit"].delete(path)
    assert gone.status_code == 202
    assert callers["submit"].get(path).json()["request_status"] == "cancelled"
    assert callers["submit"].get(f"{path}/certificate").status_code == 409
    assert callers["submit"].get(f"/requests/{uuid.uuid4()}").status_code == 404


def test_pages_of_requests_follow_each_other(callers, record):
    for number in range(25):
        record.add("visits", f"s{number + 30}", "ccpa")
    seen, after = [], None
    while True:
        page = callers["audit"].get("/requests", params={"limit": 10} | ({"after": after} if after else {})).json()
        seen += [each["subject_request_id"] for each in page["requests"]]
        after = page["next"]
        if after is None:
            break
    assert len(seen) == len(set(seen)) == sum(counts(record).get(state, 0) for state in ("pending", "in_progress"))
    assert seen == [each.subject_request_id for each in record.find(limit=1000)]
    assert callers["audit"].get("/requests", params={"state": "nothing"}).status_code == 400
    assert callers["audit"].get("/requests", params={"limit": 0}).status_code == 400


def test_the_ledger_is_handed_out_and_verified(callers, folder, record):
    from posterase.record.ledger.ledger import verify

    lines = callers["audit"].get("/ledger").content.splitlines(keepends=True)
    note = callers["audit"].get("/ledger/checkpoint").text
    assert verify(lines, [record.keys.public], checkpoints=[note]).size > 30
    told = callers["audit"].post("/ledger/verification").json()
    assert told["whole"] is True
    with record.database.writing() as connection:
        connection.execute(schema.requests.update().where(schema.requests.c.state == "pending").values(rows=7))
    try:
        told = callers["audit"].post("/ledger/verification").json()
        assert told["whole"] is False
        assert "rows" in told["message"]
    finally:
        with record.database.writing() as connection:
            connection.execute(schema.requests.update().where(schema.requests.c.state == "pending").values(rows=None))


# --- limits


def test_a_bucket_fills_over_time():
    time = [0.0]
    rates = Rates(rate=2.0, burst=3, clock=lambda: time[0])
    assert [rates.wait("a") for _ in range(4)] == [0.0, 0.0, 0.0, 0.5]
    assert rates.wait("b") == 0.0
    time[0] += 0.5
    assert rates.wait("a") == 0.0
    assert rates.wait("a") == pytest.approx(0.5)
    time[0] += 1000
    assert [bool(rates.wait("a")) for _ in range(4)] == [False, False, False, True]
    for number in range(MOST + 5):
        rates.wait(str(number))
    assert len(rates._left) == MOST


def test_who_asks_too_often_is_told_when_to_come_back(url, folder, secrets):
    strict = Settings(rate=0.5, burst=3, strangers_rate=0.5, strangers_burst=2)
    with (
        serving(url, folder, strict) as at,
        client(at, secrets["audit"]) as caller,
        client(at, secrets["submit"]) as other,
        client(at) as nobody,
    ):
        assert [caller.get("/discovery").status_code for _ in range(4)] == [200, 200, 200, 429]
        assert int(caller.get("/discovery").headers["retry-after"]) >= 1
        assert other.get("/discovery").status_code == 200
        assert [nobody.get("/discovery").status_code for _ in range(3)] == [401, 401, 429]
        sign_in = nobody.post("/sign-in", data={"token": "x", "next": ""})
        assert sign_in.status_code == 429  # one bucket for both
        assert int(sign_in.headers["retry-after"]) >= 1
        assert other.get("/discovery").status_code == 200  # strangers at the same address do not lock others out


def test_a_body_is_small_and_comes_soon(url, folder, secrets):
    with serving(url, folder, Settings(largest=1000, patience_s=0.3)) as at, client(at, secrets["submit"]) as caller:
        assert caller.post("/requests", content=b"x" * 1001).status_code == 413
        assert caller.post("/requests", content=iter([b"x" * 600, b"x" * 600])).status_code == 413
        assert caller.post("/requests", content=b"x" * 1000).status_code == 400
        host, port = at.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as line:
            line.sendall(
                f"POST /requests HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {secrets['submit']}\r\n"
                "Content-Length: 10\r\n\r\nabc".encode()
            )
            assert b" 408 " in line.recv(1000)


def test_a_connection_that_says_nothing_is_closed(url, folder, monkeypatch):
    monkeypatch.setattr(connections, "PATIENCE_S", 0.3)
    monkeypatch.setattr(connections, "MOST_OF_ONE", 5)
    with serving(url, folder) as at:
        host, port = at.removeprefix("http://").split(":")
        lines = [socket.create_connection((host, int(port)), timeout=10) for _ in range(5)]
        lines[0].sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n")
        with socket.create_connection((host, int(port)), timeout=10) as one_more:
            assert one_more.recv(100) == b""  # too many of one address
        for line in lines:
            assert line.recv(100) == b""  # after their time
            line.close()
        with client(at) as nobody:
            assert nobody.get("/health").status_code == 401
            assert nobody.get("/health").status_code == 401  # a connection that asks again


def test_a_name_of_any_letters_can_be_told(tmp_path):
    url = f"sqlite:///{tmp_path}/record.db"
    record = new_record(tmp_path, url, name="例.org/erasures")
    _, secret = make_token(record, "desk", ["submit"])
    with serving(url, tmp_path) as at, client(at, secret) as caller:
        answer = caller.post("/requests", json=submission())
        assert answer.status_code == 201
        assert answer.headers["x-opendsr-processor-domain"] == "%E4%BE%8B.org/erasures"
    record.close()


def test_an_error_that_nobody_expected_is_told_safely(url, folder, secrets, monkeypatch, caplog):
    def wrong(record):
        raise ValueError("person-17")

    monkeypatch.setattr(api, "open_orders", wrong)
    with serving(url, folder) as at, client(at, secrets["audit"]) as caller:
        answer = caller.get("/health")
    assert answer.status_code == 500
    assert "default-src" in answer.headers["content-security-policy"]
    assert "person-17" not in answer.text + caplog.text
    assert "GET '/health' ended in ValueError (test_service.py" in caplog.text


def test_pages_say_pending_as_the_commands_do():
    """One word for one state; only the page to sign in speaks of seconds to wait."""
    folder = Path(pages.__file__).parent
    files = [path for path in (folder / "templates").iterdir() if path.name != "sign_in.html"]
    for path in (*files, folder / "formatting.py", folder / "schemas.py"):
        assert not re.search(r"(?i)\bwait(s|ing)?\b", path.read_text()), path.name


# --- sessions


def test_a_session_is_ours_and_ends(record):
    session = new_session(record.keys, "0" * 16, 100)
    assert session_of(record.keys, session.written) == session
    changed = session.written.replace("0" * 16, "1" * 16, 1)
    assert session_of(record.keys, changed) is None
    assert session_of(record.keys, new_session(record.keys, "0" * 16, -1).written) is None
    assert session_of(record.keys, "nonsense") is None
    other = new_session(record.keys, "0" * 16, 100)
    assert csrf_of(record.keys, session) != csrf_of(record.keys, other)


@pytest.fixture
def signed_in(address, secrets):
    """Somebody at the dashboard, who operates."""
    with client(address) as person:
        answer = person.post("/sign-in", data={"token": secrets["operate"], "next": "/dashboard/projects"})
        assert (answer.status_code, answer.headers["location"]) == (303, "/dashboard/projects")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        yield person


def csrf(person, path="/dashboard"):
    return re.search(r'name="csrf" value="(\w+)"', person.get(path).text)[1]


def test_forms_of_other_sites_do_nothing(signed_in, record):
    asked = record.add("visits", "s4", "gdpr").request
    path = f"/dashboard/requests/{asked.subject_request_id}/cancel"
    token = csrf(signed_in)
    for data, headers in (
        ({"reason": "x"}, {}),
        ({"reason": "x", "csrf": "0" * 64}, {}),
        ({"reason": "x", "csrf": token}, {"Origin": "https://example.org"}),
        ({"reason": "x", "csrf": token}, {"Sec-Fetch-Site": "cross-site"}),
    ):
        assert signed_in.post(path, data=data, headers=headers).status_code == 403
    assert record.get(asked.subject_request_id).state == "pending"
    assert signed_in.post(path, data={"reason": "x", "csrf": token}).status_code == 303
    assert record.get(asked.subject_request_id).state == "cancelled"
    assert record.history(asked.subject_request_id)[-1].actor == "the operate desk"


def test_a_cookie_opens_no_api_and_a_token_no_pages(signed_in, callers):
    assert signed_in.get("/health").status_code == 401
    assert callers["operate"].get("/dashboard").status_code == 303
    cookie = signed_in.cookies["posterase"]
    assert signed_in.post("/dashboard/sign-out", data={"csrf": csrf(signed_in)}).status_code == 303
    assert "posterase" not in signed_in.cookies
    signed_in.cookies.set("posterase", cookie)
    assert signed_in.get("/dashboard").status_code == 303  # it is over, whoever has kept it


@pytest.mark.parametrize("path", ["https://example.org", "//example.org", "/dashboard//example.org:x@", "/static/x"])
def test_signing_in_leads_nowhere_else(address, secrets, path):
    with client(address) as person:
        answer = person.post("/sign-in", data={"token": secrets["audit"], "next": path})
        assert answer.headers["location"] == "/dashboard"


def test_a_revoked_token_ends_its_sessions(address, record):
    made, secret = make_token(record, "for a while", ["audit"])
    with client(address) as person:
        person.post("/sign-in", data={"token": secret, "next": ""})
        assert person.get("/dashboard").status_code == 200
        revoke_token(record, made.id)
        assert person.get("/dashboard").status_code == 303


def test_a_form_sent_twice_is_one_request(signed_in, record):
    page = signed_in.get("/dashboard/submit").text
    form = {name: re.search(rf'name="{name}" value="([^"]+)"', page)[1] for name in ("csrf", "subject_request_id")}
    form |= {"project": "visits", "subject": "s5", "regulation": "gdpr", "received": "", "due": ""}
    answers = [signed_in.post("/dashboard/submit", data=form) for _ in range(2)]
    assert {answer.status_code for answer in answers} == {303}
    assert answers[0].headers["location"] == answers[1].headers["location"]
    assert signed_in.post("/dashboard/submit", data=form | {"subject": "s6"}).status_code == 409
    wrong = signed_in.post("/dashboard/submit", data=form | {"subject_request_id": str(uuid.uuid4()), "project": "<b>"})
    assert wrong.status_code == 400
    assert "&lt;b&gt;" in wrong.text
    assert "<b>" not in wrong.text


def test_https_cookies_travel_by_nothing_else(url, folder, secrets):
    with serving(url, folder, Settings(https=True)) as at, client(at) as person:
        answer = person.post("/sign-in", data={"token": secrets["audit"], "next": ""})
        cookie = answer.headers["set-cookie"]
        assert cookie.startswith("__Host-posterase=")
        assert "; Secure" in cookie
        assert "Path=/" in cookie
        assert "max-age" in answer.headers["strict-transport-security"]


# --- keys and databases that change meanwhile


def test_keys_may_be_changed_while_it_serves(tmp_path):
    url = f"sqlite:///{tmp_path}/record.db"
    record = new_record(tmp_path, url)
    _, secret = make_token(record, "desk", ["operate"])
    with serving(url, tmp_path) as at, client(at, secret) as caller:
        assert caller.post("/requests", json=submission()).status_code == 201
        for ask in (
            lambda: caller.post("/ledger/verification").json()["whole"] is True,
            lambda: caller.get("/public-key").text.strip() == str(record.keys.public),
            lambda: caller.post("/requests", json=submission()).status_code == 201,
        ):
            rotate(record, tmp_path)
            assert ask()
    record.close()


def rotate(record, folder):
    new = rotated(record.keys)
    stage_signer(folder / "keys", new.signer)
    record.rotate(new.signer)
    promote_staged(folder / "keys", new)


def test_a_database_that_is_away_is_told(url, folder, secrets, monkeypatch):
    def away(self):
        raise sa.exc.OperationalError("SELECT 'person-17'", None, OSError("connection refused"))

    with serving(url, folder) as at, client(at, secrets["audit"]) as caller:
        assert caller.get("/requests").status_code == 200
        monkeypatch.setattr(sa.Engine, "connect", away)
        answer = caller.get("/requests")
        monkeypatch.undo()
        assert caller.get("/requests").status_code == 200
    assert answer.status_code == 503
    assert "the database cannot be reached" in answer.text
    assert "person-17" not in answer.text


# --- workers


@pytest.fixture
def small(request, tmp_path):
    """A record of its own."""
    url = f"sqlite:///{tmp_path}/record.db"
    if getattr(request, "param", "") == "postgresql":
        url = new_database(request.getfixturevalue("server"), f"d{uuid.uuid4().hex}")
    record = new_record(tmp_path, url)
    yield record, url, tmp_path
    record.close()


BOTH = pytest.mark.parametrize("small", ["sqlite", "postgresql"], indirect=True)


@BOTH
def test_an_order_is_run_by_another_process(small):
    record, url, folder = small
    asked = record.add("visits", "s1", "gdpr").request
    first = place_order(record, "visits")
    assert place_order(record, "visits") == first
    assert open_orders(record) == [first]
    with working(url, folder):
        until(lambda: order(record, first.id).ended_at)
    done = order(record, first.id)
    assert (done.failed, done.said) == (False, "1 request: 1 completed")
    assert record.get(asked.subject_request_id).state == "completed"
    assert record.history(asked.subject_request_id)[-1].actor == "a test"
    assert sorted(read_draws(folder / "visits")["erased"]) == [3, 4, 5]
    assert newest_order(record, "visits") == done
    assert [each.runs for each in standings(record)] == [1]
    with pytest.raises(NotFoundError):
        place_order(record, "nothing")


def test_a_worker_goes_on_with_new_keys(small):
    record, url, folder = small
    with working(url, folder):
        for number in range(2):
            asked = record.add("visits", f"s{number}", "gdpr").request
            placed = place_order(record, "visits")
            until(lambda placed=placed: order(record, placed.id).ended_at)
            assert order(record, placed.id).said == "1 request: 1 completed"
            assert record.get(asked.subject_request_id).state == "completed"
            rotate(record, folder)
    record.verify()


def test_a_run_that_ends_its_process_is_given_up(small):
    """And others are not kept waiting by it."""
    record, url, folder = small
    record.add("visits", "s1", "gdpr")
    placed = place_order(record, "visits")
    for expected in range(1, MOST_ATTEMPTS + 1):
        with working(url, folder, delay=60) as process:
            until(lambda expected=expected: order(record, placed.id).attempts == expected)
            process.kill()
    (folder / "other").mkdir()
    new_draws(folder / "other", 5)
    record.register(Project(name="other", draws="draws.nc", model="nowhere:build", folder=str(folder / "other")))
    beside = place_order(record, "other")
    assert [each.id for each in open_orders(record)] == [beside.id, placed.id]
    with working(url, folder):
        until(lambda: order(record, placed.id).ended_at)
    done = order(record, placed.id)
    assert done.failed
    assert done.said.startswith("its worker ended 3 times while it ran.")
    assert order(record, beside.id).failed is False


def test_what_is_due_soon_is_run_by_itself_and_not_for_ever(small):
    """A request that a run leaves waiting is not run again at once."""
    record, _, folder = small
    late_one = record.add("visits", "s1", "gdpr", received_at=record.clock() - dt.timedelta(days=28)).request
    record.add("visits", "s2", "gdpr")
    worker = Worker(str(record.database.url), folder / "keys", opener(), due_within=dt.timedelta(days=7))
    assert worker._take_one(record)
    assert record.get(late_one.subject_request_id).state == "completed"
    assert counts(record) == {"completed": 1, "pending": 1}
    record.add("visits", "s3", "gdpr", received_at=record.clock() - dt.timedelta(days=28))
    assert not worker._take_one(record)  # so soon after
    done = newest_order(record, "visits")
    assert done.ended_before(record.clock() + PERIOD)
    assert not done.ended_before(record.clock() - PERIOD)
    record.clock = lambda: now() + PERIOD + dt.timedelta(seconds=1)
    assert worker._take_one(record)
    assert counts(record) == {"completed": 2, "pending": 1}


def test_an_order_takes_what_is_due_so_soon(small):
    record, _, _ = small
    soon = record.add("visits", "s1", "gdpr", received_at=record.clock() - dt.timedelta(days=28)).request
    later = record.add("visits", "s2", "gdpr").request
    place_order(record, "visits", dt.timedelta(days=7))
    assert order_of(record, soon) is not None
    assert order_of(record, later) is None


def test_an_order_that_cannot_be_done_says_why(small):
    record, url, folder = small
    asked = record.add("visits", "s1", "gdpr").request
    (folder / "visits" / "draws.nc").unlink()
    placed = place_order(record, "visits")
    with working(url, folder):
        until(lambda: order(record, placed.id).ended_at)
    done = order(record, placed.id)
    assert done.failed
    assert "there is no file" in done.said
    assert record.get(asked.subject_request_id).state == "pending"


def test_a_worker_that_is_asked_to_end_finishes(small):
    record, url, folder = small
    asked = record.add("visits", "s1", "gdpr").request
    placed = place_order(record, "visits")
    with working(url, folder, delay=1.5, grace=20) as process:
        until(lambda: record.get(asked.subject_request_id).state == "in_progress")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert record.get(asked.subject_request_id).state == "completed"
    assert order(record, placed.id).ended_at


@BOTH
def test_a_worker_without_grace_hands_back(small):
    record, url, folder = small
    asked = record.add("visits", "s1", "gdpr").request
    placed = place_order(record, "visits")
    with working(url, folder, delay=60, grace=0.1) as process:
        until(lambda: record.get(asked.subject_request_id).state == "in_progress")
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
    assert record.get(asked.subject_request_id).state == "pending"
    assert record.history(asked.subject_request_id)[-1].kind == "request.released"
    assert order(record, placed.id).ended_at is None  # and the next worker takes it
    with working(url, folder):
        until(lambda: order(record, placed.id).ended_at)
    assert record.get(asked.subject_request_id).state == "completed"


@BOTH
def test_a_worker_that_is_killed_loses_nothing(small):
    record, url, folder = small
    asked = record.add("visits", "s1", "gdpr").request
    placed = place_order(record, "visits")
    with working(url, folder, delay=60) as process:
        until(lambda: record.get(asked.subject_request_id).state == "in_progress")
        process.kill()
    with working(url, folder):
        until(lambda: order(record, placed.id).ended_at)
    assert record.get(asked.subject_request_id).state == "completed"
    assert sorted(read_draws(folder / "visits")["erased"]) == [3, 4, 5]


def test_a_worker_outlives_its_server_until_its_run_is_done(small):
    record, url, folder = small
    asked = record.add("visits", "s1", "gdpr").request
    place_order(record, "visits")
    other = subprocess.Popen(["sleep", "60"])  # it is not the worker's parent any more: another process has its place
    with working(url, folder, parent=other.pid) as process:
        assert process.wait(20) == 0
    other.kill()
    other.wait()
    assert record.get(asked.subject_request_id).state == "pending"
    with working(url, folder, delay=0.5, parent=os.getpid()):
        until(lambda: record.get(asked.subject_request_id).state == "completed")


def test_what_is_late_is_counted(small):
    record, _, _ = small
    record.add("visits", "s1", "gdpr", received_at="2026-01-01T00:00:00Z")
    record.add("visits", "s2", "gdpr")
    assert (late(record), late(record, "visits"), late(record, "other")) == (1, 1, 0)
    assert counts(record) == {"pending": 2}


@BOTH
def test_requests_over_http_are_those_of_the_record(small):
    record, url, folder = small
    _, secret = make_token(record, "desk", ["operate"])
    with serving(url, folder) as at, client(at, secret) as caller:
        asked = submission("s1")
        assert caller.post("/requests", json=asked).status_code == 201
        ordered = caller.post("/projects/visits/orders").json()
        assert ordered["state"] == "pending"
        with working(url, folder):
            until(lambda: caller.get(f"/orders/{ordered['order']}").json()["state"] == "done")
        assert caller.get(f"/requests/{asked['subject_request_id']}").json()["results_count"] == 3
        document = caller.get(f"/requests/{asked['subject_request_id']}/certificate").content
        assert record.certificate(asked["subject_request_id"]) == document
        assert caller.get("/projects").json()[0]["spent"] == 0.05
        with client(at) as person:
            person.post("/sign-in", data={"token": secret, "next": "/dashboard"})
            path = f"/dashboard/requests/{asked['subject_request_id']}"
            for page in (person.get(f"{path}/{name}").text for name in ("certificate", "report")):
                assert html.escape(ORIGINS["moved"]) in page
                assert all(html.escape(caution) in page for caution in CAUTIONS)
                assert "<svg" not in page
        assert caller.post("/ledger/verification").json()["whole"] is True


def test_a_port_that_is_taken_is_told_first(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidOptionError, match="cannot be listened on"):
            serve("sqlite:///nowhere.db", tmp_path, port=taken.getsockname()[1], **SERVED)


SERVED = {"host": "127.0.0.1", "workers": 0, "due_within": None, "grace_s": 0.0, "settings": Settings()}


# --- the document


def test_the_document_says_what_is_answered(callers):
    document = callers["submit"].get("/openapi.json").json()
    assert {
        "/requests",
        "/requests/{subject_request_id}",
        "/requests/{subject_request_id}/certificate",
        "/health",
    } <= document["paths"].keys()
    assert not any(path.startswith("/dashboard") for path in document["paths"])
    for path in document["paths"].values():
        for operation in path.values():
            assert "422" not in operation["responses"]
            assert operation["security"] == [{"HTTPBearer": []}]


def test_a_request_may_be_read_while_others_write(tmp_path):
    """With SQLite, where a writer keeps all other writers out."""
    url = f"sqlite:///{tmp_path}/record.db"
    record = new_record(tmp_path, url)
    asked = record.add("visits", "s1", "gdpr").request
    _, secret = make_token(record, "desk", ["operate"])
    with serving(url, tmp_path) as at, client(at, secret) as caller, record.database.writing() as connection:
        connection.execute(sa.text("SELECT 1"))
        assert caller.get(f"/requests/{asked.subject_request_id}").status_code == 200
    record.close()


def test_exports_leave_connections_to_others(folder, url, record):
    """Twenty readers who do not read hold two connections, and give them back when they go."""
    keeper = Keeper(url, folder / "keys")
    held = keeper.record.database.engine.pool.checkedout

    async def ask():
        never = asyncio.Event()

        async def stuck(message):
            if message["type"] == "http.response.body":
                await never.wait()

        scope = {"type": "http", "asgi": {"spec_version": "2.4"}}
        answers = [await api.ledger(keeper, None) for _ in range(20)]
        reading = [asyncio.create_task(each(scope, never.wait, stuck)) for each in answers]
        while held() < EXPORTS:
            await asyncio.sleep(0.01)
        assert await keeper.read(Record.checkpoint)
        most = held()
        for each in reading:
            each.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        return most

    assert asyncio.run(ask()) == EXPORTS
    assert held() == 0
    keeper.close()


def test_too_many_at_once_are_told_so(record):
    with pytest.raises(RecordError, match="too many"), record.database.reading():
        raise sa.exc.TimeoutError


def test_an_origin_that_is_no_url_is_another_site(address):
    with client(address) as stranger:
        assert stranger.post("/sign-in", headers={"Origin": "http://["}).status_code == 403


def test_the_log_has_a_line_a_request(address, callers, monkeypatch, caplog):
    def broken(*_):
        raise KeyError("person-17")

    monkeypatch.setattr(Record, "get", broken)
    assert callers["operate"].get("/requests/a%0Aposterase%20is%20fine").status_code == 500
    assert [each.getMessage().count("\n") for each in caplog.records if each.name == "posterase.service"] == [0]
