"""`posterase requests`, `posterase keys`, `posterase verify`: the record on the command line."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from rich.console import Console

from posterase.cli.exit_status import BUSY, ERROR, REFUSED
from posterase.cli.output import Commands, Said, print_line, print_table
from posterase.cli.record_options import DEFAULT_RECORD, KeysFolder, RecordUrl, keys_folder
from posterase.errors import InvalidOptionError, LedgerError, PosteraseError
from posterase.runtime.files import check_writable, written_whole

if TYPE_CHECKING:
    from posterase.record.ledger.ledger import Verified
    from posterase.record.ledger.signed_note import PublicKey
    from posterase.record.record import Record
    from posterase.record.requests import Request

requests = Commands(help="Requests to erase: hand in, list, run, prove.", no_args_is_help=True)
keys = Commands(help="The keys that a record is signed and sealed with.", no_args_is_help=True)


CHANGE_OF_KEYS = "_keys"
"""The name of a lock. No project can have it: names begin with a letter or a digit."""

RequestId = Annotated[str, typer.Argument(help="The request's id.", metavar="ID")]
Reason = Annotated[str, typer.Option(help="Why. The ledger keeps it: do not name the subject.")]


def _states() -> list[str]:
    """For shells to complete."""
    from posterase.record.requests import State

    return list(get_args(State))


@contextmanager
def opened_record(url: str, folder: Path | None) -> Iterator[Record]:
    """The record; what a process that died has left is finished or undone first."""
    from posterase.record.opening import open_record
    from posterase.record.runs import recover

    record = open_record(url, folder or keys_folder())
    try:
        try:
            recover(record)
        except PosteraseError as error:  # what one project is stuck with is no reason to stop the others
            Console(stderr=True).print(f"A run that was cut off is pending: {error}", markup=False, highlight=False)
        yield record
    finally:
        record.close()


# --- keys


@keys.command("new")
def keys_new(
    said: Said,
    name: Annotated[str, typer.Argument(help="The ledger's name: your domain and what it is, without blanks.")],
    folder: KeysFolder = None,
) -> None:
    """Make the keys of a record.

    Example: `posterase keys new example.org/erasures --keys keys`
    """
    from posterase.record.ledger.keyring import PUBLIC, new_keys

    place = folder or keys_folder()
    made = new_keys(place, name)
    console = Console()
    console.print(f"Keys: {place}. Keep a copy of them in a safe place.", soft_wrap=True, markup=False)
    console.print(f"Hand {place / PUBLIC} to whoever verifies:\n{made.public}", soft_wrap=True, markup=False)
    said.json({"keys": str(place), "public": str(made.public)})


@keys.command("show")
def keys_show(said: Said, folder: KeysFolder = None) -> None:
    """The public key: one line, for whoever verifies.

    Example: `posterase keys show --keys keys`
    """
    from posterase.record.ledger.keyring import load_keys

    public = load_keys(folder or keys_folder()).public
    typer.echo(public)
    said.json({"public": str(public), "key": public.id})


@keys.command("rotate")
def keys_rotate(said: Said, record: RecordUrl = DEFAULT_RECORD, folder: KeysFolder = None) -> None:
    """Sign with a new key from now on. What the old one signed can still be verified, with either.

    The exit status is 3 where another process is changing the keys.

    Example: `posterase keys rotate --keys keys`
    """
    with opened_record(record, folder) as opened:
        from posterase.record.ledger.keyring import promote_staged, rotated, stage_signer

        with opened.database.locked(CHANGE_OF_KEYS) as held:
            if held is None:
                print_line("Another process is changing the keys.")
                raise typer.Exit(BUSY)
            opened.check_keys()
            place, new = folder or keys_folder(), rotated(opened.keys)
            stage_signer(place, new.signer)
            opened.rotate(new.signer, held)
            promote_staged(place, new)
    Console().print(f"The ledger is signed by a new key from now on:\n{new.public}", soft_wrap=True, markup=False)
    said.json({"public": str(new.public), "key": new.public.id})


# --- requests


@requests.command("register")
def requests_register(
    said: Said,
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

    Example: `posterase requests register radon.toml`
    """
    with opened_record(record, folder) as opened:
        from posterase.projects.builders import policy_of
        from posterase.projects.loading import open_project
        from posterase.projects.spec import Project
        from posterase.record.consistency import definition_digest

        project = Project.read(file)
        policy_of(project)
        erased = (lambda subjects: [False for _ in subjects]) if returned else opened.erased(project.name)
        with said.aside.status("opening the model and its draws"):
            found = open_project(project, erased)
        opened.register(project, refitted=refitted, returned=returned)
    rows = found.model.n_rows
    Console().print(f"Project {project.name}: {rows} rows, subjects in {project.subject!r}.", markup=False)
    said.json(
        {
            "project": project.name,
            "rows": rows,
            "subject": project.subject,
            "definition": definition_digest(project.to_dict()),
        }
    )


