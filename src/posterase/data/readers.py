"""Rows where they lie: memory-mapped, in zarr or parquet files, or in anything else that can be sliced.

A reader gives a slice of rows, or some rows by their ids, and holds none of them afterwards. Pages of a mapped file
count as the process's memory for as long as they are mapped in, so that they are handed back after every read. A file
is looked at before every read: one that is gone, or another than it was, is an error, never other rows.
"""

from __future__ import annotations

import abc
import mmap
import os
import re
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jaxtyping import Int, PyTree, Shaped

from posterase.errors import DataError, PosteraseError, StreamError
from posterase.runtime.optional import need

BATCH_ROWS = 2**16
"""Rows of a parquet column that are decoded at once."""

BUFFER_BYTES = 2**20
"""What is read of a parquet file, or copied from a mapped one, at once."""

CHUNK = re.compile(r"(?:c/)?(\d+)(?:[./]\d+)*")
"""The name of a chunk's file in the folder of a zarr array; first comes its place along the rows."""

MAKE_ANEW = "leave the files alone while they are streamed; where they have to change, make the stream and model anew."

Rows = Shaped[np.ndarray, "rows ..."]


class Reader(abc.ABC):
    """An array whose leading axis is the rows."""

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    chunk_rows: int = 1
    """Rows that are stored together, so that blocks better hold all of them."""
    step_rows: int | None = None
    """How many rows to read in one go, where fewer at a time take less memory and no more time."""

    @abc.abstractmethod
    def read(self, start: int, stop: int) -> Rows:
        """The rows from `start` to before `stop`: a copy, or a view that is used at once and released."""

    @abc.abstractmethod
    def take(self, ids: Int[np.ndarray, " some"]) -> Rows:
        """Copies of the rows with these ids, which rise."""

    def release(self, rows: Rows) -> None:
        """Let go of what `read` gave."""
        return

    def check(self, start: int, stop: int) -> None:
        """Raise `StreamError` where rows from `start` to before `stop` are no longer those that they were."""
        return


class Sliced(Reader):
    """Whatever has a shape, a dtype and slices: an array in memory, a data set of h5py."""

    def __init__(self, array: Any, file: Path | None = None):
        self.array = array
        self.shape, self.dtype = tuple(array.shape), np.dtype(array.dtype)
        self._file = None if file is None or not file.exists() else Unchanged(file)

    def read(self, start: int, stop: int) -> Rows:
        return np.asarray(self.array[start:stop])

    def check(self, start: int, stop: int) -> None:
        if self._file is not None:
            self._file.check()

    def take(self, ids: Int[np.ndarray, " some"]) -> Rows:
        return np.array(self.array[ids])


class Mapped(Sliced):
    """A memory-mapped file."""

    def __init__(self, array: Shaped[np.ndarray, "rows ..."], memory: mmap.mmap, file: np.memmap[Any, Any] | None):
        name = None if file is None else file.filename
        super().__init__(array.view(np.ndarray), None if name is None else Path(name))
        self.step_rows = max(1, BUFFER_BYTES // max(1, array.nbytes // max(1, len(array))))
        self._memory = memory
        self._address = int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])
        # A private mapping may hold changes of the user's own, which its pages alone know of.
        self._can_release = hasattr(memory, "madvise") and file is not None and file.mode != "c"

    def take(self, ids: Int[np.ndarray, " some"]) -> Rows:
        rows = super().take(ids)
        if len(ids):
            self.release(self.array[int(ids[0]) : int(ids[-1]) + 1])
        return rows

    def release(self, rows: Rows) -> None:
        if not self._can_release or not rows.size:
            return
        low, high = np.lib.array_utils.byte_bounds(rows)
        start = (low - self._address) // mmap.PAGESIZE * mmap.PAGESIZE
        self._memory.madvise(mmap.MADV_DONTNEED, start, high - self._address - start)


