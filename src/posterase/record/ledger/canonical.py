"""Canonical JSON (RFC 8785): one value has one sequence of bytes, so that hashes and signatures speak of the value."""

from __future__ import annotations

import json
from typing import Any

import rfc8785

from posterase.errors import LedgerFormatError

LARGEST = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""


def canonical(value: Any) -> bytes:
    """Return the bytes of a JSON value."""
    try:
        return rfc8785.dumps(value)
    except ValueError as error:  # rfc8785's own, and text with half of a surrogate pair
        raise LedgerFormatError(f"JSON cannot hold this value: {error}.", "use text, numbers and null.") from None


def parsed(data: bytes) -> Any:
    """Return the value of canonical bytes; refuse other bytes, even of the same value."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_whole)
        again = canonical(value)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise LedgerFormatError(f"this is not JSON: {type(error).__name__}.", "give the file as it was made.") from None
    if again != data:
        raise LedgerFormatError("this JSON is not in canonical form.", "give the file as it was made.")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise LedgerFormatError("a name is there twice in one object.", "give the file as it was made.")
    return found


def _whole(digits: str) -> int | float:
    """Integers are exact up to 2⁵³; larger ones are doubles that happen to be whole."""
    number = float(digits)
    return int(number) if abs(number) <= LARGEST else number


def _no_number(name: str) -> Any:
    raise LedgerFormatError(f"JSON has no {name}.", "give the file as it was made.")
