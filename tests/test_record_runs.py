"""Runs: one erasure for all that wait, exactly once, whatever happens; certificates and what they say."""

from __future__ import annotations

import datetime as dt
import json
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import jsonschema
import pytest

from posterase.errors import OutputError, ProjectError, RecordError, RequestError
from posterase.record.certificate import page, schema
from posterase.record.ledger import verify
from posterase.record.project import Project
from posterase.record.purge import digest_of
from posterase.record.record import Record
from posterase.record.runs import CUT_OFF, recover, run
from tests.small_erasures import ROWS_EACH, new_draws, opener, read_draws
from tests.test_record import (  # noqa: F401 (fixtures)
    START,
    an_id,
    clock,
    new_database,
    server,
    some_keys,
    url,
)

SUBJECTS = 40


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "project"
    made.mkdir()
    new_draws(made, SUBJECTS)
    return made


@pytest.fixture
def record(url, clock, folder):  # noqa: F811
    opened = Record.open(url, some_keys(), actor="the officer", clock=clock)
    opened.register(project(folder))
    yield opened
    opened.close()


def project(folder: Path, **changes) -> Project:
    return Project(**{"name": "radon", "draws": "draws.nc", "bridge": "arviz", "folder": str(folder)} | changes)


def add(record, *subjects, **options):
    """Requests of these subjects, numbered from where the last ones ended."""
    start = len(record.find(states=["pending", "in_progress", "completed", "refused", "cancelled"], limit=1000))
    found = []
    for number, subject in enumerate(subjects, start + 1):
        found.append(an_id(number))
        record.add("radon", subject, "gdpr", subject_request_id=an_id(number), **options)
    return found


def certificate(record, identity):
    return json.loads(record.certificate(identity))


def rows(*subjects):
    return [int(each[1:]) * ROWS_EACH + i for each in subjects for i in range(ROWS_EACH)]


# --- one erasure for all


def test_requests_that_wait_are_run_together(record, folder):
    ids = add(record, "s1", "s7", "s3")
    before = digest_of(folder / "draws.nc")
    ran = run(record, "radon", opener())
    assert str(ran) == "3 requests: 3 completed"
    assert sorted(read_draws(folder)["erased"]) == sorted(rows("s1", "s3", "s7"))
    for identity in ids:
        found = certificate(record, identity)
        assert (found["outcome"], found["rows"]["count"], found["run"]["rows"]) == ("erased", 3, 9)
        assert found["fingerprints"]["draws"] == {"before": before, "after": digest_of(folder / "draws.nc")}
        assert [each.kind for each in record.history(identity)] == [
            "request.received",
            "request.started",
            "request.completed",
        ]
    assert record.verify().kinds["request.completed"] == 3
    assert run(record, "radon", opener()).requests == []


def test_only_what_is_due_is_run(record, clock, folder):  # noqa: F811
    add(record, "s1")
    clock.time = START + dt.timedelta(days=20)
    add(record, "s2")
    ran = run(record, "radon", opener(), due_within=dt.timedelta(days=10))
    assert [each.subject_request_id for each in ran.requests] == [an_id(1)]
    assert [each.subject_request_id for each in record.find()] == [an_id(2)]
    assert read_draws(folder)["erased"] == rows("s1")


def test_a_subject_without_rows_is_an_answer(record, folder):
    add(record, "nobody")
    before = digest_of(folder / "draws.nc")
    (request,) = run(record, "radon", opener()).requests
    assert (request.state, request.rows) == ("completed", 0)
    assert "no rows" in request.reason
    found = certificate(record, an_id(1))
    assert (found["outcome"], found["erasure"]) == ("no rows of the subject were found", None)
    assert digest_of(folder / "draws.nc") == before
    assert "Nothing was changed" in page(record.certificate(an_id(1)))


def test_a_subject_who_asks_twice(record, folder):
    add(record, "s1", "s1")
    run(record, "radon", opener())
    add(record, "s1")
    run(record, "radon", opener())
    assert [record.get(an_id(number)).rows for number in (1, 2, 3)] == [3, 3, 0]
    assert read_draws(folder)["erased"] == rows("s1")


def test_a_request_that_fails_is_set_apart_and_the_others_go_on(record, folder):
    ids = add(record, *(f"s{number}" for number in range(12)))
    bad = frozenset(rows("s4"))
    ran = run(record, "radon", opener(refuses=bad))
    states = {each.subject_request_id: each.state for each in ran.requests}
    assert states.pop(ids[4]) == "refused"
    assert set(states.values()) == {"completed"}
    assert not bad & set(read_draws(folder)["erased"])
    assert len(read_draws(folder)["erased"]) == 11 * ROWS_EACH
    assert record.get(ids[4]).reason == "k̂ 0.90 above 0.70"
    with pytest.raises(RequestError, match="refused"):
        record.certificate(ids[4])


