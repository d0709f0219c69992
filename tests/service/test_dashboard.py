"""The dashboard in a real browser: from the request to the certificate; with the keyboard, on a phone, in the dark."""

import datetime as dt
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from posterase.record.ledger.ledger import verify
from posterase.record.record import Record
from posterase.record.run_queue import place_order
from posterase.record.runs import run
from posterase.record.tokens import make_token
from posterase.service.settings import Settings
from tests.browsers import chromium, launched
from tests.cli.test_record_commands import write_draws
from tests.services import new_record, serving, until, working
from tests.small_erasures import opener

pytestmark = pytest.mark.skipif(chromium() is None, reason="there is no Chromium here: apt-get install chromium")

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def browser():
    with launched() as found:
        yield found


@pytest.fixture(scope="module")
def held(tmp_path_factory):
    """A record with requests in every state, served."""
    folder = tmp_path_factory.mktemp("dashboard")
    url = f"sqlite:///{folder}/record.db"
    record = new_record(folder, url, subjects=200)
    now = record.clock()
    done = record.add("visits", "s1", "gdpr").request
    record.add("visits", "nobody", "gdpr")
    run(record, "visits", opener())
    refused = record.add("visits", "s2", "gdpr").request
    run(record, "visits", opener(refuses=frozenset({6})))
    gone = record.add("visits", "s3", "gdpr").request
    record.cancel(gone.subject_request_id, "the person has withdrawn it")
    for number in range(60):
        received = now - dt.timedelta(days=number)
        record.add("visits", f"s{number + 10}", "ccpa", received_at=received)
    _, secret = make_token(record, "privacy desk", ["submit", "operate", "audit"])
    with serving(url, folder, Settings(rate=1000, burst=1000)) as address:
        yield {"record": record, "address": address, "secret": secret, "url": url, "folder": folder} | {
            "done": done.subject_request_id,
            "refused": refused.subject_request_id,
            "gone": gone.subject_request_id,
            "late": record.find(limit=1)[0].subject_request_id,
        }
    record.close()


def signed_in(browser, held, **options):
    page = browser.new_page(base_url=held["address"], **options)
    page.faults = []
    page.on("console", lambda said: page.faults.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: page.faults.append(str(error)))
    page.goto("/")
    page.get_by_label("Your token").fill(held["secret"])
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url("**/dashboard")
    return page


PATHS = (
    "/dashboard",
    "/dashboard?view=completed",
    "/dashboard/submit",
    "/dashboard/projects",
    "/dashboard/ledger",
    "/dashboard/requests/{done}",
    "/dashboard/requests/{refused}",
    "/dashboard/requests/{gone}",
    "/dashboard/requests/{late}",
    "/dashboard/requests/{done}/certificate",
    "/dashboard/requests/{done}/report",
)


@pytest.mark.parametrize(
    ("scheme", "width"),
    [("light", 1100), pytest.param("dark", 1100, marks=pytest.mark.slow), ("dark", 380)],
)
def test_every_page_is_accessible_and_fits(browser, held, scheme, width):
    """By axe's rules, with no fault in the browser's log, and nothing wider than the window."""
    from axe_playwright_python.sync_playwright import Axe

    page = signed_in(browser, held, color_scheme=scheme, viewport={"width": width, "height": 800})
    for path in PATHS:
        page.goto(path.format(**held))
        found = Axe().run(page).response["violations"]
        assert not found, (path, [(each["id"], each["nodes"][0]["html"]) for each in found])
        assert page.evaluate("document.documentElement.scrollWidth") <= width, path
    assert page.faults == []
    page.close()


