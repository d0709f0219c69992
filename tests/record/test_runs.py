"""Runs: one erasure for all pending ones, exactly once, whatever happens; certificates and what they say."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import html
import json
import os
import subprocess
import sys
import threading
import uuid
from pathlib import Path

import jsonschema
import pytest

from posterase.draws.origins import ORIGINS
from posterase.errors import OutputError, ProjectError, RecordError, RequestError
from posterase.projects.spec import Project
from posterase.record.certificate import page, schema
from posterase.record.ledger.ledger import verify
from posterase.record.owned_files import digest_of, others
from posterase.record.record import Record
from posterase.record.redaction import certified
from posterase.record.runs import CUT_OFF, LOST, NOT_TOGETHER, recover, run
from tests.record.test_record import (  # noqa: F401 (fixtures)
    START,
    an_id,
    clock,
    new_database,
    some_keys,
    url,
)
from tests.small_erasures import ROWS_EACH, Removed, new_draws, opener, read_draws

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
        keyed = record.keys.pseudonym("draws", before.encode())
        assert found["fingerprints"]["draws"] == {"before": keyed, "after": digest_of(folder / "draws.nc")}
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


@pytest.mark.parametrize("span", [dt.timedelta.max, dt.timedelta(days=-1)])
def test_spans_that_are_none(record, span):
    with pytest.raises(RequestError, match="due_within"):
        run(record, "radon", opener(), due_within=span)


def test_a_subject_without_rows_is_an_answer(record, folder):
    add(record, "nobody")
    before = digest_of(folder / "draws.nc")
    (request,) = run(record, "radon", opener()).requests
    assert (request.state, request.rows) == ("completed", 0)
    assert "no rows" in request.reason
    found = certificate(record, an_id(1))
    assert (found["outcome"], found["erasure"]) == ("no rows of the subject were found", None)
    assert digest_of(folder / "draws.nc") == before
    assert "nothing was changed" in page(record.certificate(an_id(1)))
    assert found["fingerprints"]["draws"]["before"] == found["fingerprints"]["draws"]["after"]
    assert before.encode() not in b"".join([*record.ledger_lines(), record.certificate(an_id(1))])


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
    assert record.get(ids[4]).reason == "k̂ is above its limit."
    with pytest.raises(RequestError, match="refused"):
        record.certificate(ids[4])


def test_requests_that_fail_only_together_wait(record, folder):
    """As many as an erasure is accepted for, the earliest first; the others are not refused, and are run next."""
    ids = add(record, *(f"s{number}" for number in range(8)))
    run(record, "radon", opener(most=5 * ROWS_EACH))
    states = [record.get(each).state for each in ids]
    assert states[0] == "completed"
    assert (states.count("completed"), states.count("pending")) == (5, 3)
    assert record.history(ids[-1])[-1].body["reason"] == NOT_TOGETHER
    run(record, "radon", opener(most=5 * ROWS_EACH))
    assert {record.get(each).state for each in ids} == {"completed"}
    assert len(read_draws(folder)["erased"]) == 8 * ROWS_EACH


def test_an_error_of_one_request_is_set_apart_and_no_answer(record, folder):
    ids = add(record, "s1", "s2", "s3")

    def failing(project, erased):
        fit = opener()(project, erased)
        erase, rows_of = fit.erase, fit.rows_of

        def breaks(asked, *rest):
            if set(rows("s2")) & set(asked):
                raise ValueError("17.25 is no number")
            return erase(asked, *rest)

        def lost(subject):
            if subject == "s3":
                raise KeyError("s3")
            return rows_of(subject)

        fit.erase, fit.rows_of = breaks, lost
        return fit

    run(record, "radon", failing)
    assert [record.get(each).state for each in ids] == ["completed", "pending", "pending"]
    assert record.history(ids[1])[-1].body["reason"].startswith("ValueError (test_runs.py")
    assert read_draws(folder)["erased"] == rows("s1")
    with pytest.raises(RecordError, match=r"ValueError|KeyError"):
        run(record, "radon", failing)
    run(record, "radon", opener())
    assert {record.get(each).state for each in ids} == {"completed"}


def test_set_apart_by_halving_not_one_by_one(record):
    add(record, *(f"s{number}" for number in range(32)))
    tried = []

    def watched(project, erased):
        fit = opener(refuses=frozenset(rows("s20")))(project, erased)
        tried.append(fit)
        return fit

    run(record, "radon", watched)
    assert len(tried[0].attempts) <= 2 * 5 + 2


def test_all_refused_leaves_everything_as_it_was(record, folder):
    add(record, "s1")
    before = digest_of(folder / "draws.nc")
    (request,) = run(record, "radon", opener(most=0)).requests
    assert request.state == "refused"
    assert digest_of(folder / "draws.nc") == before
    assert sorted(each.name for each in folder.iterdir()) == ["draws.nc"]


@pytest.mark.parametrize("seed", [None, 5])
def test_the_budget_and_the_seed_go_from_run_to_run(record, folder, seed):
    """Without a seed random numbers are fresh in every run; with one, each run has another."""
    seen = []
    record.register(project(folder, seed=seed))

    def watched(project, erased):
        fit = opener()(project, erased)
        erase = fit.erase
        fit.erase = lambda rows, seed, spent: seen.append((seed, spent)) or erase(rows, seed, spent)
        return fit

    for subject in ("s1", "s2"):
        add(record, subject)
        run(record, "radon", watched)
    record.register(project(folder, seed=seed), refitted=True)
    add(record, "s3")
    run(record, "radon", watched)
    assert seen == [(None if seed is None else seed + number, spent) for number, spent in enumerate([0.0, 0.05, 0.0])]


def test_who_was_erased_before_is_known_until_they_come_back(record, clock, folder):  # noqa: F811
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
    record.register(project(folder), returned=True)
    add(record, "s5")
    run(record, "radon", watched)
    again = [True, True, False, True]
    assert known == [[False] * 4, [True, False, False, True], again, [False] * 4]


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
    ran = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False)
    assert ran.returncode == 0, ran.stderr[-4000:]
    return json.loads(ran.stdout)


def test_a_worker_that_is_killed_leaves_nothing_half_done(url, folder):  # noqa: F811
    """Twenty times in all, at random points of the code and in the middle of commits."""
    found = killed(url, folder, 10, 0)
    assert sum(found["killed"].values()) == 10
    assert found["killed"]["aimed"] > 1
    assert found["acknowledged"] > 5


@pytest.mark.slow
@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_a_worker_that_is_killed_a_thousand_times(database, tmp_path, request):
    """In forty records, so that looking at each stays cheap."""
    counts: collections.Counter[str] = collections.Counter()
    for batch in range(40):
        folder = tmp_path / str(batch)
        folder.mkdir()
        if database == "sqlite":
            here = f"sqlite:///{tmp_path / f'{batch}.db'}"
        else:
            here = new_database(request.getfixturevalue("server"), f"d{uuid.uuid4().hex}")
        counts.update(killed(here, folder, 25, batch)["killed"])
    assert counts.total() == 1000
    assert min(counts[how] for how in ("line", "aimed", "time")) > 200


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


def test_what_the_project_owns_is_deleted_and_what_it_may_own_is_counted(record, folder):
    record.register(project(folder, owns=["cache/*.npz", "states"], beyond=["the nightly backup"]))
    names = ("cache/a.npz", "cache/b.npz", "states/chain.eqx", "older-draws.nc", "a.csv.gz", "b.csv.gz", "model.py")
    for name in names:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("rows")
    add(record, "s1")
    run(record, "radon", opener())
    left = ["a.csv.gz", "b.csv.gz", "cache", "draws.nc", "model.py", "older-draws.nc"]
    assert sorted(each.name for each in folder.iterdir()) == left
    found = certificate(record, an_id(1))
    assert found["purged"] == ["2 by cache/*.npz", "1 by states"]
    counted = "other files in the project's folder, which may hold the rows: 2 .gz files, 1 .nc file"
    assert found["not_erased"][:2] == [counted, "the nightly backup"]


@pytest.mark.parametrize(
    ("draws", "owns"),
    [("out/draws.nc", "out"), ("out/draws.nc", "*"), ("draws.nc", "../project/*"), ("draws.nc", "/tmp")],
)
def test_draws_and_what_is_elsewhere_are_nothing_to_delete(record, folder, draws, owns):
    (folder / "out").mkdir()
    (folder / "out" / "draws.nc").write_bytes((folder / "draws.nc").read_bytes())
    with pytest.raises(ProjectError, match="owns"):
        record.register(project(folder, draws=draws, owns=[owns]))


def test_draws_that_match_what_is_owned_stay(record, folder):
    for subject, draws in (("s1", "draws.nc"), ("s2", str(folder / "draws.nc"))):
        record.register(project(folder, draws=draws, owns=["*.nc", ".*"]))
        (folder / "old.nc").write_text("rows")
        add(record, subject)
        run(record, "radon", opener())
        assert sorted(each.name for each in folder.iterdir()) == ["draws.nc"]


def test_what_a_link_leads_to_outside_is_not_deleted(record, folder, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a.npz").write_text("not ours")
    (folder / "cache").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ProjectError, match="out of the project"):
        record.register(project(folder, owns=["cache/*"]))


def test_draws_behind_a_link_are_replaced_themselves(record, folder, tmp_path):
    (folder / "draws.nc").rename(tmp_path / "real.nc")
    (folder / "draws.nc").symlink_to(tmp_path / "real.nc")
    add(record, "s1")
    run(record, "radon", opener())
    assert (folder / "draws.nc").is_symlink()
    assert json.loads((tmp_path / "real.nc").read_text())["erased"] == rows("s1")


def test_odd_names_of_files(record, folder):
    (folder / os.fsdecode(b"\xff.csv")).write_text("rows")
    (folder / "draws[1].nc").write_bytes((folder / "draws.nc").read_bytes())
    record.register(project(folder, draws="draws[1].nc"))
    add(record, "s1")
    with pytest.raises(RecordError):
        run(record, "radon", lambda *_: 1 / 0)
    run(record, "radon", opener())
    assert record.get(an_id(1)).state == "completed"


def test_a_long_name(record, folder):
    record.register(project(folder, name="a" * 64))
    record.add("a" * 64, "s1", "gdpr")
    assert str(run(record, "a" * 64, opener())) == "1 request: 1 completed"


def test_old_draws_are_kept_where_that_is_asked_for_and_the_certificate_says_so(record, folder):
    before = (folder / "draws.nc").read_bytes()
    add(record, "s1")
    run(record, "radon", opener(), keep_old=True)
    (kept,) = folder.glob("draws.before-*.nc")
    assert kept.read_bytes() == before
    assert any(kept.name in each for each in certificate(record, an_id(1))["not_erased"])


# --- a process that dies after it has written down what to do


@pytest.fixture
def prepared(record, folder, monkeypatch):
    """A run that was prepared, and then nobody went on with it."""
    add(record, "s1")

    def dies(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("posterase.record.runs._settle", dies)
        with pytest.raises(KeyboardInterrupt):
            run(record, "radon", opener(), keep_old=True)
    assert record.get(an_id(1)).state == "in_progress"
    (new,) = folder.glob(".draws.nc.*.new.nc")
    return new


def test_it_is_completed_by_whoever_comes_next(record, folder, prepared):
    assert recover(record) == 1
    assert record.get(an_id(1)).state == "completed"
    assert read_draws(folder)["erased"] == rows("s1")
    assert len(list(folder.iterdir())) == 2  # the old draws were to be kept
    assert recover(record) == 0
    record.verify()


@pytest.mark.parametrize("lost", ["new file", "half of the new file", "other draws"])
def test_what_was_lost_or_changed_since_is_not_overwritten(record, folder, prepared, lost):
    if lost == "new file":
        prepared.unlink()
    elif lost == "half of the new file":
        prepared.write_text("half")
    else:
        (folder / "draws.nc").write_text(json.dumps({"kept": [1, 2], "erased": []}))
    before = (folder / "draws.nc").read_bytes()
    recover(record)
    assert record.get(an_id(1)).state == "pending"
    assert record.history(an_id(1))[-1].body["reason"] == LOST
    assert (folder / "draws.nc").read_bytes() == before
    assert sorted(each.name for each in folder.iterdir()) == ["draws.nc"]


def test_a_folder_that_is_away_is_waited_for(record, folder, prepared, tmp_path):
    folder.rename(tmp_path / "away")
    with pytest.raises(ProjectError, match="not there"):
        recover(record)
    record.add("radon", "s2", "gdpr", subject_request_id=an_id(2))
    (tmp_path / "away").rename(folder)
    recover(record)
    assert record.get(an_id(1)).state == "completed"


# --- certificates


def test_certificates_are_as_their_schema_says(record):
    jsonschema.Draft202012Validator.check_schema(schema())
    checks = jsonschema.Draft202012Validator(schema(), format_checker=jsonschema.FormatChecker())
    published = Path(__file__).parents[2] / "docs" / "certificate.schema.json"
    assert json.loads(published.read_text()) == schema()
    add(record, "s1", "nobody")
    run(record, "radon", opener())
    for number in (1, 2):
        found = certificate(record, an_id(number))
        checks.validate(found)
        for name in found:
            assert not checks.is_valid({k: v for k, v in found.items() if k != name}), name
    assert not checks.is_valid(found | {"all_trace_is_gone": True})


def test_certificates_are_verified_offline_with_the_public_key_alone(record, tmp_path):
    add(record, "s1", "s2")
    run(record, "radon", opener())
    record.export(tmp_path / "ledger.jsonl")
    documents = [record.certificate(an_id(number)) for number in (1, 2)]
    with (tmp_path / "ledger.jsonl").open("rb") as lines:
        found = verify(lines, [record.keys.public], certificates=documents, checkpoints=[record.checkpoint()])
    kinds = [record.history(an_id(number))[-1].index for number in (1, 2)]
    assert list(found.certificates) == kinds


def test_certificates_of_both_databases_are_the_same_bytes(tmp_path, server):
    made = []
    for url in (f"sqlite:///{tmp_path / 'record.db'}", new_database(server, f"d{uuid.uuid4().hex}")):  # noqa: F402
        folder = tmp_path / "project"
        folder.mkdir(exist_ok=True)
        new_draws(folder, SUBJECTS)
        record = Record.open(url, some_keys(), actor="the officer", clock=lambda: START)
        record.register(project(folder))
        add(record, "s1", "s2", "nobody")
        run(record, "radon", opener())
        made.append(([record.certificate(an_id(number)) for number in (1, 2, 3)], list(record.ledger_lines())))
        record.close()
    assert made[0] == made[1]


class Telling(Removed):
    """An erasure that names its subjects wherever it can."""

    @property
    def report(self):
        told = super().report
        told["methods"][0] |= {"ess": {"a[PLANTED-KEY]": 3.0, "PLANTED-KEY": 2.0}, "objections": ["of PLANTED-KEY"]}
        told["verdict"] |= {
            "notes": [
                {"kind": "container", "text": "cut: planted-key"},
                {"kind": "model", "text": "not erased: the mean of PLANTED-KEY"},
            ],
            "advice": "PLANTED-KEY has 17.25",
            "epsilon": 17.25,
        }
        return told | {"log_evidence_ratio": 17.25}


def telling(project, erased):
    fit = opener(refuses=frozenset(rows("s2")))(project, erased)
    rows_of, erase = fit.rows_of, fit.erase
    names = {"PLANTED-KEY": "s1", "PLANTED-TOO": "s2"}
    fit.rows_of = lambda subject: rows_of(names.get(subject, subject))

    def tells(*args):
        tried = Telling(**dataclasses.asdict(erase(*args)))
        tried.reason = "12 effective draws of a[PLANTED-TOO], b_PLANTED-TOO" if not tried.accepted else ""
        return tried

    fit.erase = tells
    return fit


def test_nothing_that_is_kept_or_said_names_the_subject(record, url, folder, tmp_path, capfd):  # noqa: F811
    """The subject's key and a value of its rows, planted wherever they could slip through."""
    record.register(project(folder, owns=["cache/*"]))
    (folder / "cache").mkdir()
    for name in ("cache/PLANTED-KEY.npz", "cache/draws_PLANTED-KEY.nc", "PLANTED-KEY.csv"):
        (folder / name).write_text("rows")
    add(record, "PLANTED-KEY", "PLANTED-TOO")
    ran = run(record, "radon", telling)
    assert [each.state for each in ran.requests] == ["completed", "refused"]
    made = record.certificate(an_id(1))
    jsonschema.validate(json.loads(made), schema())
    said = capfd.readouterr()
    content = b"".join(
        [made, page(made).encode(), *record.ledger_lines(), repr(ran).encode(), (said.out + said.err).encode()]
    )
    if url.startswith("sqlite"):
        content += b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.is_file())
    assert b"planted" not in content.lower()
    assert b"17.25" not in content
    assert b"withheld" in content

    def failing(project, erased):
        raise ValueError("PLANTED-KEY has 17.25")

    add(record, "PLANTED-KEY")
    with pytest.raises(RecordError) as raised:
        run(record, "radon", failing)
    errors = [raised.value, raised.value.__cause__, raised.value.__context__]
    assert "PLANTED" not in "".join([*map(repr, errors), *map(str, record.ledger_lines())])


