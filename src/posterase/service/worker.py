"""A worker: takes orders from the record and runs them, in a process of its own.

It outlives the web server that started it: where that is gone, it finishes what it has in hand and ends. Asked to end
(SIGTERM), it finishes within its grace, or hands the requests back, which are pending again.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from posterase.errors import KeyFileError, PosteraseError, RecordError
from posterase.record.opening import open_record
from posterase.record.record import Record
from posterase.record.run_queue import (
    Order,
    begin_order,
    end_order,
    give_back_order,
    newest_order,
    open_orders,
    place_order,
    say_of_order,
)
from posterase.record.runs import Opener, recover, run
from posterase.runtime.progress import told_to

PAUSE_S = 0.5
"""Between two looks for orders."""
MOST_ATTEMPTS = 3
"""Of an order whose runs end their process, as one that needs too much memory does."""
PERIOD = dt.timedelta(minutes=10)
"""A project is run by itself so often at most: what a run has left pending would else be run at once, for ever."""


class Stopped(BaseException):
    """The grace is over."""


class Worker:
    """Runs orders until it is asked to end.

    Parameters
    ----------
    url
        The record.
    folder
        Its keys.
    opener
        Opens projects.
    due_within
        Requests that are due so soon are run without an order. None: only orders are.
    grace_s
        How long a run may go on after the worker was asked to end.
    parent
        The process that started it; where another has taken its place, the worker ends. 0: nobody's.
    """

    def __init__(
        self,
        url: str,
        folder: Path,
        opener: Opener,
        *,
        due_within: dt.timedelta | None = None,
        grace_s: float = 30.0,
        parent: int = 0,
    ):
        self.url, self.folder, self.opener = url, folder, opener
        self.due_within, self.grace_s, self.parent = due_within, grace_s, parent
        self.stopping = False
        self._last_problem = ""

    def work(self) -> None:
        """Take one order after the other."""
        signal.signal(signal.SIGTERM, self._asked_to_end)
        signal.signal(signal.SIGINT, signal.SIG_IGN if self.parent else self._asked_to_end)  # else it is the parent's
        signal.signal(signal.SIGALRM, _stop)
        try:
            while not self._done():
                try:
                    self._work_with(open_record(self.url, self.folder, actor="the worker"))
                except PosteraseError as error:  # the database is away, or keys were changed: open it again
                    self._complain(str(error))
                    time.sleep(PAUSE_S)
        except Stopped:
            pass

    def _complain(self, problem: str) -> None:
        """Once, however often it is tried again."""
        if problem != self._last_problem:
            print(problem, file=sys.stderr, flush=True)
            self._last_problem = problem

    def _asked_to_end(self, number: int, frame: FrameType | None) -> None:
        if not self.stopping:
            self.stopping = True
            signal.setitimer(signal.ITIMER_REAL, max(self.grace_s, 0.01))

    def _done(self) -> bool:
        return self.stopping or (self.parent != 0 and os.getppid() != self.parent)

    def _work_with(self, record: Record) -> None:
        try:
            while not self._done():
                if not self._take_one(record):
                    time.sleep(PAUSE_S)
        finally:
            record.close()

    def _take_one(self, record: Record) -> bool:
        """Whether there was anything to do."""
        with contextlib.suppress(PosteraseError):  # what one project is stuck with is no reason to stop the others
            recover(record)
        self._order_what_is_due(record)
        return any(self._run(record, each) for each in open_orders(record))

    def _order_what_is_due(self, record: Record) -> None:
        if self.due_within is None:
            return
        soon = record.clock() + self.due_within
        for project in {each.project for each in record.find(states=("pending",), due_before=soon, limit=1000)}:
            last = newest_order(record, project)
            if last is None or last.ended_before(record.clock() - PERIOD):
                place_order(record, project, self.due_within)

    def _run(self, record: Record, order: Order) -> bool:
        """Run an order; False where another worker has the project."""

        def begun() -> None:
            if order.attempts >= MOST_ATTEMPTS:
                problem = f"its worker ended {order.attempts} times while it ran."
                raise RecordError(problem, "see whether it needs more memory, and order it again.")
            begin_order(record, order.id)

        def report(said: str) -> None:
            say_of_order(record, order.id, said)

        try:
            with told_to(report):
                ran = run(
                    record.acting_as(order.actor),
                    order.project,
                    self.opener,
                    due_within=order.due_within,
                    begun=begun,
                    report=report,
                )
        except KeyFileError:
            raise  # the keys were changed: the record is opened with the new ones, and the order is still open
        except PosteraseError as error:
            end_order(record, order.id, str(error), failed=True)
            return True
        except Stopped:
            give_back_order(record, order.id)
            raise
        if ran is None:
            return False
        end_order(record, order.id, str(ran))
        return True


def _stop(number: int, frame: FrameType | None) -> None:
    raise Stopped