def test_requests_that_fail_only_together(record, folder):
    """As many as an erasure is accepted for, the earliest first."""
    ids = add(record, *(f"s{number}" for number in range(8)))
    run(record, "radon", opener(most=5 * ROWS_EACH))
    states = [record.get(each).state for each in ids]
    assert states.count("completed") == 5
    assert states[0] == "completed"
    assert len(read_draws(folder)["erased"]) == 5 * ROWS_EACH


def test_set_apart_by_halving_not_one_by_one(record):
    add(record, *(f"s{number}" for number in range(32)))
    tried = []

    def watched(project, erased):
        fit = opener(refuses=frozenset(rows("s20")))(project, erased)
        tried.append(fit)
        return fit

    run(record, "radon", watched)
    assert len(tried[0].attempts) <= 2 * 5 + 1


def test_all_refused_leaves_everything_as_it_was(record, folder):
    add(record, "s1")
    before = digest_of(folder / "draws.nc")
    (request,) = run(record, "radon", opener(most=0)).requests
    assert request.state == "refused"
    assert digest_of(folder / "draws.nc") == before
    assert sorted(each.name for each in folder.iterdir()) == ["draws.nc"]


def test_the_budget_and_the_seed_go_from_run_to_run(record):
    seen = []

    def watched(project, erased):
        fit = opener()(project, erased)
        erase = fit.erase
        fit.erase = lambda rows, seed, spent: seen.append((seed, spent)) or erase(rows, seed, spent)
        return fit

    for subject in ("s1", "s2"):
        add(record, subject)
        run(record, "radon", watched)
    record.register(project(Path(record.project("radon").folder)), refitted=True)
    add(record, "s3")
    run(record, "radon", watched)
    assert seen == [(0, 0.0), (1, 0.01), (2, 0.0)]


def test_who_was_erased_before_is_known_until_the_model_is_fitted_anew(record, clock, folder):  # noqa: F811
    known = []

    def watched(project, erased):
        known.append(erased(["s1", "s2", 3, "s1"]))
        return opener()(project, erased)

    add(record, "s1")
    run(record, "radon", watched)
    add(record, "s2", "3")
    run(record, "radon", watched)
    clock.time += dt.timedelta(hours=1)
    record.register(project(folder), refitted=True)
    add(record, "s4")
    run(record, "radon", watched)
    assert known == [[False] * 4, [True, False, False, True], [False] * 4]


# --- exactly once


def test_two_workers_never_take_the_same_request(record, url, folder, clock):  # noqa: F811
    add(record, *(f"s{number}" for number in range(10)))
    ran = []

    def work() -> None:
        own = Record.open(url, some_keys(), actor="worker", clock=clock)
        ran.append(run(own, "radon", opener(delay=0.3)))
        own.close()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each is not None and bool(each.requests) for each in ran) == 1
    assert sorted(read_draws(folder)["erased"]) == rows(*(f"s{number}" for number in range(10)))
    assert record.verify().kinds["request.started"] == 10


@pytest.mark.parametrize("error", [ValueError("s1 has 17.25"), KeyboardInterrupt(), ProjectError("mend", "it")])
def test_a_run_that_fails_leaves_requests_waiting(record, folder, error):
    add(record, "s1", "s2")
    before = digest_of(folder / "draws.nc")

    def failing(project, erased):
        raise error

    with pytest.raises((RecordError, KeyboardInterrupt)) as raised:
        run(record, "radon", failing)
    assert "17.25" not in str(raised.value)
    assert [each.state for each in record.find()] == ["pending", "pending"]
    assert digest_of(folder / "draws.nc") == before
    assert record.verify().kinds["request.released"] == 2
    run(record, "radon", opener())
    assert [record.get(an_id(number)).state for number in (1, 2)] == ["completed", "completed"]


def test_draws_that_cannot_be_written_leave_requests_waiting(record, folder, monkeypatch):
    from tests.small_erasures import Removed

    add(record, "s1")

    def full(self, path):
        path.write_text("half")
        raise OutputError("the disk is full.", "make room.")

    monkeypatch.setattr(Removed, "save", full)
    with pytest.raises(OutputError, match="full"):
        run(record, "radon", opener())
    assert sorted(each.name for each in folder.iterdir()) == ["draws.nc"]
    assert record.get(an_id(1)).state == "pending"


