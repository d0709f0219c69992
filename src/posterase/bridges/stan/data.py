"""Data of Stan programs: as arrays, as bytes, and cut to some of their rows.

Inside compiled code data travel as one array of bytes, padded, so that they keep their precision whatever jax has
switched on, a change leaves nothing of the removed rows in them, and the next request compiles nothing anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Int, Shaped, UInt8

from posterase.bridges.stan.programs import Data
from posterase.errors import AmbiguousRowsError, DataError

Rows = Int[np.ndarray, " kept"]
Subset = Callable[[Mapping[str, Any], Rows], Mapping[str, Any]]
"""The same data with some of the rows: `subset(data, rows)`, rows by their places."""

OWN_SUBSET = "say how to cut the data: subset=lambda data, rows: {…}, rows being the places of those that stay"
LENGTH = 8
"""Bytes that hold the length of the header."""


def as_arrays(data: Mapping[str, Any]) -> Data:
    """Stan's data as arrays: whole numbers stay whole, all others are float64."""
    found = {}
    for name, values in data.items():
        if np.ma.isMaskedArray(values):
            raise DataError(
                f"the data {name!r} have masked entries.", "give Stan the rows that are there, and their number."
            )
        try:
            array = np.asarray(values)
        except ValueError as error:
            raise DataError(f"the data {name!r} are no array: {error}.", "pass numbers, or arrays of them.") from error
        if array.dtype.kind not in "biuf":
            raise DataError(f"the data {name!r} are {array.dtype}.", "pass numbers, or arrays of them.")
        whole = array.dtype.kind != "f" and (array.size == 0 or _is_int(array))
        found[str(name)] = array.astype(int if whole else float)
    return found


def _is_int(array: Shaped[np.ndarray, "..."]) -> bool:
    """Whether whole numbers are as small as Stan's; others it can read as real ones."""
    limits = np.iinfo(np.intc)
    return int(array.min()) >= limits.min and int(array.max()) <= limits.max


def packed(data: Data, least: int = 0) -> UInt8[np.ndarray, " bytes"]:
    """One array of bytes, filled up with zeros to at least this length."""
    header = json.dumps([(name, values.dtype.str, values.shape) for name, values in data.items()]).encode()
    parts = [len(header).to_bytes(LENGTH, "little"), header, *(values.tobytes() for values in data.values())]
    whole = np.frombuffer(b"".join(parts), np.uint8)
    return np.pad(whole, (0, max(0, least - whole.size)))


def unpacked(whole: UInt8[np.ndarray, " bytes"]) -> Data:
    """The data again."""
    text = np.ascontiguousarray(whole).tobytes()
    at = LENGTH + int.from_bytes(text[:LENGTH], "little")
    found = {}
    for name, kind, shape in json.loads(text[LENGTH:at]):
        size = int(np.prod(shape, dtype=int))
        found[name] = np.frombuffer(text, kind, size, at).reshape(shape)
        at += size * np.dtype(kind).itemsize
    return found


class ByLength(NamedTuple):
    """The default subset: every array whose first axis is the rows is cut, and their number set."""

    counted_by: str

    def __call__(self, data: Mapping[str, Any], rows: Rows) -> dict[str, Any]:
        size = int(data[self.counted_by])
        cut = {name: values[rows] if _leads(values, size) else values for name, values in data.items()}
        return {**cut, self.counted_by: np.asarray(len(rows))}

    def names(self, data: Data) -> list[str]:
        """The arrays that it cuts."""
        return [name for name, values in data.items() if _leads(values, int(data[self.counted_by]))]


def by_length(data: Data, rows: str | None) -> ByLength:
    """The default subset for these data; refused by name where it could be another one, or would not be enough."""
    counts = {name: int(values) for name, values in data.items() if values.shape == () and values.dtype.kind == "i"}
    if rows is not None and rows in data and data[rows].shape == () and rows not in counts:
        raise AmbiguousRowsError(f"{rows} is {data[rows]!r}, no whole number.", "pass it as an int.")
    if rows is not None and rows not in counts:
        known = ", ".join(counts) or "none"
        raise AmbiguousRowsError(f"n_rows is {rows!r}.", f"name a whole number in the data that counts rows: {known}.")
    counting = {name: ByLength(name).names(data) for name in counts if counts[name] > 1}
    counting = {name: arrays for name, arrays in counting.items() if arrays}
    if rows is None and len(counting) != 1:
        told = "; ".join(f"{name} ({', '.join(arrays)})" for name, arrays in counting.items())
        raise AmbiguousRowsError(
            f"several numbers in the data could count the rows: {told}."
            if counting
            else "no number in the data counts the rows: none is the length of an array.",
            f"name it: n_rows={next(iter(counting))!r}." if counting else f"{OWN_SUBSET}.",
        )
    chosen = ByLength(rows if rows is not None else next(iter(counting)))
    size = counts[chosen.counted_by]
    if not chosen.names(data):
        raise AmbiguousRowsError(
            f"{chosen.counted_by} is {size}, and no array in the data is that long.", f"{OWN_SUBSET}."
        )
    across = [name for name, values in data.items() if size in values.shape[1:]]
    if across:
        raise AmbiguousRowsError(
            f"{', '.join(across)} {'has' if len(across) == 1 else 'have'} an axis as long as {chosen.counted_by} "
            f"({size}) that is not the first: the default subset cannot cut it.",
            f"{OWN_SUBSET}.",
        )
    alike = [name for name, value in counts.items() if value == size and name != chosen.counted_by]
    if alike:
        raise AmbiguousRowsError(
            f"{chosen.counted_by} and {', '.join(alike)} are both {size}: which arrays are rows cannot be told.",
            f"{OWN_SUBSET}.",
        )
    return chosen


def _leads(values: Any, size: int) -> bool:
    return np.ndim(values) > 0 and np.shape(values)[0] == size