@requests.command("add")
def requests_add(
    said: Said,
    project: Annotated[str, typer.Argument(help="The project's name.")],
    subject: Annotated[str, typer.Argument(help="The subject's key, or - to read it from standard input.")],
    regulation: Annotated[str, typer.Option(help="gdpr, ccpa or other.")],
    subject_request_id: Annotated[
        str | None, typer.Option("--id", help="The request's UUID; made where there is none.")
    ] = None,
    received_at: Annotated[str | None, typer.Option(help="When it was received, by RFC 3339; else now.")] = None,
    due_at: Annotated[str | None, typer.Option(help="When it is due, where no law says so.")] = None,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Hand in a request. The same `--id` twice is one request.

    Example: `posterase requests add radon ANOKA --regulation gdpr`
    """
    key = sys.stdin.readline().rstrip("\r\n") if subject == "-" else subject
    with opened_record(record, folder) as opened:
        answer = opened.add(
            project, key, regulation, subject_request_id=subject_request_id, received_at=received_at, due_at=due_at
        )
    said.json({"outcome": answer.outcome, **_shown(answer.request)})
    words = {
        "received": "received",
        "duplicate": "was handed in before",
        "conflict": "has the id of another request, and was not taken",
    }[answer.outcome]
    request = answer.request
    print_line(f"{request.subject_request_id} {words}: {request.state}, due {request.due_at}.")
    if answer.outcome == "conflict":
        raise typer.Exit(ERROR)


@requests.command("list")
def requests_list(
    said: Said,
    project: Annotated[str | None, typer.Option(help="Only this project's.")] = None,
    state: Annotated[
        list[str] | None,
        typer.Option(
            help="pending, in_progress, completed, refused, cancelled.", autocompletion=_states, metavar="STATE"
        ),
    ] = None,
    due_within: Annotated[str | None, typer.Option(help="Only what is due so soon: 7d, 36h, 2w.")] = None,
    limit: Annotated[int, typer.Option(min=1, help="How many at most.")] = 100,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """List requests by due date (default: open ones).

    Example: `posterase requests list --due-within 7d`
    """
    with opened_record(record, folder) as opened:
        from posterase.record.deadlines import span_of
        from posterase.record.requests import OPEN, states_of

        now = opened.clock()
        before = None if due_within is None else now + span_of(due_within)
        wanted = states_of(state) if state else OPEN
        found = opened.find(project=project, states=wanted, due_before=before, limit=limit)
    said.json([_shown(each) for each in found])
    if not found:
        print_line("No requests.")
        return
    lines = [("request", "project", "state", "law", "due", "rows")]
    for each in found:
        due = f"{each.due_at} LATE" if each.late(now) else each.due_at
        rows = "" if each.rows is None else str(each.rows)
        lines.append((each.subject_request_id, each.project, each.state, each.regulation, due, rows))
    print_table(lines, urgent=[place for place, each in enumerate(found) if each.late(now)])


@requests.command("show")
def requests_show(
    said: Said,
    subject_request_id: RequestId,
    certificate: Annotated[Path | None, typer.Option(help="A file for its certificate, as JSON.")] = None,
    page: Annotated[Path | None, typer.Option(help="A file for the certificate as a page to read, HTML.")] = None,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """One request: its state, what happened to it, its certificate.

    Example: `posterase requests show 7c9e6679-7425-40de-944b-e07fc1f90ae7 --certificate certificate.json`
    """
    for target in (certificate, page):
        if target is not None:
            check_writable(target)
    with opened_record(record, folder) as opened:
        from posterase.record.certificate import page as page_of

        request, history = opened.get(subject_request_id), opened.history(subject_request_id)
        if certificate is not None or page is not None:
            made = opened.certificate(subject_request_id)
            _write(certificate, made)
            _write(page, page_of(made).encode())
    said.json({**_shown(request), "history": [dataclasses.asdict(each) for each in history]})
    print_line(f"{request.subject_request_id}, {request.project}: {request.state}, due {request.due_at}.")
    if request.reason:
        print_line(request.reason)
    what = [(each.time, each.kind.removeprefix("request."), each.actor, str(each.index)) for each in history]
    print_table([("when", "what", "who", "entry"), *what])


@requests.command("extend")
def requests_extend(
    said: Said,
    subject_request_id: RequestId,
    reason: Reason,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """The longer term that the law allows, once, with the reason that the subject was told.

    Example: `posterase requests extend 7c9e6679-7425-40de-944b-e07fc1f90ae7 --reason "many requests at once"`
    """
    with opened_record(record, folder) as opened:
        request = opened.extend(subject_request_id, reason)
    print_line(f"{request.subject_request_id} is due {request.due_at} now.")
    said.json(_shown(request))


@requests.command("cancel")
def requests_cancel(
    said: Said,
    subject_request_id: RequestId,
    reason: Reason,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Cancel a pending request.

    Example: `posterase requests cancel 7c9e6679-7425-40de-944b-e07fc1f90ae7 --reason "withdrawn"`
    """
    with opened_record(record, folder) as opened:
        request = opened.cancel(subject_request_id, reason)
    print_line(f"{request.subject_request_id} is {request.state}.")
    said.json(_shown(request))


@requests.command("run")
def requests_run(
    said: Said,
    project: Annotated[str, typer.Argument(help="The project's name.")],
    due_within: Annotated[str | None, typer.Option(help="Only what is due so soon: 7d, 36h, 2w. Else all.")] = None,
    keep_old: Annotated[bool, typer.Option("--keep-old", help="Keep the draws before; certificates say so.")] = False,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Run all pending requests: one erasure for all of them.

    The exit status is 2 where a request was refused, 3 where another process is running this project.

    Example: `posterase requests run radon --due-within 7d`
    """
    with opened_record(record, folder) as opened:
        from posterase.projects.loading import open_project
        from posterase.record.deadlines import span_of
        from posterase.record.runs import run

        span = None if due_within is None else span_of(due_within)
        ran = run(opened, project, open_project, due_within=span, keep_old=keep_old, report=said.step)
        reasons = {} if ran is None else {each.subject_request_id: _reason(opened, each) for each in ran.requests}
    said.json([] if ran is None else [_shown(each) for each in ran.requests])
    if ran is None:
        print_line(f"Another process is running {project}.")
        raise typer.Exit(BUSY)
    print_line(f"{ran}.")
    for each in ran.requests:
        rows = "" if each.rows is None else f", {each.rows} row{'s' if each.rows != 1 else ''}"
        reason = reasons[each.subject_request_id]
        print_line(f"  {each.subject_request_id} {each.state}{rows}{f': {reason}' if reason else ''}")
    if any(each.state == "refused" for each in ran.requests):
        raise typer.Exit(REFUSED)


def _reason(record: Record, request: Request) -> str | None:
    """Why a request was answered as it was; of one that is still pending, why the run gave it back."""
    if request.state != "pending":
        return request.reason
    released = [each for each in record.history(request.subject_request_id) if each.kind == "request.released"]
    return released[-1].body["reason"] if released else None


@requests.command("export")
def requests_export(
    said: Said,
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
    with opened_record(record, folder) as opened:
        found = opened.export(out)
        _write(checkpoint, opened.checkpoint().encode())
    print_line(str(found))
    said.json(_ledger(found))


def verify(
    said: Said,
    ledger: Annotated[Path | None, typer.Argument(help="An exported ledger; certificates can do without.")] = None,
    *,
    key: Annotated[
        list[Path], typer.Option(help="The public key of the ledger, or of an earlier time.", metavar="FILE")
    ],
    certificate: Annotated[
        list[Path] | None, typer.Option(help="A certificate that must be in it.", metavar="FILE")
    ] = None,
    checkpoint: Annotated[
        list[Path] | None, typer.Option(help="A checkpoint that was kept from earlier.", metavar="FILE")
    ] = None,
) -> None:
    """Verify an exported ledger with a public key alone; and that a certificate is in it, and that nothing was cut.

    Without a ledger, certificates alone: that they were signed with the key, and not changed since.

    Example: `posterase verify ledger.jsonl --key public.key --certificate certificate.json`
    """
    from posterase.record.certificate import read
    from posterase.record.ledger.keyring import load_public_key
    from posterase.record.ledger.ledger import verify as verify_lines

    trusted = [load_public_key(each) for each in key]
    documents = {each: _read(each) for each in certificate or []}
    notes = [_read(each).decode(errors="replace") for each in checkpoint or []]
    if ledger is None:
        _verify_alone(said, documents, trusted, notes)
        return
    for path, data in documents.items():
        if read(data).get("ledger", "") is None:
            raise LedgerError(f"{path.name} is in no ledger: its erasure was outside a record.", "leave LEDGER out.")
    try:
        with ledger.open("rb") as lines:
            found = verify_lines(lines, trusted, certificates=list(documents.values()), checkpoints=notes)
    except OSError as error:
        raise InvalidOptionError(f"{str(ledger)!r} cannot be read: {error.strerror}.", "check the path.") from None
    print_line(str(found))
    for path, place in zip(documents, found.certificates, strict=True):
        print_line(f"{path.name} is entry {place}.")
    if not notes:
        print_line("No checkpoint kept from earlier was given: entries cut off at the end would not be noticed.")
    certificates = [
        _certificate(path, found.origin, read(data)["signature"]["key"], entry=place)
        for (path, data), place in zip(documents.items(), found.certificates, strict=True)
    ]
    said.json(_ledger(found) | {"certificates": certificates})


def _verify_alone(said: Said, documents: dict[Path, bytes], trusted: list[PublicKey], notes: list[str]) -> None:
    """Certificates, without any ledger."""
    from posterase.record.certificate import read, signed_by

    if not documents or notes:
        what = "a checkpoint is of a ledger, and none is given" if notes else "there is nothing to verify"
        raise InvalidOptionError(f"{what}.", "give LEDGER, or certificates alone: --certificate certificate.json.")
    found = []
    for path, data in documents.items():
        by, alone = signed_by(data, trusted), read(data).get("ledger", "") is None
        outside = "It is in no ledger: its erasure was outside a record."
        rest = outside if alone else "Whether it is in its ledger was not looked at."
        print_line(f"{path.name} is unchanged, and signed by {by.name} (key {by.id}). {rest}")
        found.append(_certificate(path, by.name, by.id, alone=alone))
    said.json({"certificates": found})


def _certificate(path: Path, origin: str, key: str, *, entry: int | None = None, alone: bool = False) -> dict[str, Any]:
    """What a verified certificate says of itself, for machines; its entry where a ledger was looked at."""
    return {"certificate": str(path), "origin": origin, "key": key, "entry": entry, "outside_a_record": alone}


def _ledger(found: Verified) -> dict[str, Any]:
    """What a verified ledger says of itself, for machines."""
    about = {"origin": found.origin, "size": found.size, "root": found.root.hex(), "exported_at": found.exported_at}
    return about | {"keys": [each.id for each in found.keys]}


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
