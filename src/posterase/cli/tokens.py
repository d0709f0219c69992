"""`posterase tokens`: what people and programs show to the service."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from posterase.cli.output import Commands, Said, print_line, print_table
from posterase.cli.record_options import DEFAULT_RECORD, KeysFolder, RecordUrl
from posterase.cli.requests import opened_record

tokens = Commands(help="Tokens of the service: who may hand in, run and see requests.", no_args_is_help=True)


@tokens.command("new")
def tokens_new(
    said: Said,
    name: Annotated[str, typer.Argument(help="Who gets it: the ledger says so of what they do.")],
    role: Annotated[list[str], typer.Option(help="submit, operate or audit; repeatable.", metavar="ROLE")],
    expires: Annotated[
        str | None, typer.Option(help="How long it is valid: 90d, 52w. Else until it is revoked.")
    ] = None,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Make a token for the service. It is shown this once: the record keeps only its hash.

    Who submits hands requests in and follows those whose ids they know; who operates also lists, extends and runs them;
    who audits sees everything and changes nothing.

    Example: `posterase tokens new "privacy desk" --role submit --expires 90d`
    """
    with opened_record(record, folder) as opened:
        from posterase.record.deadlines import span_of
        from posterase.record.tokens import make_token

        span = None if expires is None else span_of(expires)
        made, secret = make_token(opened, name, role, span)
    said.json({**dataclasses.asdict(made), "token": secret})
    print_line(f"Token {made.id} of {made.name}, who may {' and '.join(made.roles)}; it is shown this once:")
    print_line(secret)


@tokens.command("list")
def tokens_list(said: Said, record: RecordUrl = DEFAULT_RECORD, folder: KeysFolder = None) -> None:
    """Tokens that were made.

    Example: `posterase tokens list`
    """
    with opened_record(record, folder) as opened:
        from posterase.record.tokens import tokens as tokens_of

        found, now = tokens_of(opened), opened.clock()
    said.json([dataclasses.asdict(each) for each in found])
    head = ("token", "name", "roles", "made", "until", "")
    rows = [
        (
            each.id,
            each.name,
            " ".join(each.roles),
            each.made_at,
            each.expires_at or "it is revoked",
            "" if each.valid(now) else "revoked" if each.revoked_at else "expired",
        )
        for each in found
    ]
    print_table([head, *rows])


@tokens.command("revoke")
def tokens_revoke(
    said: Said,
    name: Annotated[str, typer.Argument(help="The token's name, or its id.")],
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Make a token worthless from now on.

    Example: `posterase tokens revoke "privacy desk"`
    """
    with opened_record(record, folder) as opened:
        from posterase.record.tokens import revoke_token

        gone = revoke_token(opened, name)
    said.json(dataclasses.asdict(gone))
    print_line(f"Token {gone.id} of {gone.name} is revoked.")
