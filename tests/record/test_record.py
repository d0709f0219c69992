"""Requests: states, deadlines, who did what; the same on SQLite and PostgreSQL; and what a record refuses."""

from __future__ import annotations

import dataclasses
import datetime as dt
import errno
import json
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from posterase.errors import KeyFileError, LedgerError, OutputError, ProjectError, RecordError, RequestError
from posterase.projects.spec import Project
from posterase.record import opening
from posterase.record.consistency import definition_digest, folder_digest
from posterase.record.deadlines import due, span_of, text_of, time_of
from posterase.record.ledger.canonical import canonical
from posterase.record.ledger.keyring import (
    Keys,
    load_keys,
    load_public_key,
    new_keys,
    promote_staged,
    rotated,
    stage_signer,
    staged_keys,
)
from posterase.record.ledger.ledger import verify
from posterase.record.ledger.signed_note import Signer
from posterase.record.opening import open_record
from posterase.record.record import Record
from posterase.record.redaction import WITHHELD, mentions, redact, written
from posterase.record.store import schema
from tests.databases import new_database

NAME = "example.org/erasures"
START = dt.datetime(2026, 1, 31, 12, 0, tzinfo=dt.UTC)


def some_keys(seed: int = 1) -> Keys:
    return Keys(Signer(NAME, Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32)), bytes([seed]) * 32)


class Clock:
    """A clock that shows what it is set to."""

    def __init__(self, time: dt.datetime = START):
        self.time = time

    def __call__(self) -> dt.datetime:
        return self.time


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request, tmp_path):
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'record.db'}"
    return new_database(request.getfixturevalue("server"), f"d{uuid.uuid4().hex}")


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def record(url, clock):
    opened = Record.open(url, some_keys(), actor="the officer", clock=clock)
    opened.register(project())
    yield opened
    opened.close()


def project(**changes):
    return Project(**{"name": "radon", "draws": "draws.nc", "bridge": "arviz", "subject": "county"} | changes)


def an_id(number: int = 1) -> str:
    return f"00000000-0000-4000-8000-{number:012d}"


# --- deadlines


@pytest.mark.parametrize(
    ("received", "term", "extended"),
    [
        ("2026-01-31T12:00:00Z", "2026-02-28T12:00:00Z", "2026-04-30T12:00:00Z"),
        ("2028-01-30T00:00:00Z", "2028-02-29T00:00:00Z", "2028-04-30T00:00:00Z"),
        ("2026-12-15T08:30:00Z", "2027-01-15T08:30:00Z", "2027-03-15T08:30:00Z"),
    ],
)
def test_gdpr_gives_a_month_and_three_with_a_reason(received, term, extended):
    start = time_of(received, "received_at")
    assert text_of(due("gdpr", start)) == term
    assert text_of(due("gdpr", start, extended=True)) == extended


def test_ccpa_gives_45_days_and_90_with_a_reason():
    start = time_of("2026-01-01T00:00:00Z", "received_at")
    assert (due("ccpa", start) - start).days == 45
    assert (due("ccpa", start, extended=True) - start).days == 90
    assert due("other", start) is None


def test_times_are_rfc_3339_with_a_zone():
    assert text_of(time_of("2026-03-01T01:30:00+02:00", "t")) == "2026-02-28T23:30:00Z"
    assert text_of(time_of("2026-03-01t01:30:00.999z", "t")) == "2026-03-01T01:30:00Z"
    for wrong in (
        "2026-03-01",
        "2026-03-01T01:30:00",
        "yesterday",
        "2026-02-30T00:00:00Z",
        "0001-01-01T00:00:00+14:00",
        5,
    ):
        with pytest.raises(RequestError):
            time_of(wrong, "t")
    with pytest.raises(RequestError, match="zone"):
        time_of(dt.datetime(2026, 1, 1), "t")
    with pytest.raises(RequestError, match="year"):
        time_of(dt.datetime.min.replace(tzinfo=dt.UTC), "t")


def test_spans():
    assert (span_of("7d"), span_of("36h"), span_of("2w")) == tuple(dt.timedelta(hours=h) for h in (168, 36, 336))
    for wrong in ("7", "d", "-1d", "1y", "9999999d", "9" * 5000 + "d"):
        with pytest.raises(RequestError):
            span_of(wrong)