class ZarrRows(Sliced):
    """An array of zarr. A chunk that is gone would read as the fill value, so that chunks' files are watched."""

    def __init__(self, array: Any):
        stored = getattr(array, "shards", None) or array.chunks
        root = getattr(array.store, "root", None)
        folder = None if root is None else Path(root) / array.path
        names = [] if folder is None else [folder / name for name in ("zarr.json", ".zarray")]
        super().__init__(array, next((name for name in names if name.exists()), None))
        self.chunk_rows = self.step_rows = int(stored[0]) if stored else 1
        self._chunks: dict[int, list[Unchanged]] = {}
        for path in [] if folder is None else sorted(folder.rglob("*")):
            place = CHUNK.fullmatch(path.relative_to(folder).as_posix()) if path.is_file() else None
            if place is not None:
                self._chunks.setdefault(int(place[1]), []).append(Unchanged(path))

    def take(self, ids: Int[np.ndarray, " some"]) -> Rows:
        return np.asarray(self.array.oindex[ids])

    def check(self, start: int, stop: int) -> None:
        super().check(start, stop)
        for place in range(start // self.chunk_rows, -(-stop // self.chunk_rows)):
            for chunk in self._chunks.get(place, ()):
                chunk.check()


class ParquetColumn(Reader):
    """A column of a parquet file. It is read on from where the last slice ended, so that nothing is decoded twice."""

    def __init__(self, path: Path, name: str, dtype: np.dtype[Any]):
        import pyarrow.parquet

        self.name, self.dtype = name, dtype
        self._file = Unchanged(path)
        self._parquet = pyarrow.parquet.ParquetFile(path, buffer_size=BUFFER_BYTES, pre_buffer=False)
        groups = [self._parquet.metadata.row_group(i).num_rows for i in range(self._parquet.num_row_groups)]
        self._starts = np.cumsum([0, *groups])
        self.shape = (int(self._starts[-1]),)
        self._lock = threading.Lock()
        self._at, self._ahead = 0, iter(())  # type: tuple[int, Iterator[Rows]]

    def read(self, start: int, stop: int) -> Rows:
        with self._lock:
            if start != self._at or start == 0:
                self._ahead = self._from(start)
            parts, missing = [], stop - start
            while missing > 0:
                part = next(self._ahead)
                if len(part) > missing:
                    self._ahead = _before(part[missing:], self._ahead)
                parts.append(part[:missing])
                missing -= len(parts[-1])
            self._at = stop
            if stop == self.shape[0]:
                self._at, self._ahead = 0, iter(())
            return np.concatenate(parts) if parts else np.empty(0, self.dtype)

    def take(self, ids: Int[np.ndarray, " some"]) -> Rows:
        groups = np.searchsorted(self._starts, ids, side="right") - 1
        found = np.empty(len(ids), self.dtype)
        with self._lock:
            for group in np.unique(groups):
                own = groups == group
                table = self._parquet.read_row_group(int(group), columns=[self.name], use_threads=False)
                wanted = table.column(0).take(ids[own] - self._starts[group])
                found[own] = self._numbers(wanted, int(ids[own][0]))
        return found

    def check(self, start: int, stop: int) -> None:
        self._file.check()

    def _from(self, start: int) -> Iterator[Rows]:
        """What is to be read from a row on, some rows at a time."""
        if start >= self.shape[0]:
            return
        group = int(np.searchsorted(self._starts, start, side="right")) - 1
        at = int(self._starts[group])
        groups = list(range(group, self._parquet.num_row_groups))
        for batch in self._parquet.iter_batches(BATCH_ROWS, groups, [self.name], use_threads=False):
            skipped = max(start - at, 0)
            if skipped < batch.num_rows:
                yield self._numbers(batch.column(0).slice(skipped), at + skipped)
            at += batch.num_rows

    def _numbers(self, column: Any, first: int) -> Rows:
        if column.null_count:
            raise DataError(
                f"{self.name} has no value in some of the rows from {first} on.",
                "drop or fill such rows, and mark them in another column if the likelihood must know.",
            )
        # A slice of a whole column is in one piece or in several, which are asked in other words.
        several = hasattr(column, "num_chunks")
        return column.to_numpy() if several else column.to_numpy(zero_copy_only=False)


def _before(first: Rows, rest: Iterator[Rows]) -> Iterator[Rows]:
    yield first
    yield from rest


class Unchanged:
    """A file as it was when it was opened."""

    def __init__(self, path: Path):
        self.path = path
        self._was = self._now()

    def check(self) -> None:
        """Raise `StreamError` where it is gone, or another."""
        if self._now() != self._was:
            raise StreamError(f"{str(self.path)!r} has changed since the stream was made.", MAKE_ANEW)

    def _now(self) -> tuple[int, int, int]:
        try:
            found = self.path.stat()
        except OSError as error:
            raise StreamError(f"{str(self.path)!r} cannot be read: {error.strerror}.", MAKE_ANEW) from error
        return found.st_size, found.st_mtime_ns, found.st_ino


# --- opening


def opened(source: PyTree, columns: Sequence[str] | None) -> PyTree:
    """A tree of readers from a path, or from a tree of paths and arrays."""
    if isinstance(source, (str, os.PathLike)):
        return _of_path(Path(source), columns)
    if columns is not None:
        raise DataError("columns are named, and the source is no file.", "leave out arrays that are not wanted.")
    return jax.tree.map(_of_leaf, source)


def _of_leaf(leaf: Any) -> Reader:
    if isinstance(leaf, (str, os.PathLike)):
        found = _of_path(Path(leaf), None)
        if not isinstance(found, Reader):
            raise DataError(f"{str(leaf)!r} holds several arrays.", "pass it by itself: pe.stream(path).")
        return found
    if isinstance(leaf, np.ma.MaskedArray):
        raise DataError("a source is a masked array, whose mask would be lost.", "fill it.")
    if hasattr(leaf, "iloc"):  # of pandas, where leaf[3] is the row that is called 3
        leaf = leaf.to_numpy()
    if isinstance(leaf, np.ndarray):
        return _of_array(leaf)
    if not all(hasattr(leaf, name) for name in ("shape", "dtype", "__getitem__")):
        raise DataError(
            f"a source is a {type(leaf).__name__}.",
            "pass arrays (numpy.load(…, mmap_mode='r'), zarr, h5py) or paths of .npy, .zarr or .parquet files.",
        )
    if hasattr(leaf, "oindex") and hasattr(leaf, "store"):
        return ZarrRows(leaf)
    file: Any = getattr(leaf, "file", None)  # of h5py; one that is open for writing may change
    return Sliced(leaf, Path(file.filename) if getattr(file, "mode", None) == "r" else None)


def _of_array(array: Shaped[np.ndarray, "..."]) -> Reader:
    file: np.memmap[Any, Any] | None = None
    base: Any = array
    while base is not None and not isinstance(base, mmap.mmap):
        file = base if isinstance(base, np.memmap) else file
        base = getattr(base, "base", None)
    return Sliced(array) if base is None or not array.ndim else Mapped(array, base, file)


def _of_path(path: Path, columns: Sequence[str] | None) -> PyTree:
    if not path.exists():
        raise StreamError(f"there is no file {str(path)!r}.", "check the path.")
    kind = path.suffix.lower()
    try:
        if kind in (".parquet", ".pq"):
            return _of_parquet(path, columns)
        if path.is_dir() and any((path / name).exists() for name in ("zarr.json", ".zgroup", ".zarray")):
            return _of_zarr(path, columns)
        if kind == ".npy" and columns is None:
            return _of_array(np.load(path, mmap_mode="r"))
    except PosteraseError:
        raise
    except Exception as error:  # every library has errors of its own for a file that is none
        raise StreamError(f"{str(path)!r} cannot be opened: {error}", "check that the file is whole.") from error
    raise DataError(
        f"{str(path)!r} is no file that can be streamed{'' if columns is None else ' by columns'}.",
        "pass a .npy file, a .zarr folder, a .parquet file, or arrays.",
    )


def _of_zarr(path: Path, columns: Sequence[str] | None) -> PyTree:
    need("zarr", "a stream of a zarr folder", "zarr")
    import zarr

    found = zarr.open(path, mode="r")
    if isinstance(found, zarr.Array):
        return ZarrRows(found)
    arrays = dict(found.arrays())
    return {name: ZarrRows(arrays[name]) for name in _chosen(columns, list(arrays), path)}


def _of_parquet(path: Path, columns: Sequence[str] | None) -> PyTree:
    need("pyarrow", "a stream of a parquet file", "parquet")
    import pyarrow
    import pyarrow.parquet

    schema = pyarrow.parquet.read_schema(path)
    readers = {}
    for name in _chosen(columns, schema.names, path):
        kind = schema.field(name).type
        of = pyarrow.types
        if not (of.is_floating(kind) or of.is_integer(kind) or of.is_boolean(kind)):
            raise DataError(
                f"the column {name!r} of {str(path)!r} is of type {kind}, not real numbers.",
                "name the columns that the likelihood uses: pe.stream(path, columns=['x', 'y']).",
            )
        readers[name] = ParquetColumn(path, name, np.dtype(kind.to_pandas_dtype()))
    return readers


def _chosen(columns: Sequence[str] | None, names: list[str], path: Path) -> list[str]:
    if columns is None:
        return sorted(names)
    for name in columns:
        if name not in names:
            raise DataError(f"{str(path)!r} has no column {name!r}.", f"it has {', '.join(sorted(names))}.")
    return list(columns)