def test_draws_that_somebody_changed_are_not_touched(record, folder):
    add(record, "s1")
    run(record, "radon", opener())
    new_draws(folder, SUBJECTS)
    add(record, "s2")
    with pytest.raises(ProjectError, match="--refitted"):
        run(record, "radon", opener())
    assert record.get(an_id(2)).state == "pending"
    record.register(project(folder), refitted=True)
    run(record, "radon", opener())
    assert read_draws(folder)["erased"] == rows("s2")


def test_a_project_is_not_changed_while_it_is_run(record, folder):
    add(record, "s1")

    def meddling(project_, erased):
        with pytest.raises(RecordError, match="being run"):
            record.register(project(folder, seed=5))
        return opener()(project_, erased)

    run(record, "radon", meddling)


def test_a_request_is_not_cancelled_while_it_is_run(record):
    add(record, "s1")

    def meddling(project, erased):
        with pytest.raises(RequestError, match="in_progress"):
            record.cancel(an_id(1), "too late")
        assert recover(record) == 0  # a run that lives is not a dead one's
        return opener()(project, erased)

    run(record, "radon", meddling)
    assert record.get(an_id(1)).state == "completed"


def killed(url, folder, trials, seed):  # noqa: F811
    command = [sys.executable, "-W", "ignore", "-m", "tests.record_victim", url, str(folder), str(trials), str(seed)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[1], check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout)


def test_a_worker_that_is_killed_leaves_nothing_half_done(url, folder):  # noqa: F811
    """Twenty times, at random points of the code and in the middle of commits."""
    found = killed(url, folder, 20, 0)
    assert sum(found["killed"].values()) == 20
    assert found["acknowledged"] > 5


@pytest.mark.slow
def test_a_worker_that_is_killed_a_thousand_times(url, folder):  # noqa: F811
    found = killed(url, folder, 1000, 1)
    assert found["killed"]["line"] > 300
    assert found["killed"]["time"] > 300


def test_the_kill_test_sees_what_is_half_done(url, folder):  # noqa: F811
    """The same checks, on a worker that writes its draws in place before anything is prepared."""
    from tests.record_victim import look

    record = Record.open(url, some_keys(), actor="a")
    record.register(project(folder))
    record.add("radon", "s1", "gdpr", subject_request_id=an_id(1))
    draws = read_draws(folder)
    (folder / "draws.nc").write_text(json.dumps(draws | {"erased": rows("s1")}))
    record.close()
    with pytest.raises(AssertionError, match="erased rows"):
        look(url, folder, {1})
    with pytest.raises(AssertionError, match="lost"):
        look(url, folder, {1, 2})


def test_what_a_dead_worker_has_left_is_told(record, folder, monkeypatch):
    """It died after the erasure and before it was prepared: as if it had never been."""
    add(record, "s1")
    monkeypatch.setattr("posterase.record.runs._release", lambda *_: None)

    def dying(project, erased):
        (folder / ".draws.nc.radon-3.new.nc").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(record, "radon", dying)
    monkeypatch.undo()
    assert record.get(an_id(1)).state == "in_progress"
    assert recover(record) == 1
    assert record.get(an_id(1)).state == "pending"
    assert record.history(an_id(1))[-1].body["reason"] == CUT_OFF
    assert sorted(each.name for each in folder.iterdir()) == ["draws.nc"]


# --- what is left of the old