# --- handing in


def test_a_request_is_received_with_its_date(record):
    answer = record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    assert (answer.outcome, answer.request.state, answer.request.due_at) == (
        "received",
        "pending",
        "2026-02-28T12:00:00Z",
    )
    assert answer.request.to_opendsr() == {
        "api_version": "2.0",
        "controller_id": "radon",
        "subject_request_id": an_id(),
        "subject_request_type": "erasure",
        "regulation": "gdpr",
        "received_time": "2026-01-31T12:00:00Z",
        "expected_completion_time": "2026-02-28T12:00:00Z",
        "request_status": "pending",
        "results_count": None,
    }
    (entry,) = record.history(an_id())
    assert (entry.kind, entry.actor, entry.time) == ("request.received", "the officer", "2026-01-31T12:00:00Z")


def test_an_id_is_made_where_there_is_none(record):
    assert uuid.UUID(record.add("radon", "ANOKA", "gdpr").request.subject_request_id).version == 4


def test_the_same_request_twice_is_one_request(record):
    first = record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    assert record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id()) == ("duplicate", first.request)
    for other in [("radon", "AITKIN", "gdpr"), ("radon", "ANOKA", "ccpa")]:
        assert record.add(*other, subject_request_id=an_id()) == ("conflict", first.request)
    late = record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id(), received_at="2026-01-30T00:00:00Z")
    assert late == ("conflict", first.request)
    sooner = record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id(), due_at="2026-02-02T00:00:00Z")
    assert sooner == ("conflict", first.request)
    assert len(record.find()) == 1
    assert record.verify().kinds["request.received"] == 1


def test_requests_are_listed_by_their_dates_a_page_at_a_time(record, clock):
    for number in range(25):
        record.add(
            "radon",
            f"c{number}",
            "ccpa",
            subject_request_id=an_id(number),
            received_at=START - dt.timedelta(hours=number),
        )
    everything = record.find()
    assert [each.due_at for each in everything] == sorted(each.due_at for each in everything)
    pages, last = [], None
    while page := record.find(after=last, limit=10):
        pages.append(page)
        last = page[-1]
    assert [len(page) for page in pages] == [10, 10, 5]
    assert [each for page in pages for each in page] == everything
    assert len(record.find(due_before=START + dt.timedelta(days=44, hours=12))) == 13
    assert record.find(project="another") == []


def test_lateness(record, clock):
    request = record.add("radon", "ANOKA", "other", due_at="2026-02-01T00:00:00Z").request
    assert not request.late(clock())
    assert request.late(START + dt.timedelta(days=2))


def test_an_extension_needs_a_reason_and_is_given_once(record, clock):
    record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    extended = record.extend(an_id(), "many requests at once")
    assert (extended.due_at, extended.extended_because) == ("2026-04-30T12:00:00Z", "many requests at once")
    with pytest.raises(RequestError, match="before"):
        record.extend(an_id(), "again")
    record.add("radon", "AITKIN", "gdpr", subject_request_id=an_id(2))
    with pytest.raises(RequestError, match="empty"):
        record.extend(an_id(2), " ")
    clock.time = START + dt.timedelta(days=40)
    with pytest.raises(RequestError, match="was due"):
        record.extend(an_id(2), "too late")
    record.add("radon", "AITKIN", "other", subject_request_id=an_id(3), due_at="2027-01-01T00:00:00Z")
    with pytest.raises(RequestError, match="no law"):
        record.extend(an_id(3), "longer")


def test_cancelling(record):
    record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    assert record.cancel(an_id(), "withdrawn").state == "cancelled"
    assert record.cancel(an_id(), "withdrawn").state == "cancelled"  # twice is once
    assert record.find() == []
    assert [each.kind for each in record.history(an_id())] == ["request.received", "request.cancelled"]
    with pytest.raises(RequestError, match="cancelled"):
        record.extend(an_id(), "why not")
    with pytest.raises(RequestError, match="no certificate"):
        record.certificate(an_id())


def test_a_reason_may_not_name_the_subject(record):
    record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    for act in (record.extend, record.cancel):
        with pytest.raises(RequestError, match="names the subject"):
            act(an_id(), "for Anoka's lawyer")
    assert record.get(an_id()).state == "pending"


