"""Canonical JSON (RFC 8785): one value has one sequence of bytes, so that hashes and signatures speak of the value."""

from __future__ import annotations

import json
import math
from typing import Any

from posterase.errors import CanonicalFormError

LARGEST = 2**53 - 1
"""The largest integer that every JSON reader keeps exactly."""

PLAIN_DIGITS = 21
"""Up to so many digits before the point numbers are written without an exponent (ECMA-262, Number::toString)."""


def canonical(value: Any) -> bytes:
    """The bytes of a JSON value."""
    return _text(value).encode()


def parsed(data: bytes) -> Any:
    """The value of canonical bytes; other bytes, even of the same value, are refused."""
    try:
        value = json.loads(data.decode(), object_pairs_hook=_unique, parse_constant=_no_number, parse_int=_whole)
        again = canonical(value)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CanonicalFormError(
            f"this is not JSON: {type(error).__name__}.", "give the file as it was made."
        ) from None
    if again != data:
        raise CanonicalFormError("this JSON is not in canonical form.", "give the file as it was made.")
    return value


def _text(value: Any) -> str:
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, int):
        if abs(value) > LARGEST:
            raise CanonicalFormError(f"{value} is too large for JSON.", "write it as text.")
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(_text, value))}]"
    if isinstance(value, dict):
        names = sorted(value, key=_utf16)
        return "{" + ",".join(f"{_string(name)}:{_text(value[name])}" for name in names) + "}"
    raise CanonicalFormError(f"JSON has no {type(value).__name__}.", "use text, numbers, lists and dicts.")


def _string(value: str) -> str:
    _utf16(value)
    return json.dumps(value, ensure_ascii=False)


def _utf16(name: Any) -> bytes:
    """What names are sorted by."""
    if not isinstance(name, str):
        raise CanonicalFormError(f"a name in JSON is text, not {type(name).__name__}.", "use text.")
    try:
        return name.encode("utf-16-be")
    except UnicodeEncodeError:
        raise CanonicalFormError("text holds half of a surrogate pair.", "use whole characters.") from None


def _number(value: float) -> str:
    """As ECMAScript writes it: the shortest digits that read back the same, which are Python's too."""
    if not math.isfinite(value):
        raise CanonicalFormError(f"JSON has no {value}.", "use null.")
    if value == 0:
        return "0"
    sign, digits, exponent = _decimal(value)
    point = len(digits) + exponent  # where the decimal point is, counted from the first digit
    if exponent >= 0 and point <= PLAIN_DIGITS:
        body = digits + "0" * exponent
    elif 0 < point <= PLAIN_DIGITS:
        body = f"{digits[:point]}.{digits[point:]}"
    elif -6 < point <= 0:
        body = f"0.{'0' * -point}{digits}"
    else:
        fraction = f".{digits[1:]}" if len(digits) > 1 else ""
        body = f"{digits[0]}{fraction}e{point - 1:+d}"
    return sign + body


def _decimal(value: float) -> tuple[str, str, int]:
    """Sign, digits without zeros at either end, and the power of ten of the last one."""
    mantissa, _, power = repr(abs(value)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = whole + fraction
    exponent = int(power or 0) - len(fraction)
    stripped = digits.rstrip("0")
    return "-" if value < 0 else "", stripped.lstrip("0"), exponent + len(digits) - len(stripped)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise CanonicalFormError("a name is there twice in one object.", "give the file as it was made.")
    return found


def _whole(digits: str) -> int | float:
    """Integers are exact up to 2⁵³; larger ones are doubles that happen to be whole."""
    number = float(digits)
    return int(number) if abs(number) <= LARGEST else number


def _no_number(name: str) -> Any:
    raise CanonicalFormError(f"JSON has no {name}.", "give the file as it was made.")
