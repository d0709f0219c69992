"""Rows to remove, padded so that removals of like size share one compilation."""

from __future__ import annotations

import equinox as eqx
import numpy as np
from jaxtyping import Array, Bool, Int

SMALLEST_BUCKET = 16
"""Removals are padded to a power of two, at least this, so that those of like size share one compilation."""


class Removal(eqx.Module):
    """Rows to remove, padded to a bucket. Made, and checked, by `model.removal(rows)`.

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
        return f"Removal of {len(ids)} row{'s' if len(ids) != 1 else ''}: {shown}"


def bucket_of(rows: int) -> int:
    """The size that a removal of so many rows is padded to: the next power of two."""
    return max(SMALLEST_BUCKET, 1 << (rows - 1).bit_length())