# --- bad input: a clear error, and nothing is changed


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"subject_request_id": "17"}, "UUID"),
        ({"subject_request_id": str(uuid.uuid1())}, "version 4"),
        ({"subject_request_id": an_id().replace("-", "")}, "UUID"),
        ({"regulation": "GDPR"}, "no regulation"),
        ({"regulation": "hipaa"}, "gdpr, ccpa, other"),
        ({"regulation": "other"}, "due_at"),
        ({"received_at": "31.1.2026"}, "RFC 3339"),
        ({"received_at": "2026-02-02T00:00:00Z"}, "future"),
        ({"due_at": "2026-01-30T00:00:00Z"}, "in the past"),
        ({"due_at": "2026-03-30T00:00:00Z"}, "after what gdpr allows"),
        ({"subject": ""}, "subject"),
        ({"subject": "x" * 2000}, "subject"),
        ({"subject": "a\0b"}, "subject"),
        ({"subject": " ANOKA"}, "blank"),
        ({"subject": "ANOKA\r"}, "blank"),
        ({"subject": "\udcff"}, "Unicode"),
        ({"received_at": "0001-01-01T00:00:00Z"}, "year 1"),
        ({"project": "randon"}, "no project"),
    ],
)
def test_what_cannot_be_handed_in(record, changes, says):
    before = record.checkpoint()
    good = {"project": "radon", "subject": "ANOKA", "regulation": "gdpr", "subject_request_id": an_id()}
    with pytest.raises(RequestError, match=says):
        record.add(**good | changes)
    assert record.find() == []
    assert record.checkpoint() == before
    assert record.verify().size == 2


def test_an_old_request_that_is_late_already_is_taken(record, clock):
    """The law counts from when it was received, not from when somebody typed it in."""
    request = record.add("radon", "ANOKA", "gdpr", received_at="2025-06-01T00:00:00Z").request
    assert request.due_at == "2025-07-01T00:00:00Z"
    assert request.late(clock())


def test_unknown_requests(record):
    for act in (record.get, record.certificate, lambda each: record.cancel(each, "why")):
        with pytest.raises(RequestError, match="there is no request"):
            act(an_id(9))
        with pytest.raises(RequestError, match="UUID"):
            act("../etc")


def test_a_clock_that_was_moved_back(record, clock):
    record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    clock.time = START - dt.timedelta(minutes=3)  # two machines
    record.add("radon", "AITKIN", "gdpr", subject_request_id=an_id(2))
    assert record.history(an_id(2))[0].time == text_of(START)
    clock.time = START - dt.timedelta(hours=1)
    with pytest.raises(RecordError, match="clock shows 2026-01-31T11:00:00Z"):
        record.add("radon", "BECKER", "gdpr")
    assert len(record.find()) == 2
    assert record.verify().size == 4


# --- many at once


def test_many_writers_make_one_whole_ledger(url):
    first = Record.open(url, some_keys(), actor="a")
    first.register(project())
    first.close()
    answers = []

    def hand_in(worker: int) -> None:
        record = Record.open(url, some_keys(), actor=f"worker {worker}")
        answers.extend(record.add("radon", f"c{n}", "gdpr", subject_request_id=an_id(n)).outcome for n in range(12))
        record.close()

    threads = [threading.Thread(target=hand_in, args=(worker,)) for worker in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    record = Record.open(url, some_keys())
    assert sorted(answers) == ["duplicate"] * 36 + ["received"] * 12
    assert len(record.find()) == 12
    assert record.verify().kinds == {"ledger.created": 1, "project.registered": 1, "request.received": 12}
    record.close()


# --- projects


def test_a_project_that_changes_is_written_down(record):
    record.register(project())
    record.register(project(subject="person"))
    record.register(project(subject="person"), refitted=True)
    kinds = record.verify().kinds
    assert (kinds["project.registered"], kinds["project.changed"]) == (1, 2)
    assert record.project("radon").subject == "person"
    assert [each.name for each in record.projects()] == ["radon"]
    with pytest.raises(RecordError, match="no project"):
        record.project("another")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ('name = "a"\ndraws = "d.nc"\nbrigde = "arviz"', "did you mean 'bridge'"),
        ('name = "a"\ndraws = "d.nc"\nbridge = "arviz"\nmodel = "a:b"', "a model or a bridge"),
        ('name = "a b"\ndraws = "d.nc"\nbridge = "arviz"', "cannot name a project"),
        ('name = "a"\nbridge = "arviz"', "has no 'draws'"),
        ('name = "a"\ndraws = "d.nc"\nbridge = "pickle"', "no bridge"),
        ('name = "a"\ndraws = "d.nc"\nmodel = "os.system"', "names no function"),
        ('name = "a"\ndraws = "d.nc"\nbridge = "arviz"\nseed = -1', "seed"),
        ('name = "a"\ndraws = "d.nc"\nbridge = "arviz"\nowns = 3', "owns is 3"),
        ('name = "a"\ndraws = "none.nc"\nbridge = "arviz"', "there is no file"),
        ('name = "a', "not TOML"),
        ('folder = "/"\nname = "a"', "folder"),
    ],
)
def test_project_files_that_are_wrong(tmp_path, text, says):
    (tmp_path / "d.nc").touch()
    (tmp_path / "project.toml").write_text(text)
    with pytest.raises(ProjectError, match=says):
        Project.read(tmp_path / "project.toml")


