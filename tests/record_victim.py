"""Kills a worker at random points and looks at what is left: `python -m tests.record_victim URL FOLDER TRIALS SEED`.

A worker hands in requests and runs them. It is killed (SIGKILL, nothing can be caught) at a line of the record's code
that is drawn at random, or after a random time, which also hits the database in the middle of a commit. Then another
process opens the record, and everything must be true that a user relies on. Each trial is a child of this process,
which has imported everything and does nothing else.
"""

from __future__ import annotations

import collections
import functools
import hashlib
import json
import os
import random
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import sqlalchemy as sa

import posterase.record
from posterase.projects.spec import Project
from posterase.record.owned_files import digest_of
from posterase.record.record import Record
from posterase.record.runs import recover, run
from posterase.record.store import schema
from tests.record.test_record import an_id, some_keys
from tests.small_erasures import ROWS_EACH, new_draws, opener, read_draws

SUBJECTS = 5000
CODE = str(Path(posterase.record.__file__).parent)


def work(url: str, folder: Path, first: int, told: int) -> None:
    """Hand in three requests, one of a subject without rows at times; run them. What was acknowledged is told."""
    record = Record.open(url, some_keys(), actor="worker")
    record.register(project(folder))
    for number in range(first, first + 3):
        subject = f"s{number}" if number % 7 else "nobody"
        record.add("radon", subject, "gdpr", subject_request_id=an_id(number))
        os.write(told, f"{number}\n".encode())
    (folder / "cache").mkdir(exist_ok=True)
    (folder / "cache" / "old.npz").write_text("old rows")
    run(record, "radon", opener(), keep_old=first % 2 == 0)
    record.close()


def project(folder: Path) -> Project:
    return Project(name="radon", draws="draws.nc", bridge="arviz", owns=("cache/*.npz",), folder=str(folder))


def look(url: str, folder: Path, acknowledged: set[int]) -> None:
    """Open the record as anyone would after a worker died, and look."""
    record = Record.open(url, some_keys(), actor="checker")
    try:
        recover(record)
        check(record, folder, acknowledged)
    finally:
        record.close()


def check(record: Record, folder: Path, acknowledged: set[int]) -> None:
    """What must be true."""
    with record.database.reading() as connection:
        rows = connection.execute(sa.select(schema.requests)).all()
        assert connection.execute(sa.select(schema.runs)).all() == [], "runs are left"
    states = {row.id: row.state for row in rows}
    assert {an_id(number) for number in acknowledged} <= states.keys(), "an acknowledged request is lost"
    assert set(states.values()) <= {"pending", "completed"}, states
    done = {int(each[-12:]) for each, state in states.items() if state == "completed"}
    expected = sorted(n * ROWS_EACH + i for n in done if n % 7 for i in range(ROWS_EACH))
    draws = read_draws(folder)
    assert sorted(draws["erased"]) == expected, "erased rows are not those of completed requests, each once"
    assert len(draws["kept"]) == SUBJECTS * ROWS_EACH - len(expected)
    strays = [each.name for each in folder.iterdir() if each.name.startswith(".")]
    assert not strays, strays
    verified = record.verify()
    assert verified.kinds.get("request.completed", 0) == len(done), "a request was completed twice"
    with record.database.reading() as connection:
        documents = dict(connection.execute(sa.select(schema.certificates)).all())
        leaves = connection.scalars(sa.select(schema.entries.c.leaf)).all()
    assert documents.keys() == {an_id(number) for number in done}, "completed requests and certificates differ"
    named = collections.Counter(json.loads(leaf)["body"].get("certificate") for leaf in leaves)
    for document in documents.values():
        assert named[f"sha256:{hashlib.sha256(document).hexdigest()}"] == 1
    erased = [each for each in map(json.loads, documents.values()) if each["outcome"] == "erased"]
    if erased:
        last = max(erased, key=lambda each: each["ledger"]["size"])
        assert last["fingerprints"]["draws"]["after"] == digest_of(folder / "draws.nc")


AIMED = ("_write_down", "_settle", "_swap", "delete", "_complete")
"""Functions whose lines are few, and where a death matters most."""


def kill_at_line(number: int, aimed: bool) -> None:
    """Die at so many lines of the record's code from now, or of the functions that are aimed at."""
    left = number

    def line(frame, event, _):
        nonlocal left
        if event == "line":
            left -= 1
            if left <= 0:
                os.kill(os.getpid(), signal.SIGKILL)
        return line

    def call(frame, event, _):
        code = frame.f_code
        return line if code.co_filename.startswith(CODE) and (not aimed or code.co_name in AIMED) else None

    sys.settrace(call)


def child(task: Callable[[], None]) -> int:
    """A child that does this; its process id."""
    identity = os.fork()
    if identity:
        return identity
    status = 1
    try:
        task()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def main(url: str, folder: Path, trials: int, seed: int) -> None:
    """Print what happened, as JSON."""
    draw = random.Random(seed)
    new_draws(folder, SUBJECTS)
    acknowledged: set[int] = set()
    killed = collections.Counter()
    lines, seconds, trial = 4000, 0.3, 0
    while killed.total() < trials:
        trial += 1
        assert trial < 4 * trials + 20, "hardly any worker was killed"
        read, write = os.pipe()
        how = draw.choice(["line", "aimed", "time"])
        at_line, at_time = draw.randint(1, 90 if how == "aimed" else lines), draw.uniform(0, seconds)
        start = time.monotonic()

        def task(first: int = 3 * trial, write: int = write, at: int = at_line, how: str = how) -> None:
            if how != "time":
                kill_at_line(at, how == "aimed")
            work(url, folder, first, write)

        victim = child(task)
        os.close(write)
        if how == "time":
            time.sleep(at_time)
            os.kill(victim, signal.SIGKILL)
        _, status = os.waitpid(victim, 0)
        with os.fdopen(read) as told:
            acknowledged |= {int(each) for each in told.read().split()}
        if os.WIFSIGNALED(status):
            killed[how] += 1
        else:
            assert os.WEXITSTATUS(status) == 0, "the worker ended in an error"
            if how == "line":  # it ran to its end: aim earlier
                lines = max(200, int(lines * 0.8))
            elif how == "time":
                seconds = max(0.02, 0.8 * seconds + 0.2 * (time.monotonic() - start))
        checker = child(functools.partial(look, url, folder, acknowledged))
        _, status = os.waitpid(checker, 0)
        assert status == 0, f"trial {trial} left something wrong"
    print(json.dumps({"killed": killed, "trials": trial, "acknowledged": len(acknowledged)}))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
