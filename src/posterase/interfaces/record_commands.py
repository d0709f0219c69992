"""`posterase requests`, `posterase keys`, `posterase verify`: the record on the command line."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from posterase.errors import InvalidOptionError, KeyFileError, LedgerError, PosteraseError
from posterase.files import check_writable, written_whole
from posterase.interfaces.status import BUSY, ERROR, REFUSED

if TYPE_CHECKING:
    from posterase.record.record import Record
    from posterase.record.requests import Request

requests = typer.Typer(help="Requests to erase: hand in, list, run, prove.", no_args_is_help=True)
keys = typer.Typer(help="The keys that a record is signed and sealed with.", no_args_is_help=True)


def keys_folder() -> Path:
    """Keys are kept apart from projects, so that nobody shares them by mistake."""
    named = os.environ.get("XDG_CONFIG_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path.home() / ".config") / "posterase" / "keys"


RecordUrl = Annotated[
    str, typer.Option("--record", envvar="POSTERASE_RECORD", help="A SQLite file, or postgresql://user@host/database.")
]
KeysFolder = Annotated[
    Path | None,
    typer.Option(
        "--keys", envvar="POSTERASE_KEYS", help="The folder of keys.", show_default="~/.config/posterase/keys"
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="For machines.")]
Identity = Annotated[str, typer.Argument(help="The request's id.", metavar="ID")]
Reason = Annotated[str, typer.Option(help="Why. The ledger keeps it: do not name the subject.")]
DEFAULT_RECORD = "posterase-record.db"


@contextmanager
def _record(url: str, folder: Path | None) -> Iterator[Record]:
    from posterase.record.keyring import load_keys, promote_staged, staged_keys
    from posterase.record.record import Record
    from posterase.record.runs import recover

    place = folder or keys_folder()
    own = load_keys(place)
    try:
        record = Record.open(url, own)
    except KeyFileError:
        staged = staged_keys(place, own)
        if staged is None:
            raise
        record = Record.open(url, staged)  # a change of keys was cut off after it was written to the ledger
        promote_staged(place)
    try:
        try:
            recover(record)
        except PosteraseError as error:  # what one project is stuck with is no reason to stop the others
            Console(stderr=True).print(f"A run that was cut off waits: {error}", markup=False, highlight=False)
        yield record
    finally:
        record.close()


# --- keys


@keys.command("new")
def keys_new(
    name: Annotated[str, typer.Argument(help="The ledger's name: your domain and what it is, without blanks.")],
    folder: KeysFolder = None,
) -> None:
    """Make the keys of a record.

    Example: `posterase keys new example.org/erasures --keys keys`
    """
    from posterase.record.keyring import PUBLIC, new_keys

    place = folder or keys_folder()
    made = new_keys(place, name)
    console = Console()
    console.print(f"Keys: {place}. Keep a copy of them in a safe place.", soft_wrap=True, markup=False)
    console.print(f"Hand {place / PUBLIC} to whoever verifies:\n{made.public}", soft_wrap=True, markup=False)


@keys.command("show")
def keys_show(folder: KeysFolder = None) -> None:
    """The public key: one line, for whoever verifies.

    Example: `posterase keys show --keys keys`
    """
    from posterase.record.keyring import load_keys

    typer.echo(load_keys(folder or keys_folder()).public)


@keys.command("rotate")
def keys_rotate(record: RecordUrl = DEFAULT_RECORD, folder: KeysFolder = None) -> None:
    """Sign with a new key from now on. What the old one signed can still be verified, with either.

    Example: `posterase keys rotate --keys keys`
    """
    with _record(record, folder) as opened:
        from posterase.record.keyring import promote_staged, rotated, stage_signer

        place, new = folder or keys_folder(), rotated(opened.keys)
        stage_signer(place, new.signer)
        opened.rotate(new.signer)
        promote_staged(place)
    Console().print(f"The ledger is signed by a new key from now on:\n{new.public}", soft_wrap=True, markup=False)


# --- requests


@requests.command("project")
def requests_project(
    file: Annotated[Path, typer.Argument(help="The project's TOML file.")],
    refitted: Annotated[
        bool, typer.Option("--refitted", help="The draws were fitted anew, from the data as they are now.")
    ] = False,
    returned: Annotated[
        bool, typer.Option("--returned", help="People who were erased came back: their rows are no mistake.")
    ] = False,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Register a project, or what has changed of it: its draws, model, column of subjects and policy.

    Example: `posterase requests project radon.toml`
    """
    with _record(record, folder) as opened:
        from posterase.interfaces.erasures import open_project, policy_of
        from posterase.record.project import Project

        project = Project.read(file)
        policy_of(project)
        erased = (lambda subjects: [False for _ in subjects]) if returned else opened.erased(project.name)
        with Console(stderr=True).status("opening the model and its draws"):
            found = open_project(project, erased)
        opened.register(project, refitted=refitted, returned=returned)
    rows = found.model.n_rows
    Console().print(f"Project {project.name}: {rows} rows, subjects in {project.subject!r}.", markup=False)


