"""Conditions on rows as text, `county == "ANOKA" and floor > 0`: comparisons of columns; nothing else is ever run."""

from __future__ import annotations

import ast
import operator
import unicodedata
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Shaped

from posterase.errors import RowsError

Column = Shaped[np.ndarray, " rows"]

Lookup = Callable[[str, Any], Column]
"""A column by its name, and by a value that it is compared with: groups have numbers, and may have labels too."""

LONGEST = 10_000
"""Characters of a condition."""

COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}


class Condition(NamedTuple):
    """Which rows are meant."""

    names: tuple[str, ...]
    """The columns that it asks for."""
    holds: Callable[[Lookup], Bool[np.ndarray, " rows"]]
    """Where it holds, given the columns."""
    shown: str


def parsed(text: str) -> Condition:
    """A condition from its text."""
    try:
        tree = ast.parse(text.strip(), mode="eval").body if len(text) <= LONGEST else None
        names: dict[str, None] = {}
        holds = _built(tree, names)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise RowsError(
            f"{text[:80]!r} is not a condition on rows.",
            "compare columns with values, text in quotes: 'county == \"ANOKA\" and floor > 0', 'person in [3, 17]'. "
            "For names with spaces pass a dict: rows={'person id': 17}.",
        ) from error
    return Condition(tuple(names), holds, text.strip())


def matching(wanted: dict[str, Any]) -> Condition:
    """The condition that columns have these values, or one of several."""
    shown = " and ".join(f"{name} == {value!r}" for name, value in wanted.items())

    def holds(column: Lookup) -> Bool[np.ndarray, " rows"]:
        return np.logical_and.reduce([among(column(name, value), value) for name, value in wanted.items()])

    return Condition(tuple(wanted), holds, shown)


def among(values: Column, wanted: Any) -> Bool[np.ndarray, " rows"]:
    """Rows whose value is the one wanted, or among those wanted."""
    several = isinstance(wanted, Iterable) and not isinstance(wanted, (str, bytes))
    options = list(wanted) if several else [wanted]
    found = np.zeros(len(values), bool)
    for option in options:
        found |= _compared(operator.eq, values, option)
    return found


def _built(node: ast.expr | None, names: dict[str, None]) -> Callable[[Lookup], Any]:
    """A function of the columns; raises `ValueError` at whatever is no comparison."""
    match node:
        case ast.BoolOp(op=op, values=parts):
            combine = np.logical_and if isinstance(op, ast.And) else np.logical_or
            built = [_built(part, names) for part in parts]
            return lambda column: combine.reduce([part(column) for part in built])
        case ast.BinOp(left=left, op=ast.BitAnd() | ast.BitOr() as op, right=right):
            combine = np.logical_and if isinstance(op, ast.BitAnd) else np.logical_or
            one, other = _built(left, names), _built(right, names)
            return lambda column: combine(one(column), other(column))
        case ast.UnaryOp(op=ast.Not() | ast.Invert(), operand=part):
            inner = _built(part, names)
            return lambda column: ~inner(column)
        case ast.Compare(left=left, ops=[ast.In() | ast.NotIn() as op], comparators=[right]):
            name, wanted = _name(left, names), ast.literal_eval(right)
            if not isinstance(wanted, (list, tuple, set)):
                raise ValueError("in what?")
            negated = isinstance(op, ast.NotIn)
            return lambda column: among(column(name, wanted), wanted) ^ negated
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            name, value = _name(left, names), ast.literal_eval(right)
            if isinstance(value, (list, tuple, set, dict)):
                raise ValueError("one value")
            return lambda column: _compared(COMPARISONS[type(op)], column(name, value), value)
    raise ValueError("no comparison")


def _name(node: ast.expr, names: dict[str, None]) -> str:
    """`county`, or `data.county` for an argument that is a dict."""
    match node:
        case ast.Name(id=name):
            pass
        case ast.Attribute(value=inner, attr=last):
            name = f"{_name(inner, {})}.{last}"
        case _:
            raise ValueError("no column")
    names[name] = None
    return name


def _compared(compare: Callable[[Any, Any], Any], values: Column, other: Any) -> Bool[np.ndarray, " rows"]:
    """A comparison in which text and numbers are different, not an error; dates may be given as text."""
    if values.dtype.kind == "M":
        other = _date(other)
    elif isinstance(other, str) and values.dtype.kind in "OU" and not other.isascii():
        values, other = _composed(values), _nfc(other)
    try:
        found = compare(values, other) if values.dtype.kind != "O" else _of_present(compare, values, other)
    except TypeError as error:
        raise RowsError(f"rows cannot be compared with {other!r}: {error}.", "compare text with text.") from error
    if np.shape(found) != values.shape:
        found = np.full(values.shape, compare is operator.ne)
    return np.asarray(found, bool)


def _of_present(compare: Callable[[Any, Any], Any], values: Column, other: Any) -> Bool[np.ndarray, " rows"]:
    """A comparison of objects, in which missing values differ from everything."""
    import pandas as pd

    here = ~np.asarray(pd.isna(values))
    found = np.full(values.shape, compare is operator.ne)
    found[here] = compare(values[here], other)
    return found


def as_name(text: str) -> str:
    """A name as Python reads it in a condition: in the form NFKC, where an accent is part of its letter."""
    return unicodedata.normalize("NFKC", text)


def _composed(values: Column) -> Column:
    """Texts with accents as parts of their letters, as keyboards enter them; files may hold them apart."""
    return np.array([_nfc(value) if isinstance(value, str) else value for value in values], object)


def _nfc(text: str) -> str:
    return unicodedata.normalize("NFC", text)


def _date(value: Any) -> Any:
    import pandas as pd

    try:
        return pd.Timestamp(value).to_datetime64()
    except (TypeError, ValueError):
        return np.datetime64("NaT")
