"""Tokens: who may do what over HTTP.

    posterase_<id>_<secret>

The record keeps the id and a hash of the whole; the secret has 256 random bits, so that the hash tells nothing. Making
and revoking one are entries of the ledger: a token that somebody has put into the table by hand is found by `verify`.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import hashlib
import hmac
import re
import secrets
from collections.abc import Sequence
from typing import Any, Literal, get_args

import sqlalchemy as sa

from posterase.errors import NotFoundError, RequestError, WrongStateError
from posterase.record.deadlines import text_of, time_of
from posterase.record.record import Record
from posterase.record.store import schema

Role = Literal["submit", "operate", "audit"]
"""Who submits hands requests in and follows those whose ids they know; who operates also lists, extends and runs them;
who audits sees everything and changes nothing."""

ROLES: tuple[Role, ...] = get_args(Role)
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._@-]{0,62}[A-Za-z0-9]|[A-Za-z0-9]")
RESERVED = ("the worker", "the service")
"""Who acts where nobody asked."""
WRITTEN = re.compile(r"posterase_([0-9a-f]{16})_([A-Za-z0-9_-]{43})")


@dataclasses.dataclass(frozen=True)
class Token:
    """A token as the record knows it."""

    id: str
    name: str
    """Who has it; the ledger says so of what they do."""
    roles: tuple[Role, ...]
    made_at: str
    expires_at: str | None = None
    revoked_at: str | None = None

    def valid(self, now: dt.datetime) -> bool:
        """Whether it is still one."""
        return self.revoked_at is None and (self.expires_at is None or now < time_of(self.expires_at, "expires_at"))


def make_token(
    record: Record, name: str, roles: Sequence[str], expires_in: dt.timedelta | None = None
) -> tuple[Token, str]:
    """A new token: what the record knows of it, and the token itself, which is told this once."""
    if not NAME.fullmatch(name):
        raise RequestError(f"{name!r} cannot name a token.", "use letters, digits, blanks and . _ @ -, 64 at most.")
    unknown = [role for role in roles if role not in ROLES]
    if unknown or not roles:
        problem = f"there is no role {unknown[0]!r}." if unknown else "the token has no role."
        raise RequestError(problem, f"use {', '.join(ROLES)}.")
    known = tuple(role for role in ROLES if role in roles)
    with record.transaction() as transaction:
        if name in RESERVED or any(
            each.name == name for each in _all(transaction.connection) if each.valid(transaction.time)
        ):
            raise RequestError(f"there is a token of {name!r}.", "choose another name, or revoke that one first.")
        expires = None if expires_in is None else text_of(transaction.time + expires_in)
        made = Token(secrets.token_hex(8), name, known, transaction.now, expires)
        secret = f"posterase_{made.id}_{secrets.token_urlsafe(32)}"
        said = {"id": made.id, "name": name, "roles": " ".join(known), "hash": _hash(secret), "expires_at": expires}
        transaction.connection.execute(schema.tokens.insert().values(**said, made_at=transaction.now))
        transaction.append("token.made", said)
    return made, secret


def revoke_token(record: Record, name: str) -> Token:
    """From now on the token of this name, or this id, is none."""
    found = [each for each in tokens(record) if name in (each.id, each.name)]
    if not found:
        raise NotFoundError(f"there is no token {name!r}.", "list them: posterase tokens list.")
    token = next((each for each in found if each.revoked_at is None), found[-1])
    if token.revoked_at is not None:
        raise WrongStateError(f"token {name!r} was revoked {token.revoked_at}.", "there is nothing to do.")
    with record.transaction() as transaction:
        mine = schema.tokens.c.id == token.id, schema.tokens.c.revoked_at.is_(None)
        changed = transaction.connection.execute(schema.tokens.update().where(*mine).values(revoked_at=transaction.now))
        if changed.rowcount != 1:
            raise WrongStateError(f"token {name!r} was revoked just now.", "there is nothing to do.")
        transaction.append("token.revoked", {"id": token.id})
        return dataclasses.replace(token, revoked_at=transaction.now)


def tokens(record: Record) -> list[Token]:
    """All of them, the oldest first."""
    with record.database.reading() as connection:
        return _all(connection)


def token_of(record: Record, secret: str) -> Token | None:
    """Whose token this is; None where it is none, or none any more."""
    written = WRITTEN.fullmatch(secret)
    row = None if written is None else _row(record, written[1])
    if row is None or not hmac.compare_digest(row.hash, _hash(secret)):
        return None
    return _still(record, row)


def token_by_id(record: Record, identity: str) -> Token | None:
    """One that was shown before; None where it is none any more."""
    row = _row(record, identity)
    return None if row is None else _still(record, row)


def end_session(record: Record, identity: str, until: int) -> None:
    """Remember that a sign-in is over, for as long as it would have lasted."""
    table = schema.ended_sessions
    with record.database.writing() as connection:
        connection.execute(table.delete().where(table.c.until < record.clock().timestamp()))
        if connection.scalar(sa.select(table.c.id).where(table.c.id == identity)) is None:
            connection.execute(table.insert().values(id=identity, until=until))


def has_ended(record: Record, session: str) -> bool:
    """Whether somebody has signed out of it."""
    table = schema.ended_sessions.c
    with record.database.reading() as connection:
        return connection.scalar(sa.select(table.id).where(table.id == session)) is not None


def _all(connection: sa.Connection) -> list[Token]:
    query = sa.select(schema.tokens).order_by(schema.tokens.c.made_at, schema.tokens.c.id)
    return [_token(row) for row in connection.execute(query)]


def _row(record: Record, identity: str) -> Any:
    with record.database.reading() as connection:
        return connection.execute(sa.select(schema.tokens).where(schema.tokens.c.id == identity)).one_or_none()


def _still(record: Record, row: Any) -> Token | None:
    found = _token(row)
    return found if found.valid(record.clock()) else None


def _token(row: Any) -> Token:
    roles = tuple(role for role in ROLES if role in row.roles.split())
    return Token(row.id, row.name, roles, row.made_at, row.expires_at, row.revoked_at)


def _hash(secret: str) -> str:
    return f"sha256:{hashlib.sha256(secret.encode()).hexdigest()}"
