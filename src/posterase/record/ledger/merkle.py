"""A Merkle tree that grows at its end, as in RFC 6962: one hash that speaks of every entry and of their order.

What is kept of a tree are the roots of its perfect subtrees, the largest first: one for each bit of its size. That is
enough to append and to tell the root.
"""

from __future__ import annotations

import dataclasses
import hashlib

from posterase.errors import LedgerError

LEAF, NODE = b"\x00", b"\x01"
"""What is hashed before a leaf and before two nodes, so that no leaf can pass for a node."""

DIGEST = hashlib.sha256().digest_size


def leaf_hash(data: bytes) -> bytes:
    """The hash of an entry."""
    return hashlib.sha256(LEAF + data).digest()


def node_hash(left: bytes, right: bytes) -> bytes:
    """The hash of two subtrees."""
    return hashlib.sha256(NODE + left + right).digest()


@dataclasses.dataclass(frozen=True)
class Tree:
    """A tree of some size."""

    size: int = 0
    peaks: tuple[bytes, ...] = ()
    """Roots of its perfect subtrees, from the left."""

    def __post_init__(self) -> None:
        if len(self.peaks) != self.size.bit_count() or any(len(peak) != DIGEST for peak in self.peaks):
            raise LedgerError("the tree that the database keeps is damaged.", "restore it from a backup.")

    def appended(self, data: bytes) -> Tree:
        """The tree with one more entry."""
        peaks, carried = list(self.peaks), leaf_hash(data)
        for _ in range(_trailing_ones(self.size)):
            carried = node_hash(peaks.pop(), carried)
        return Tree(self.size + 1, (*peaks, carried))

    @property
    def root(self) -> bytes:
        """The hash of everything; of nothing, the hash of no bytes."""
        if not self.peaks:
            return hashlib.sha256().digest()
        *rest, root = self.peaks
        for peak in reversed(rest):
            root = node_hash(peak, root)
        return root

    def to_bytes(self) -> bytes:
        """All peaks, one after another."""
        return b"".join(self.peaks)

    @classmethod
    def from_bytes(cls, size: int, data: bytes) -> Tree:
        """The tree of this size with these peaks."""
        return cls(size, tuple(data[at : at + DIGEST] for at in range(0, len(data), DIGEST)))


def _trailing_ones(number: int) -> int:
    return ((number + 1) & ~number).bit_length() - 1
