"""Sign-ins to the dashboard: a cookie that names a token, signed by the record's own secret.

A sign-in outlives the server's restart. It ends after some hours, by signing out, and with its token, which is looked
up every time.
"""

from __future__ import annotations

import dataclasses
import hmac
import re
import secrets
import time

from posterase.record.ledger.keyring import Keys

WRITTEN = re.compile(r"([0-9a-f]{16})\.(\d{1,12})\.([0-9a-f]{16})\.([0-9a-f]{64})")


@dataclasses.dataclass(frozen=True)
class Session:
    """A sign-in."""

    id: str
    token: str
    """The token's id."""
    until: int
    """When it ends by itself, in Unix seconds."""
    written: str
    """The cookie."""


def cookie_name(https: bool) -> str:
    """A browser takes a cookie of the longer name by HTTPS only, and from this host only."""
    return "__Host-posterase" if https else "posterase"


def new_session(keys: Keys, token: str, seconds: int) -> Session:
    """The session of a token that was just shown."""
    own, until = secrets.token_hex(8), int(time.time()) + seconds
    content = f"{token}.{until}.{own}"
    return Session(own, token, until, f"{content}.{_seal(keys, 'session', content)}")


def session_of(keys: Keys, cookie: str) -> Session | None:
    """What a cookie says, where we wrote it and it is not over."""
    found = WRITTEN.fullmatch(cookie)
    if found is None or not hmac.compare_digest(found[4], _seal(keys, "session", cookie.rpartition(".")[0])):
        return None
    return Session(found[3], found[1], int(found[2]), cookie) if int(found[2]) > time.time() else None


def csrf_of(keys: Keys, session: Session) -> str:
    """What every form of this session carries, and no other site can know."""
    return _seal(keys, "form", session.written)


def same(one: str, other: str) -> bool:
    """Compared in a time that tells nothing."""
    return hmac.compare_digest(one.encode(), other.encode())


def _seal(keys: Keys, kind: str, content: str) -> str:
    return keys.pseudonym(f"{kind} of the dashboard", content.encode()).rpartition(":")[2]