def test_no_project_file(tmp_path):
    with pytest.raises(ProjectError, match="No such file"):
        Project.read(tmp_path / "project.toml")


# --- keys


def test_keys_are_files_for_their_owner_only(tmp_path):
    made = new_keys(tmp_path / "keys", NAME)
    for name in ("signing.key", "pseudonyms.key"):
        path = tmp_path / "keys" / name
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
        with pytest.raises(KeyFileError, match="can be read by others"):
            load_keys(tmp_path / "keys")
        path.chmod(0o600)
    assert load_keys(tmp_path / "keys").public == made.public == load_public_key(tmp_path / "keys" / "public.key")
    with pytest.raises(KeyFileError, match="already"):
        new_keys(tmp_path / "keys", NAME)


def test_keys_from_the_environment(tmp_path, monkeypatch):
    made = new_keys(tmp_path, NAME)
    monkeypatch.setenv("POSTERASE_SIGNING_KEY", (tmp_path / "signing.key").read_text())
    monkeypatch.setenv("POSTERASE_PSEUDONYMS_KEY", (tmp_path / "pseudonyms.key").read_text())
    found = load_keys(tmp_path / "elsewhere")
    assert (found.public, found.secret) == (made.public, made.secret)
    with pytest.raises(KeyFileError, match="POSTERASE_SIGNING_KEY"):
        stage_signer(tmp_path, found.signer)


def test_keys_that_are_none(tmp_path):
    with pytest.raises(KeyFileError, match="posterase keys new"):
        load_keys(tmp_path)
    new_keys(tmp_path, NAME)
    (tmp_path / "signing.key").write_text(f"{NAME} AAAA")
    with pytest.raises(KeyFileError, match="does not hold a key"):
        load_keys(tmp_path)
    with pytest.raises(KeyFileError, match="blanks"):
        new_keys(tmp_path / "b", "two words")
    with pytest.raises(KeyFileError, match="cannot be read"):
        load_public_key(tmp_path / "none.key")


def test_no_secret_is_in_what_is_printed():
    keys = some_keys()
    assert "x01" not in repr(keys)
    assert "Ed25519PrivateKey" not in repr(keys)


def test_a_record_is_opened_with_its_own_keys(url):
    Record.open(url, some_keys(), actor="a").close()
    with pytest.raises(KeyFileError, match="signed by key"):
        Record.open(url, some_keys(2), actor="a")


def test_another_secret_is_noticed(url):
    """Before anything is sealed with it."""
    Record.open(url, some_keys(), actor="a").close()
    with pytest.raises(KeyFileError, match="pseudonyms"):
        Record.open(url, dataclasses.replace(some_keys(), secret=b"2" * 32), actor="a")


def test_keys_are_rotated_and_what_the_old_one_signed_is_verified_still(record, tmp_path):
    record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    old, kept = record.keys.public, record.checkpoint()
    record.rotate(rotated(record.keys).signer)
    record.add("radon", "AITKIN", "gdpr", subject_request_id=an_id(2))
    for key in (old, record.keys.public):
        found = verify(record.ledger_lines(), [key], checkpoints=[kept])
        assert found.keys == (old, record.keys.public)
    with pytest.raises(KeyFileError):
        Record.open(str(record.database.url.render_as_string(hide_password=False)), some_keys(), actor="a")
    with pytest.raises(KeyFileError, match="is for"):
        record.rotate(Signer("another", Ed25519PrivateKey.generate()))