@pytest.mark.parametrize(
    "subject", ["draws", "fingerprints", "after", "sha256", "measured", "the", "k", "[", "completed"]
)
def test_whatever_a_subject_is_called(record, subject):
    """Its key may be a word of ours."""
    add(record, subject, "s1")
    run(record, "radon", opener())
    for number in (1, 2):
        made = record.certificate(an_id(number))
        jsonschema.validate(json.loads(made), schema())
        page(made)
    add(record, "s2")
    run(record, "radon", opener())
    record.verify()


def test_the_page_for_people(record):
    add(record, "s1", "s2")
    run(record, "radon", opener())
    text = page(record.certificate(an_id(1)))
    for shown in (
        "Certificate of erasure",
        "3 rows of the person who asked were removed from radon. The method weighted, mapped or moved the old draws.",
        "Reweight, passed with a wide margin",
        "0.05 of 1",
        "What was not erased",
        "Whoever holds the draws before and the draws after can reconstruct much of what was removed.",
    ):
        assert shown in text
    assert "all trace" not in text.lower()
    assert "<script" not in text
    assert "http" not in text


@pytest.mark.parametrize("happened", ORIGINS)
def test_the_page_says_what_happened_to_the_draws(record, happened, monkeypatch):
    class Otherwise(Removed):
        @property
        def report(self):
            made = super().report
            return made | {"verdict": made["verdict"] | {"draws": happened}}

    monkeypatch.setattr("tests.small_erasures.Removed", Otherwise)
    add(record, "s1")
    run(record, "radon", opener())
    made = record.certificate(an_id(1))
    jsonschema.validate(json.loads(made), schema())
    assert html.escape(ORIGINS[happened]) in page(made)
    assert "replaced" not in page(made)


def test_a_certificate_has_no_field_of_a_report_that_it_does_not_name():
    made = Removed(True, "", [1], [2], 0.05).report
    figures = {"log_evidence_ratio": 1.0, "ess": {"mu": 3.0}, "seed": 5}
    more = made | figures | {"verdict": made["verdict"] | figures, "methods": [made["methods"][0] | figures]}
    assert certified(more, []) == certified(made, [])


def test_locks_of_a_record_are_no_files_that_may_hold_rows(tmp_path):
    for name in ("draws.nc", "rows.csv", "record.db.visits.lock"):
        (tmp_path / name).touch()
    told = others(Project(name="visits", draws="draws.nc", model="nowhere:build", folder=str(tmp_path)), [])
    assert told == ["other files in the project's folder, which may hold the rows: 1 .csv file"]
