"""A change of the data: rows to remove, padded so that changes of like size share one compilation."""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Int

SMALLEST_BUCKET = 16
"""Removed rows are padded to a power of two, at least this, so that those of like size share one compilation."""


class Change(eqx.Module):
    """A change of the data: rows that are removed. Made, and checked, by `model.change(remove=rows)`.

    Rows keep their ids, absent rows are masked, and sizes are padded to buckets. Rows that are added will be fields of
    their own.

    With a leading axis on both leaves: several requests side by side, for a scan over them.
    """

    padded_ids: Int[Array, "*requests bucket"]
    """Row ids; the padding repeats the first one, whose likelihood is as finite as the others'."""
    counted: Bool[Array, "*requests bucket"]
    """False on the padding."""

    @property
    def n_rows(self) -> int:
        """How many rows are removed."""
        return int(np.asarray(self.counted).sum())

    @property
    def row_ids(self) -> Int[np.ndarray, " removed"]:
        """The ids of the removed rows, in the order given."""
        return np.asarray(self.padded_ids)[np.asarray(self.counted)]

    def __repr__(self) -> str:
        ids = self.row_ids
        shown = ", ".join(map(str, ids[:8])) + (", …" if len(ids) > 8 else "")
        return f"Change: remove {len(ids)} row{'s' if len(ids) != 1 else ''} ({shown})"


def bucket_of(rows: int) -> int:
    """The size that a change of so many rows is padded to: the next power of two."""
    return max(SMALLEST_BUCKET, 1 << (rows - 1).bit_length())