def test_what_the_project_owns_is_deleted_and_what_it_may_own_is_listed(record, folder):
    record.register(project(folder, owns=["cache/*.npz", "states"], beyond=["the nightly backup"]))
    for name in ("cache/a.npz", "cache/b.npz", "states/chain.eqx", "older-draws.nc", "notes.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("rows")
    add(record, "s1")
    run(record, "radon", opener())
    assert sorted(each.name for each in folder.iterdir()) == ["cache", "draws.nc", "notes.txt", "older-draws.nc"]
    found = certificate(record, an_id(1))
    assert found["purged"] == ["cache/a.npz", "cache/b.npz", "states"]
    assert found["not_erased"][:2] == [
        "older-draws.nc, in the project's folder: it may hold the rows",
        "the nightly backup",
    ]


def test_old_draws_are_kept_where_that_is_asked_for_and_the_certificate_says_so(record, folder):
    before = (folder / "draws.nc").read_bytes()
    add(record, "s1")
    run(record, "radon", opener(), keep_old=True)
    (kept,) = folder.glob("draws.before-*.nc")
    assert kept.read_bytes() == before
    assert any(kept.name in each for each in certificate(record, an_id(1))["not_erased"])


def test_nothing_outside_the_project_is_deleted(record, folder):
    record.register(project(folder, owns=["../*"]))
    add(record, "s1")
    with pytest.raises(ProjectError, match="out of the project"):
        run(record, "radon", opener())
    assert record.get(an_id(1)).state == "pending"


# --- certificates


def test_certificates_are_as_their_schema_says(record):
    jsonschema.Draft202012Validator.check_schema(schema())
    published = Path(__file__).parents[1] / "docs" / "certificate.schema.json"
    assert json.loads(published.read_text()) == schema()
    add(record, "s1", "nobody")
    run(record, "radon", opener())
    for number in (1, 2):
        found = certificate(record, an_id(number))
        jsonschema.validate(found, schema(), format_checker=jsonschema.FormatChecker())
        for name in found:
            with pytest.raises(jsonschema.ValidationError):
                jsonschema.validate({k: v for k, v in found.items() if k != name}, schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(found | {"all_trace_is_gone": True}, schema())


def test_certificates_are_verified_offline_with_the_public_key_alone(record, tmp_path):
    add(record, "s1", "s2")
    run(record, "radon", opener())
    record.export(tmp_path / "ledger.jsonl")
    documents = [record.certificate(an_id(number)) for number in (1, 2)]
    with (tmp_path / "ledger.jsonl").open("rb") as lines:
        found = verify(lines, [record.keys.public], certificates=documents, checkpoints=[record.checkpoint()])
    kinds = [record.history(an_id(number))[-1].index for number in (1, 2)]
    assert list(found.certificates) == kinds


def test_certificates_of_both_databases_are_the_same_bytes(tmp_path, server):  # noqa: F811
    made = []
    for url in (f"sqlite:///{tmp_path / 'record.db'}", new_database(server, f"d{uuid.uuid4().hex}")):  # noqa: F402
        folder = tmp_path / str(len(made)) / "project"
        folder.mkdir(parents=True)
        new_draws(folder, SUBJECTS)
        record = Record.open(url, some_keys(), actor="the officer", clock=lambda: START)
        record.register(project(folder))
        add(record, "s1", "s2", "nobody")
        run(record, "radon", opener())
        made.append(([record.certificate(an_id(number)) for number in (1, 2, 3)], list(record.lines())))
        record.close()
    assert made[0] == made[1]


def test_nothing_that_is_kept_or_said_names_the_subject(record, url, folder, tmp_path, capfd):  # noqa: F811
    """The subject's key and a value of its rows, planted wherever they could slip through."""

    def telling(project, erased):
        fit = opener(refuses=frozenset(rows("s2")))(project, erased)
        rows_of, erase = fit.rows_of, fit.erase
        names = {"PLANTED-KEY": "s1", "PLANTED-TOO": "s2"}
        fit.rows_of = lambda subject: rows_of(names.get(subject, subject))

        def tells(*args):
            tried = erase(*args)
            tried.reason = "12 effective draws of a[PLANTED-TOO]" if not tried.accepted else ""
            report = tried.report
            report["rungs"][0]["ess"] = {"a[PLANTED-KEY]": 3.0}
            type(tried).report = property(lambda self: report)
            return tried

        fit.erase = tells
        return fit

    from tests.small_erasures import Removed

    plain = Removed.report
    record.register(project(folder, owns=["cache/*"]))
    (folder / "cache").mkdir()
    (folder / "cache" / "PLANTED-KEY.npz").write_text("rows")
    add(record, "PLANTED-KEY", "PLANTED-TOO")
    try:
        ran = run(record, "radon", telling)
    finally:
        Removed.report = plain
    assert [each.state for each in ran.requests] == ["completed", "refused"]
    made = record.certificate(an_id(1))
    said = capfd.readouterr()
    content = b"".join([made, page(made).encode(), *record.lines(), repr(ran).encode(), (said.out + said.err).encode()])
    if url.startswith("sqlite"):
        content += b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"PLANTED" not in content
    assert "⟨subject⟩".encode() in content

    def failing(project, erased):
        raise ValueError("PLANTED-KEY has 17.25")

    add(record, "PLANTED-KEY")
    with pytest.raises(RecordError) as raised:
        run(record, "radon", failing)
    assert "PLANTED" not in "".join([str(raised.value), repr(raised.value.__cause__), *map(str, record.lines())])


def test_the_page_for_people(record):
    add(record, "s1", "s2")
    run(record, "radon", opener())
    text = page(record.certificate(an_id(1)))
    for said in ("Certificate of erasure", "3 rows of the person who asked", "0.0010 ± 0.0001", "What was not erased"):
        assert said in text
    assert "all trace" not in text.lower()
    assert "<script" not in text
    assert "http" not in text