def test_late_ones_come_first_in_words_and_colour(browser, held):
    page = signed_in(browser, held)
    rows = page.locator("tbody tr")
    assert rows.count() == 50
    words = [
        re.search(r"(\d+ \w+ late|due (in|within).*?)(?= |$)", rows.nth(number).inner_text())[0] for number in (0, 49)
    ]
    assert "late" in words[0]
    assert "due" in words[1]
    assert "15 are late" in page.locator(".summary").inner_text()
    calm, late = (
        page.locator(f".badge.{name}").first.evaluate("e => getComputedStyle(e).color") for name in ("calm", "late")
    )
    assert calm != late
    page.get_by_role("link", name="Next page").click()
    assert rows.count() == 10
    assert page.get_by_role("link", name="First page").is_visible()
    page.close()


def test_it_works_with_the_keyboard_alone(browser, held):
    page = browser.new_page(base_url=held["address"])
    page.goto("/")
    page.keyboard.type(held["secret"])  # the only field has the focus
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.textContent") == "To the content"
    page.keyboard.press("Enter")
    page.keyboard.press("Tab")
    assert "Open" in page.evaluate("document.activeElement.textContent")  # past the header
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.closest('tbody') !== null"):
            break
    page.keyboard.press("Enter")
    page.wait_for_url("**/dashboard/requests/*")
    assert page.get_by_role("heading", level=1).inner_text().startswith("Request")
    page.close()


def test_progress_is_shown_as_it_goes(browser, held):
    """Without loading the page again: the worker is another process."""
    record = held["record"]
    asked = record.add("visits", "s150", "gdpr").request
    page = signed_in(browser, held)
    page.goto(f"/dashboard/requests/{asked.subject_request_id}")
    with working(held["url"], held["folder"], delay=2.5):
        page.get_by_role("button", name="Run now").click()
        page.get_by_text("It is run now.").wait_for(timeout=20_000)
        page.get_by_text("Completed.", exact=False).first.wait_for(timeout=20_000)
    assert "A run began" in page.locator(".timeline").inner_text()
    assert page.get_by_role("link", name="Certificate, the signed file").is_visible()
    assert page.faults == []
    page.close()


def test_the_report_tells_nothing_of_what_was_erased(browser, held):
    page = signed_in(browser, held)
    page.goto(f"/dashboard/requests/{held['done']}/report")
    assert "What can still be learned" in page.content()
    assert page.locator("svg").count() == 0
    assert page.locator("h1").count() == 1
    page.close()


def test_verify_now_finds_what_was_changed(browser, held):
    from posterase.record.store import schema

    page = signed_in(browser, held)
    page.goto("/dashboard/ledger")
    page.get_by_role("button", name="Verify now").click()
    assert "Whole and unchanged." in page.get_by_role("status").inner_text()
    table, record = schema.requests, held["record"]
    mine = table.c.id == held["refused"]
    before = record.get(held["refused"]).reason
    with record.database.writing() as connection:
        connection.execute(table.update().where(mine).values(reason="it was not me"))
    page.get_by_role("button", name="Verify now").click()
    said = page.get_by_role("status").inner_text()
    with record.database.writing() as connection:
        connection.execute(table.update().where(mine).values(reason=before))
    assert "Something is wrong." in said
    assert held["refused"] in said
    page.close()


# --- the whole way, with `posterase serve` and real draws


@pytest.fixture
def project(tmp_path):
    """Real draws of a real project, in an empty folder."""
    (tmp_path / "visits").mkdir()
    person = np.array([f"person-{number:02d}" for number in range(25)]).repeat(4)
    write_draws(tmp_path / "visits" / "draws.nc", person, np.random.default_rng(0).normal(1.0, 1.0, person.size))
    (tmp_path / "visits" / "project.toml").write_text(
        'name = "visits"\ndraws = "draws.nc"\nbridge = "arviz"\nsubject = "person"\npreprocessing = "none"\n'
    )
    return tmp_path