def test_a_change_of_keys_that_was_cut_off_goes_on(tmp_path):
    """The new key is on the disk before the ledger knows it: whichever of the two is current can be opened."""
    keys = new_keys(tmp_path / "keys", NAME)
    url = f"sqlite:///{tmp_path / 'record.db'}"
    record = Record.open(url, keys, actor="a")
    new = rotated(keys)
    stage_signer(tmp_path / "keys", new.signer)
    assert load_keys(tmp_path / "keys").public == keys.public
    record.rotate(new.signer)
    record.close()  # and here the process dies
    with pytest.raises(KeyFileError):
        Record.open(url, load_keys(tmp_path / "keys"), actor="a")
    staged = staged_keys(tmp_path / "keys", keys)
    Record.open(url, staged, actor="a").close()
    promote_staged(tmp_path / "keys", staged)
    assert load_keys(tmp_path / "keys").public == new.public == load_public_key(tmp_path / "keys" / "public.key")
    assert staged_keys(tmp_path / "keys", keys) is None


def half_rotated(tmp_path):
    """A record whose ledger knows the new key, which is staged only; its folder of keys, its URL, old and new keys."""
    folder, url = tmp_path / "keys", f"sqlite:///{tmp_path / 'record.db'}"
    keys = new_keys(folder, NAME)
    record = Record.open(url, keys, actor="a")
    new = rotated(keys)
    stage_signer(folder, new.signer)
    record.rotate(new.signer)
    record.close()
    return folder, url, keys, new


def test_whoever_opens_the_record_may_end_a_change_of_keys(tmp_path):
    """Between the ledger hearing of the new key and the file taking its place; the next change may have begun."""
    folder, url, _, new = half_rotated(tmp_path)
    open_record(url, folder, actor="b").close()
    promote_staged(folder, new)
    assert load_keys(folder).public == new.public == load_public_key(folder / "public.key")
    next_of_all = rotated(new)
    stage_signer(folder, next_of_all.signer)
    promote_staged(folder, new)
    assert load_keys(folder).public == new.public
    assert staged_keys(folder, new).public == next_of_all.public


def test_a_record_is_opened_with_keys_that_another_process_has_just_changed(tmp_path, monkeypatch):
    folder, url, keys, new = half_rotated(tmp_path)
    read = iter([keys])

    def slowly(place):
        """The old keys, by the time the new ones are in place."""
        promote_staged(place, new)
        return next(read, None) or load_keys(place)

    monkeypatch.setattr(opening, "load_keys", slowly)
    opened = open_record(url, folder, actor="b")
    assert opened.keys.public == new.public
    opened.close()


# --- privacy


def test_texts_that_name_a_subject_are_withheld():
    assert redact("12 effective draws of a[ANOKA], below 400", ["ANOKA"]) == "12 effective draws of a[…], below 400"
    for text in ("draws_ANOKA.nc", "old.anoka.csv", "of Anoka's", "ＡＮＯＫＡ"):
        assert redact(text, ["ANOKA"]) == WITHHELD
    assert redact("k̂ 0.17 above 0.7, 17 draws", ["17", "0", "k"]) == "k̂ 0.17 above 0.7, 17 draws"
    assert mentions("person 17 asked", "17")
    assert not mentions("17.5 of 170", "17")
    assert mentions("O'Neil (x+y)", "(x+y)")
    assert mentions("Mu\u0308ller", "M\u00fcller")


def test_keys_are_compared_as_people_write_them():
    assert [written(each) for each in (17, 17.0, "17", b"17", 17.5)] == ["17", "17", "17", "17", "17.5"]


def test_no_subject_is_in_the_database_in_clear(record, url, tmp_path):
    record.add("radon", "PLANTED-SUBJECT", "gdpr", subject_request_id=an_id())
    if url.startswith("sqlite"):
        content = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    else:
        import psycopg

        with psycopg.connect(url) as connection:
            names = ("requests", "entries", "projects", "runs", "certificates", "log")
            content = "".join(str(connection.execute(f"SELECT * FROM {name}").fetchall()) for name in names).encode()
    assert an_id().encode() in content
    assert b"PLANTED" not in content
    assert b"PLANTED" not in b"".join(record.ledger_lines())
    assert record.pseudonym("radon", "ANOKA") != record.pseudonym("another", "ANOKA")


