"""The docs' pictures of the dashboard, from a real service with real erasures: `python -m tests.screenshots FOLDER`."""

from __future__ import annotations

import datetime as dt
import sys
import tempfile
from pathlib import Path

import numpy as np

from posterase.projects.loading import open_project
from posterase.projects.spec import Project
from posterase.record.ledger.keyring import new_keys
from posterase.record.record import Record
from posterase.record.runs import run
from posterase.record.tokens import make_token
from tests.browsers import launched
from tests.cli.test_record_commands import write_draws
from tests.services import serving

PEOPLE, VISITS = 60, 4


def main(target: Path) -> None:
    """Three pages, as a person sees them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "clinic").mkdir()
        person = np.array([f"patient-{number:02d}" for number in range(PEOPLE)]).repeat(VISITS)
        values = np.random.default_rng(0).normal(1.0, 1.0, person.size)
        write_draws(folder / "clinic" / "draws.nc", person, values)
        url = f"sqlite:///{folder}/record.db"
        record = Record.open(url, new_keys(folder / "keys", "example.org/erasures"), actor="nightly job")
        record.register(
            Project(
                name="clinic",
                draws="draws.nc",
                bridge="arviz",
                subject="person",
                preprocessing="none",
                folder=str(folder / "clinic"),
            )
        )
        day = dt.timedelta(days=1)
        done = [_add(record, number, 12 * day) for number in range(3)]
        run(record, "clinic", open_project)
        for number in range(3, 40):
            _add(record, number, (number * 7 % 33) * day)
        _, secret = make_token(record, "privacy desk", ["operate"])
        with serving(url, folder) as address, launched() as browser:
            page = browser.new_page(base_url=address, viewport={"width": 1100, "height": 640}, device_scale_factor=1.5)
            page.goto("/")
            page.get_by_label("Your token").fill(secret)
            page.get_by_role("button", name="Sign in").click()
            page.wait_for_url("**/dashboard")
            page.screenshot(path=target / "dashboard.png")
            page.goto(f"/dashboard/requests/{done[0]}")
            page.screenshot(path=target / "request.png", full_page=True)
            page.goto(f"/dashboard/requests/{done[0]}/report")
            page.screenshot(path=target / "report.png", full_page=True)
        record.close()


def _add(record: Record, number: int, ago: dt.timedelta) -> str:
    law = "ccpa" if number % 4 == 1 else "gdpr"
    added = record.add("clinic", f"patient-{number:02d}", law, received_at=record.clock() - ago)
    return added.request.subject_request_id


if __name__ == "__main__":
    main(Path(sys.argv[1]))