def posterase(folder, *words):
    done = subprocess.run(command(*words), cwd=folder, env=environment(folder), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def command(*words):
    return [sys.executable, "-m", "posterase.cli.main", *words]


def environment(folder):
    return os.environ | {"POSTERASE_KEYS": str(folder / "keys"), "POSTERASE_RECORD": str(folder / "record.db")}


def started(folder):
    posterase(folder, "keys", "new", "example.org/erasures")
    posterase(folder, "requests", "register", "visits/project.toml")
    secret = json.loads(posterase(folder, "tokens", "new", "desk", "--role", "operate", "--json"))["token"]
    words = command("serve", "--port", "0", "--json")
    server = subprocess.Popen(words, cwd=folder, env=environment(folder), stdout=subprocess.PIPE, text=True)
    lines = ""
    while not lines.endswith("}\n"):
        line = server.stdout.readline()
        assert line, "it did not start"
        lines += line
    return server, json.loads(lines)["address"], secret


@pytest.mark.slow
def test_from_the_form_to_the_certificate_verified_offline(browser, project):
    server, address, secret = started(project)
    try:
        page = signed_in(browser, {"address": address, "secret": secret})
        page.get_by_role("link", name="Submit").click()
        page.get_by_label("Whose rows").fill("person-03")
        page.get_by_role("button", name="Submit").click()
        page.get_by_role("button", name="Run now").click()
        page.get_by_text("4 rows of this person were erased").wait_for(timeout=120_000)
        with page.expect_download() as download:
            page.get_by_role("link", name="Certificate, the signed file").click()
        download.value.save_as(project / "certificate.json")
        page.get_by_role("link", name="Report").click()
        assert "Accepted: 4 rows of 100 were removed" in page.locator(".verdict").inner_text()
        page.goto("/dashboard/ledger")
        with page.expect_download() as download:
            page.get_by_role("link", name="Download the ledger").click()
        download.value.save_as(project / "ledger.jsonl")
        assert page.faults == []
        page.close()
    finally:
        server.terminate()
        ended = server.wait(60)
        server.stdout.close()
    assert ended == 0
    said = posterase(
        *(project, "verify", "ledger.jsonl", "--key", "keys/public.key", "--certificate", "certificate.json")
    )
    assert "certificate.json is entry" in said
    mine = subprocess.run(["pgrep", "-f", str(project)], capture_output=True, text=True)
    assert mine.stdout == ""  # no worker is left behind


@pytest.mark.slow
def test_workers_outlive_a_server_that_is_killed(project):
    server, _, _ = started(project)
    keys = project / "keys"
    from posterase.record.ledger.keyring import load_keys

    record = Record.open(f"sqlite:///{project}/record.db", load_keys(keys))
    asked = record.add("visits", "person-07", "gdpr").request
    place_order(record, "visits")
    until(lambda: record.get(asked.subject_request_id).state == "in_progress", 60)
    server.send_signal(signal.SIGKILL)
    server.wait()
    server.stdout.close()
    until(lambda: record.get(asked.subject_request_id).state == "completed", 60)
    until(lambda: subprocess.run(["pgrep", "-f", str(project)], capture_output=True).returncode == 1, 30)
    verify(record.ledger_lines(), [record.keys.public])
    record.close()


@pytest.mark.slow
def test_ten_thousand_requests_are_paged(browser, held, tmp_path):
    url = f"sqlite:///{tmp_path}/record.db"
    record = new_record(tmp_path, url)
    for number in range(10_000):
        record.add("visits", f"s{number}", "gdpr")
    _, secret = make_token(record, "desk", ["audit"])
    with serving(url, tmp_path) as address:
        many, few = (signed_in(browser, each) for each in ({"address": address, "secret": secret}, held))

        def seconds(page):
            start = time.perf_counter()
            page.goto("/dashboard")
            return time.perf_counter() - start

        ratio = np.median([seconds(many) for _ in range(7)]) / np.median([seconds(few) for _ in range(7)])
        assert ratio < 3
        assert "10,000 are open" in many.locator(".summary").inner_text()
        first = many.locator("tbody tr").first.inner_text()
        many.get_by_role("link", name="Next page").click()
        assert many.locator("tbody tr").count() == 50
        assert many.locator("tbody tr").first.inner_text() != first
        many.close()
        few.close()
    record.close()