def test_who_acts_where_nobody_has_a_name(url, monkeypatch):
    def nobody():
        raise KeyError("uid not found")

    monkeypatch.setattr("getpass.getuser", nobody)
    record = Record.open(url, some_keys())
    assert record.actor.startswith("user ")
    record.close()


# --- databases that fail


def test_the_first_entry_is_made_with_the_tables_or_not_at_all(url, monkeypatch):
    """A process that dies while it begins a record leaves one that can be begun."""
    from posterase.record.record import Transaction

    def dies(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Transaction, "append", dies)
        with pytest.raises(KeyboardInterrupt):
            Record.open(url, some_keys(), actor="a")
    record = Record.open(url, some_keys(), actor="a")
    assert record.verify().kinds == {"ledger.created": 1}
    record.close()


def test_a_link_to_the_record_is_the_same_record(tmp_path):
    record = Record.open(f"sqlite:///{tmp_path / 'record.db'}", some_keys(), actor="a")
    (tmp_path / "link.db").symlink_to(tmp_path / "record.db")
    other = Record.open(f"sqlite:///{tmp_path / 'link.db'}", some_keys(), actor="b")
    with record.database.locked("radon") as held, other.database.locked("radon") as second:
        assert held is not None
        assert second is None
    record.close()
    other.close()


def test_a_file_that_cannot_be_locked(tmp_path):
    record = Record.open(f"sqlite:///{tmp_path / 'record.db'}", some_keys(), actor="a")
    (tmp_path / "record.db.radon.lock").mkdir()
    with pytest.raises(RecordError, match="cannot be locked"), record.database.locked("radon"):
        pass
    record.close()


@pytest.mark.filterwarnings("ignore:flock not supported:UserWarning")
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    """A lock that is a mere file would stay when its process dies."""
    import fcntl

    def missing(*_):
        raise OSError(errno.ENOSYS, "not implemented")

    record = Record.open(f"sqlite:///{tmp_path / 'record.db'}", some_keys(), actor="a")
    monkeypatch.setattr(fcntl, "flock", missing)
    with pytest.raises(RecordError, match="cannot be locked"), record.database.locked("radon"):
        pass
    monkeypatch.undo()
    with record.database.locked("radon") as held:
        assert held is not None
    record.close()