@requests.command("add")
def requests_add(
    project: Annotated[str, typer.Argument(help="The project's name.")],
    subject: Annotated[str, typer.Argument(help="The subject's key, or - to read it from standard input.")],
    regulation: Annotated[str, typer.Option(help="gdpr, ccpa or other.")],
    identity: Annotated[str | None, typer.Option("--id", help="The request's UUID; made where there is none.")] = None,
    received_at: Annotated[str | None, typer.Option(help="When it was received, by RFC 3339; else now.")] = None,
    due_at: Annotated[str | None, typer.Option(help="When it is due, where no law says so.")] = None,
    as_json: AsJson = False,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Hand in a request. The same one twice is one request.

    Example: `posterase requests add radon ANOKA --regulation gdpr`
    """
    key = sys.stdin.readline().rstrip("\r\n") if subject == "-" else subject
    with _record(record, folder) as opened:
        answer = opened.add(
            project, key, regulation, subject_request_id=identity, received_at=received_at, due_at=due_at
        )
    if as_json:
        _print_json({"outcome": answer.outcome, **_shown(answer.request)})
    else:
        said = {
            "received": "received",
            "duplicate": "was handed in before",
            "conflict": "has the id of another request, and was not taken",
        }[answer.outcome]
        request = answer.request
        print_line(f"{request.subject_request_id} {said}: {request.state}, due {request.due_at}.")
    if answer.outcome == "conflict":
        raise typer.Exit(ERROR)


@requests.command("list")
def requests_list(
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
    state: Annotated[
        list[str] | None, typer.Option(help="pending, in_progress, completed, refused, cancelled.")
    ] = None,
    due_within: Annotated[str | None, typer.Option(help="Only what is due so soon: 7d, 36h, 2w.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    as_json: AsJson = False,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Requests by their dates, those that wait where nothing else is said.

    Example: `posterase requests list --due-within 7d`
    """
    with _record(record, folder) as opened:
        from posterase.record.requests import OPEN, states_of
        from posterase.record.times import span_of

        now = opened.clock()
        before = None if due_within is None else now + span_of(due_within)
        wanted = states_of(state) if state else OPEN
        found = opened.find(project=project, states=wanted, due_before=before, limit=limit)
    if as_json:
        _print_json([_shown(each) for each in found])
        return
    if not found:
        print_line("No requests.")
        return
    lines = [("request", "project", "state", "law", "due", "rows")]
    for each in found:
        due = f"{each.due_at} LATE" if each.late(now) else each.due_at
        rows = "" if each.rows is None else str(each.rows)
        lines.append((each.subject_request_id, each.project, each.state, each.regulation, due, rows))
    _print_table(lines)


@requests.command("show")
def requests_show(
    identity: Identity,
    certificate: Annotated[Path | None, typer.Option(help="A file for its certificate, as JSON.")] = None,
    page: Annotated[Path | None, typer.Option(help="A file for the certificate as a page to read, HTML.")] = None,
    as_json: AsJson = False,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """One request: its state, what happened to it, its certificate.

    Example: `posterase requests show 7c9e6679-7425-40de-944b-e07fc1f90ae7 --certificate certificate.json`
    """
    for target in (certificate, page):
        if target is not None:
            check_writable(target)
    with _record(record, folder) as opened:
        from posterase.record.certificate import page as page_of

        request, history = opened.get(identity), opened.history(identity)
        if certificate is not None or page is not None:
            made = opened.certificate(identity)
            _write(certificate, made)
            _write(page, page_of(made).encode())
    if as_json:
        _print_json({**_shown(request), "history": [dataclasses.asdict(each) for each in history]})
        return
    print_line(f"{request.subject_request_id}, {request.project}: {request.state}, due {request.due_at}.")
    if request.reason:
        print_line(request.reason)
    what = [(each.time, each.kind.removeprefix("request."), each.actor, str(each.index)) for each in history]
    _print_table([("when", "what", "who", "entry"), *what])


@requests.command("extend")
def requests_extend(
    identity: Identity, reason: Reason, record: RecordUrl = DEFAULT_RECORD, folder: KeysFolder = None
) -> None:
    """The longer term that the law allows, once, with the reason that the subject was told.

    Example: `posterase requests extend 7c9e6679-7425-40de-944b-e07fc1f90ae7 --reason "many requests at once"`
    """
    with _record(record, folder) as opened:
        request = opened.extend(identity, reason)
    print_line(f"{request.subject_request_id} is due {request.due_at} now.")


@requests.command("cancel")
def requests_cancel(
    identity: Identity, reason: Reason, record: RecordUrl = DEFAULT_RECORD, folder: KeysFolder = None
) -> None:
    """Take a request back that waits.

    Example: `posterase requests cancel 7c9e6679-7425-40de-944b-e07fc1f90ae7 --reason "withdrawn"`
    """
    with _record(record, folder) as opened:
        request = opened.cancel(identity, reason)
    print_line(f"{request.subject_request_id} is {request.state}.")


@requests.command("run")
def requests_run(
    project: Annotated[str, typer.Argument(help="The project's name.")],
    due_within: Annotated[str | None, typer.Option(help="Only what is due so soon: 7d, 36h, 2w. Else all.")] = None,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Keep the draws before; certificates say so.")] = False,
    as_json: AsJson = False,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Run the requests that wait: one erasure for all of them.

    The exit status is 2 where a request was refused, 3 where another process is running this project.

    Example: `posterase requests run radon --due-within 7d`
    """
    with _record(record, folder) as opened:
        from posterase.interfaces.erasures import open_project
        from posterase.record.runs import run
        from posterase.record.times import span_of

        span = None if due_within is None else span_of(due_within)
        with Console(stderr=True).status("claiming requests") as status:
            ran = run(opened, project, open_project, due_within=span, keep_old=keep_old, report=status.update)
    if ran is None:
        print_line(f"Another process is running {project}.")
        raise typer.Exit(BUSY)
    if as_json:
        _print_json([_shown(each) for each in ran.requests])
    else:
        print_line(f"{ran}.")
        for each in ran.requests:
            rows = f", {each.rows} row{'s' if each.rows != 1 else ''}"
            print_line(f"  {each.subject_request_id} {each.state}{rows}{f': {each.reason}' if each.reason else ''}")
    if any(each.state == "refused" for each in ran.requests):
        raise typer.Exit(REFUSED)


@requests.command("export")
def requests_export(
    out: Annotated[Path, typer.Argument(help="The file to write.")],
    checkpoint: Annotated[
        Path | None, typer.Option(help="A file for the newest checkpoint, to be kept somewhere else.")
    ] = None,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Write the ledger to a file that anyone can verify; it is verified as it is written.

    Example: `posterase requests export ledger.jsonl --checkpoint checkpoint.txt`
    """
    with _record(record, folder) as opened:
        found = opened.export(out)
        _write(checkpoint, opened.checkpoint().encode())
    print_line(str(found))


def verify(
    ledger: Annotated[Path, typer.Argument(help="An exported ledger.")],
    key: Annotated[list[Path], typer.Option(help="The public key of the ledger, or of an earlier time.")],
    certificate: Annotated[list[Path] | None, typer.Option(help="A certificate that must be in it.")] = None,
    checkpoint: Annotated[list[Path] | None, typer.Option(help="A checkpoint that was kept from earlier.")] = None,
) -> None:
    """Verify an exported ledger with a public key alone; and that a certificate is in it, and that nothing was cut.

    Example: `posterase verify ledger.jsonl --key public.key --certificate certificate.json`
    """
    from posterase.record.keyring import load_public
    from posterase.record.ledger import verify as verify_lines

    trusted = [load_public(each) for each in key]
    documents = [_read(each) for each in certificate or []]
    notes = [_read(each).decode(errors="replace") for each in checkpoint or []]
    try:
        with ledger.open("rb") as lines:
            found = verify_lines(lines, trusted, certificates=documents, checkpoints=notes)
    except OSError as error:
        raise InvalidOptionError(f"{str(ledger)!r} cannot be read: {error.strerror}.", "check the path.") from None
    print_line(str(found))
    for path, place in zip(certificate or [], found.certificates, strict=True):
        print_line(f"{path.name} is entry {place}.")
    if not notes:
        print_line("Without a checkpoint kept from earlier, a newer part that somebody hides cannot be missed.")


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise LedgerError(f"{str(path)!r} cannot be read: {error.strerror}.", "check the path.") from None


def _write(path: Path | None, content: bytes) -> None:
    if path is not None:
        with written_whole(path) as beside:
            beside.write_bytes(content)


def _shown(request: Request) -> dict[str, Any]:
    return dataclasses.asdict(request)


def _print_json(value: Any) -> None:
    typer.echo(json.dumps(value, indent=2))


def _print_table(lines: Sequence[Sequence[str]]) -> None:
    """Columns that are never cut: ids are there to be copied."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    console = Console()
    for number, line in enumerate(lines):
        text = "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        style = "bold" if number == 0 else "red" if "LATE" in text else None
        console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_line(text: str) -> None:
    """A line as it is, however long."""
    Console().print(text, markup=False, highlight=False, soft_wrap=True)