def test_a_lock_ends_with_its_process_but_not_with_its_threads_or_children(tmp_path):
    """Another thread does not get it, and a subprocess that outlives the holder does not keep it."""
    url = f"sqlite:///{tmp_path / 'record.db'}"
    record = Record.open(url, some_keys(), actor="a")
    code = (
        "import subprocess, sys; from posterase.record.store.database import Database\n"
        f"with Database({url!r}).locked('radon') as held:\n"
        "    assert held is not None\n"
        "    subprocess.Popen(['sleep', '20'], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)\n"
        "    print('locked', flush=True); sys.stdin.read()\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"locked\n"
        with record.database.locked("radon") as held:
            assert held is None
        holder.kill()
        holder.wait()
    with record.database.locked("radon") as held, ThreadPoolExecutor(1) as pool:
        assert held is not None

        def other_thread():
            with record.database.locked("radon") as second:
                return second

        assert pool.submit(other_thread).result() is None
    record.close()


def test_a_connection_that_is_lost_takes_the_lock_with_it(server):
    """Nothing is written any more by whoever held it."""
    import psycopg

    name = f"d{uuid.uuid4().hex}"
    record = Record.open(new_database(server, name), some_keys(), actor="a")
    with record.database.locked("radon") as begin:
        with psycopg.connect(server % "postgres", autocommit=True) as other:
            mine = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s"
            other.execute(mine, [name])
        for _ in range(2):
            with pytest.raises(RecordError, match=r"reached|lost"), begin() as connection:
                connection.exec_driver_sql("SELECT 1")
    record.close()


def test_a_record_is_verified_while_others_write(url):
    record = Record.open(url, some_keys(), actor="a")
    record.register(project())
    stop = threading.Event()

    def writes() -> None:
        own = Record.open(url, some_keys(), actor="b")
        while not stop.is_set():
            own.add("radon", "ANOKA", "gdpr")
        own.close()

    thread = threading.Thread(target=writes)
    thread.start()
    try:
        for _ in range(5):
            record.verify()
    finally:
        stop.set()
        thread.join()
    record.close()


def test_urls_that_are_none(tmp_path):
    for url, says in [
        ("mysql://a/b", "cannot be kept in mysql"),
        ("sqlite://", "in memory"),
        ("nowhere://", "cannot be"),
        (f"sqlite:///{tmp_path}/none/record.db", "no folder"),
    ]:
        with pytest.raises(RecordError, match=says):
            Record.open(url, some_keys(), actor="a")


def test_a_server_that_is_not_there(tmp_path):
    with pytest.raises(RecordError, match="cannot be reached"):
        Record.open(f"postgresql://a@/b?host={tmp_path}", some_keys(), actor="a")


def test_a_file_that_is_no_database(tmp_path):
    path = tmp_path / "record.db"
    path.write_text("hello " * 1000)
    with pytest.raises(RecordError, match="damaged"):
        Record.open(f"sqlite:///{path}", some_keys(), actor="a")
    assert path.read_text() == "hello " * 1000


def test_a_corrupted_database(tmp_path):
    path = tmp_path / "record.db"
    record = Record.open(f"sqlite:///{path}", some_keys(), actor="a")
    record.register(project())
    for number in range(40):
        record.add("radon", f"c{number}", "gdpr", subject_request_id=an_id(number))
    record.close()
    content = bytearray(path.read_bytes())
    for at in range(8192, len(content), 512):
        content[at : at + 256] = b"\xff" * 256
    path.write_bytes(content)
    with pytest.raises((RecordError, LedgerError)):
        Record.open(f"sqlite:///{path}", some_keys(), actor="a").verify()


def test_an_edited_database_is_found(record, url):
    """Whoever may write to the database cannot quietly change what happened."""
    record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    leaf = record.history(an_id())[0].to_bytes()
    with record.database.writing() as connection:
        from posterase.record.store import schema

        changed = leaf.replace(b"the officer", b"the auditor")
        connection.execute(schema.entries.update().where(schema.entries.c.index == 2).values(leaf=changed))
    with pytest.raises(LedgerError, match="entry 2 "):
        record.verify()


def test_states_that_were_edited_are_found(record):
    from posterase.record.store import schema

    record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    for values in (
        {"due_at": "2029-01-01T00:00:00Z"},
        {"state": "cancelled"},
        {"extended_because": "x"},
        {"reason": "x"},
    ):
        kept = {name: getattr(record.get(an_id()), name) for name in values}
        with record.database.writing() as connection:
            connection.execute(schema.requests.update().values(**values))
        with pytest.raises(LedgerError, match=an_id()):
            record.verify()
        with record.database.writing() as connection:
            connection.execute(schema.requests.update().values(**kept))
    with record.database.writing() as connection:
        connection.execute(schema.requests.delete())
    with pytest.raises(LedgerError, match=an_id()):
        record.verify()


def test_projects_that_were_edited_are_found(record):
    from posterase.record.store import schema

    good = record.project("radon")
    evil = canonical(dataclasses.replace(good, bridge=None, model="os:system").to_dict()).decode()
    away = canonical(dataclasses.replace(good, folder="/").to_dict()).decode()
    for values in ({"definition": evil}, {"definition": away}, {"spent": -1.0}, {"since": 99}):
        with record.database.writing() as connection:
            connection.execute(schema.projects.update().values(**values))
        with pytest.raises(LedgerError, match="radon"):
            record.verify()
        with record.database.writing() as connection:
            kept = {"definition": canonical(good.to_dict()).decode(), "spent": 0.0, "since": 1}
            connection.execute(schema.projects.update().values(**kept))
    record.verify()


@pytest.fixture
def open_folder():
    """A folder that everybody can enter, as pytest's own are not."""
    folder = Path(tempfile.mkdtemp())
    folder.chmod(0o755)
    yield folder
    shutil.rmtree(folder)


def test_no_permission(open_folder):
    """Root may write everywhere: there it is tried as nobody.

    Nobody may be unable to read the clone and its environment, where they lie in a home folder of mode 0700. So the
    script first does the same with another record: then everything is imported.
    """
    path = open_folder / "record.db"
    record = Record.open(f"sqlite:///{path}", some_keys(), actor="a")
    record.register(project())
    record.close()
    for each in [*open_folder.iterdir(), open_folder]:
        each.chmod(0o555 if each.is_dir() else 0o444)
    script = f"""
import os, sys, tempfile
from tests.record.test_record import Record, RecordError, some_keys, project

def register(path):
    record = Record.open(f"sqlite:///{{path}}", some_keys(), actor="a")
    record.register(project(subject="other"))
    record.close()

with tempfile.TemporaryDirectory() as folder:
    register(f"{{folder}}/record.db")
if os.geteuid() == 0:
    os.setuid(65534)
try:
    register("{path}")
except RecordError as error:
    print(error)
"""
    root = Path(__file__).parents[2]
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=root)
    assert "may not be written by you" in ran.stdout or "cannot be opened" in ran.stdout
    open_folder.chmod(0o755)


@pytest.fixture
def small_disk(tmp_path):
    """A disk of four megabytes."""
    folder = tmp_path / "small"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("no small disk can be mounted here")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_a_full_disk(small_disk):
    record = Record.open(f"sqlite:///{small_disk / 'record.db'}", some_keys(), actor="a")
    record.register(project())
    taken = []

    def fill():
        for number in range(5000):
            record.add("radon", f"c{number}", "gdpr", subject_request_id=an_id(number))
            taken.append(number)

    with pytest.raises(RecordError, match="full"):
        fill()
    with pytest.raises(OutputError, match="full"):
        record.export(small_disk / "ledger.jsonl")
    assert not (small_disk / "ledger.jsonl").exists()
    record.close()
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    record = Record.open(f"sqlite:///{small_disk / 'record.db'}", some_keys(), actor="a")
    assert len(record.find(limit=10_000)) == len(taken) > 20
    assert record.add("radon", "c", "gdpr", subject_request_id=an_id(9999)).outcome == "received"
    assert record.verify().size == len(taken) + 3
    record.close()


# --- tables


def test_tables_are_those_that_migrations_make(url):
    import sqlalchemy as sa
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    from posterase.record.store import schema
    from posterase.record.store.database import HEAD, VERSIONS, Database

    database = Database(url)
    database.upgrade()
    assert database.revision() == HEAD
    with database.reading() as connection:
        context = MigrationContext.configure(connection, opts={"version_table": VERSIONS})
        assert compare_metadata(context, schema.metadata) == []
        assert sa.inspect(connection).has_table("requests")
    database.close()


def test_a_record_of_a_newer_version_is_left_alone(record, url):
    with record.database.writing() as connection:
        connection.exec_driver_sql("UPDATE posterase_version SET version_num = '9999'")
    with pytest.raises(RecordError, match="newer"):
        Record.open(url, some_keys(), actor="a")


def test_an_export_that_cannot_be_written(record, tmp_path):
    with pytest.raises(OutputError):
        record.export(tmp_path / "none" / "ledger.jsonl")


def test_exports_are_files_that_verify(record, tmp_path):
    record.add("radon", "ANOKA", "gdpr", subject_request_id=an_id())
    found = record.export(tmp_path / "ledger.jsonl")
    with Path(tmp_path / "ledger.jsonl").open("rb") as lines:
        assert verify(lines, [record.keys.public]) == found
    header = json.loads((tmp_path / "ledger.jsonl").read_text().splitlines()[0])
    assert header == {"format": "posterase-ledger", "version": 1, "origin": NAME}


def test_a_definition_of_fewer_fields_is_verified_still(record):
    """As a posterase before a field was added has stored it: its digest is of what is stored."""
    fewer = {name: value for name, value in project(name="old").to_dict().items() if name != "row_dim"}
    values = {"name": "old", "version": 1, "spent": 0.0, "runs": 0, "definition": canonical(fewer).decode()}
    with record.transaction() as transaction:
        transaction.connection.execute(schema.projects.insert().values(**values, since=transaction.tree.size))
        body = {"definition": definition_digest(fewer), "folder": folder_digest(project()), "version": 1}
        transaction.append("project.registered", body, project="old")
    record.verify()
    size = record.verify().size
    record.register(project(name="old"))
    assert record.verify().size == size
