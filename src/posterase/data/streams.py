"""Data larger than memory: rows read from their files in blocks, while they are summed over.

    Σ log p(z | θ) over all rows = Σ over blocks b of Σ over pieces of b

A *block* is what is read at once. It is asked of the host from inside compiled code, once for all draws that are
evaluated side by side; while it is worked on, the next one is being read by a thread that lives no longer than that. A
*piece* of a block, a few hundred rows, is what the likelihood is called on, so small that many draws fit beside each
other. So the files are read once for every `numerics.densities.batch_size` draws, 256 of them on a CPU; for their
gradients too (`posterase.data.row_sums`).

**Memory.** At most `MOST_BLOCKS` blocks are held at once: one in use, one on its way into compiled code, two being read
ahead, and what the libraries that decode them hold. Beyond that there are eight bytes a row, masks of the rows that are
present, and what an evaluation of one piece at all draws of a batch takes.

**Removed rows** stay in the files, which are the user's to change. They do not get beyond the reading: in a piece they
are overwritten with a copy of a row that is kept, as `model.without` does in arrays.
"""

from __future__ import annotations

import functools
import logging
import mmap
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeVar

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, ArrayLike, Bool, Int, PyTree, Shaped

from posterase.data.checks import check_kind, check_values, path_of, row_count
from posterase.data.parameters import parameter_names
from posterase.data.readers import MAKE_ANEW, Reader, opened
from posterase.data.row_sums import AbstractRows, Summand, add_up
from posterase.errors import DataError, InvalidOptionError, PosteraseError, StreamError
from posterase.runtime.checks import check_int
from posterase.runtime.precision import failed_running

BLOCK_BYTES = 2**24
"""What is read at once, unless it is said otherwise."""

MOST_BLOCKS = 10
"""How many blocks are in memory at most."""

MOST_AHEAD = 2
"""How many of them are read before they are asked for."""

PIECE_ELEMENTS, FEWEST_PIECE_ROWS = 2**14, 16
"""About how many numbers the likelihood is called on at once: with 256 draws side by side, what
`numerics.densities.BATCH_ELEMENTS` allows."""

P = ParamSpec("P")
R = TypeVar("R")


class Layout(NamedTuple):
    """How rows are laid out in blocks, and blocks in pieces."""

    n_rows: int
    block_rows: int
    piece_rows: int

    @property
    def n_blocks(self) -> int:
        """How many there are; the last one may be short."""
        return -(-self.n_rows // self.block_rows)

    @property
    def n_pieces(self) -> int:
        """Of a block; the last one may be short."""
        return -(-self.block_rows // self.piece_rows)

    @property
    def padded_rows(self) -> int:
        """Of a block as it is handed over: whole pieces."""
        return self.n_pieces * self.piece_rows


class Source:
    """The files' side of a stream: what of it does not change from request to request."""

    def __init__(
        self,
        readers: Sequence[Reader],
        names: Sequence[str],
        dtypes: Sequence[Any],
        layout: Layout,
        read_ahead: bool,
    ):
        self.readers, self.names, self.dtypes = tuple(readers), tuple(names), tuple(dtypes)
        self.layout, self.read_ahead = layout, read_ahead
        self.blocks_read = 0
        self._checked = np.zeros(layout.n_blocks, bool)
        self._ahead: dict[int, Future[list[np.ndarray]]] = {}
        self._lock = threading.Lock()

    def block(self, index: Any) -> list[np.ndarray]:
        """A block, as whole pieces; called back from compiled code, maybe from several threads."""
        with _kept_for_later():
            at = int(np.asarray(index))
            with self._lock:
                waiting = self._ahead.pop(at, None)
            try:
                rows = self._block(at) if waiting is None else waiting.result()
            except BaseException:
                with self._lock:
                    self._ahead.clear()
                raise
            self._begin(at + 1)
            return rows

    def rows(self, ids: Any) -> list[np.ndarray]:
        """Rows by their ids, an array of any shape."""
        with _kept_for_later():
            wanted, places = np.unique(np.asarray(ids), return_inverse=True)
            found = [self._taken(leaf, wanted) for leaf in range(len(self.readers))]
            return [each[places.reshape(np.shape(ids))] for each in found]

    def part(self, leaf: int, start: int, stop: int) -> Shaped[np.ndarray, "rows ..."]:
        """Some rows of one array, as jax has them."""
        return self._part(leaf, start, stop, stop - start, check=True)

    def _begin(self, index: int) -> None:
        """Have a block read by a thread of its own."""
        if not self.read_ahead or index >= self.layout.n_blocks:
            return
        with self._lock:
            if index in self._ahead:
                return
            while len(self._ahead) >= MOST_AHEAD:  # of a pass that was given up
                del self._ahead[next(iter(self._ahead))]
            promised: Future[list[np.ndarray]] = Future()
            self._ahead[index] = promised

        def read() -> None:
            try:
                promised.set_result(self._block(index))
            except BaseException as error:
                promised.set_exception(error)

        threading.Thread(target=read, name=f"posterase block {index}").start()

    def _block(self, index: int) -> list[np.ndarray]:
        layout = self.layout
        start = index * layout.block_rows
        stop = min(start + layout.block_rows, layout.n_rows)
        check = not self._checked[index]
        rows = [self._part(leaf, start, stop, layout.padded_rows, check) for leaf in range(len(self.readers))]
        with self._lock:
            self._checked[index] = True
            self.blocks_read += 1
        return rows

    def _part(self, leaf: int, start: int, stop: int, size: int, check: bool) -> np.ndarray:
        reader, name = self.readers[leaf], self.names[leaf]
        out = _empty((size, *reader.shape[1:]), self.dtypes[leaf])
        with _told_where(f"rows {start} to {stop - 1} of {name}"):
            reader.check(start, stop)
            for at in range(start, stop, reader.step_rows or stop - start):
                end = min(at + (reader.step_rows or stop - start), stop)
                rows = reader.read(at, end)
                if rows.shape != (end - at, *reader.shape[1:]):
                    raise StreamError(f"{name} has fewer rows than it had.", MAKE_ANEW)
                if check:
                    check_values(name, rows, self.dtypes[leaf], range(at, end))
                out[at - start : end - start] = rows
                reader.release(rows)
            out[stop - start :] = 0
        return out

    def _taken(self, leaf: int, ids: Int[np.ndarray, " some"]) -> np.ndarray:
        reader, name = self.readers[leaf], self.names[leaf]
        with _told_where(f"rows of {name}"):
            reader.check(int(ids.min(initial=0)), int(ids.max(initial=0)) + 1)
            rows = reader.take(ids)
            check_values(name, rows, self.dtypes[leaf], ids)
        return rows.astype(self.dtypes[leaf], copy=False)


def _empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array whose memory is the system's again when it is done with: malloc keeps what threads have freed."""
    size = int(np.prod(shape, dtype=int)) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, max(1, size)))


class Stream(eqx.Module):
    """Rows in files, read when they are needed. Made by `pe.stream`, and passed to `pe.Model` as its data."""

    is_streamed: ClassVar[bool] = True

    left: Bool[Array, " rows"]
    """The rows that are there; what is read of others is overwritten."""
    filler: list[Array]
    """A row that is there."""
    source: Source = eqx.field(static=True)
    structure: Any = eqx.field(static=True)

    @property
    def n_rows(self) -> int:
        """How many there are in the files."""
        return self.source.layout.n_rows

    @property
    def block_rows(self) -> int:
        """How many are read at once."""
        return self.source.layout.block_rows

    @property
    def n_blocks(self) -> int:
        """How many blocks a pass over all rows reads."""
        return self.source.layout.n_blocks

    @property
    def block_bytes(self) -> int:
        """What a block takes in memory."""
        return sum(int(leaf.nbytes) for leaf in self.filler) * self.block_rows

    @property
    def blocks_read(self) -> int:
        """How many blocks have been read so far, by all models that use these files through this stream."""
        return self.source.blocks_read

    def shapes(self, rows: int) -> PyTree:
        """Shapes of so many rows."""
        return self._tree([jax.ShapeDtypeStruct((rows, *leaf.shape), leaf.dtype) for leaf in self.filler])

    def take(self, ids: Int[ArrayLike, " some"]) -> PyTree:
        """Rows by their ids, also in compiled code."""
        ids = jnp.asarray(ids)
        shapes = jax.tree.leaves(self.shapes(ids.shape[0]))
        found = jax.pure_callback(self.source.rows, shapes, ids, vmap_method="expand_dims")
        return self._tree(self._overwritten(found, self.left[ids]))

    def without(self, left: Bool[Array, " rows"]) -> Stream:
        """The stream of the rows that are left."""
        first = jnp.argmax(left)
        filler = [leaf[0] for leaf in jax.tree.leaves(self.take(first[None]))]
        return Stream(left, filler, self.source, self.structure)

    def blocks(self) -> Iterator[PyTree]:
        """All rows on the host, block after block, without the padding."""
        for start in range(0, self.n_rows, self.block_rows):
            stop = min(start + self.block_rows, self.n_rows)
            yield self._tree([self.part(leaf, start, stop) for leaf in range(len(self.filler))])

    def part(self, leaf: int, start: int, stop: int) -> Shaped[np.ndarray, "rows ..."]:
        """Some rows of one array, on the host."""
        rows = self.source.part(leaf, start, stop)
        gone = ~np.asarray(self.left[start:stop])
        rows[gone] = np.asarray(self.filler[leaf])
        return rows

    def names(self) -> list[str]:
        """What the arrays are called, in the order of the tree's leaves."""
        return parameter_names(self.shapes(1))

    def piece(
        self, block: list[Array], first: Int[Array, ""], at: Int[Array, ""]
    ) -> tuple[PyTree, Int[Array, " rows"]]:
        """The rows of a piece that begins at this place of a block, and their ids; of padding, none that is there."""
        layout = self.source.layout
        rows = [jax.lax.dynamic_slice_in_dim(leaf, at, layout.piece_rows) for leaf in block]
        places = at + jnp.arange(layout.piece_rows)
        ids = jnp.where(places < layout.block_rows, first + places, layout.n_rows)
        return self._tree(self._overwritten(rows, mask_at(self.left, ids))), ids

    def block(self, index: Int[Array, ""]) -> list[Array]:
        """A block, in compiled code."""
        shapes = jax.tree.leaves(self.shapes(self.source.layout.padded_rows))
        return jax.pure_callback(self.source.block, shapes, index, vmap_method="sequential")

    def _overwritten(self, rows: list[Array], left: Bool[Array, " some"]) -> list[Array]:
        return [
            jnp.where(left.reshape(-1, *[1] * (leaf.ndim - 1)), leaf, filler)
            for leaf, filler in zip(rows, self.filler, strict=True)
        ]

    def _tree(self, leaves: Sequence[Any]) -> PyTree:
        return jax.tree.unflatten(self.structure, leaves)

    def __repr__(self) -> str:
        size = f"{self.block_bytes / 2**20:.3g} MB"
        return f"Stream of {self.n_rows:,} rows ({', '.join(self.names())}), {self.block_rows:,} a block of {size}"


def stream(
    source: PyTree,
    *,
    columns: Sequence[str] | None = None,
    block_rows: int | None = None,
    block_bytes: int = BLOCK_BYTES,
    read_ahead: bool = True,
) -> Stream:
    """Rows that stay in their files, as the data of a `pe.Model`: for data larger than memory.

    At most ten blocks are in memory at once, and eight bytes a row. A pass over all rows evaluates up to 256 draws on
    a CPU. Values are looked at when they are first read: NaN, and numbers that jax cannot hold, are refused there.

    Parameters
    ----------
    source
        The path of a `.npy` file, a zarr folder or a parquet file; or a tree, a dict say, of arrays that share their
        leading axis, the rows: memory-mapped (`numpy.load("x.npy", mmap_mode="r")`), of zarr, of h5py, in memory, or
        paths of such. The arrays of a zarr group and the columns of a parquet file become a dict by their names.
    columns
        Which of them, where it is a zarr group or a parquet file; None: all.
    block_rows
        How many rows to read at once; None: as many as `block_bytes` hold, in whole chunks of zarr, at least one.
    block_bytes
        About how much to read at once.
    read_ahead
        Whether the next block is read while one is worked on.

    Examples
    --------
    >>> import jax.numpy as jnp, numpy as np, posterase as pe
    >>> data = pe.stream({"y": np.arange(6.0)}, block_rows=4)
    >>> data
    Stream of 6 rows (y), 4 a block of 1.53e-05 MB
    >>> model = pe.Model(lambda p: -0.5 * p["mu"] ** 2, lambda p, d: -0.5 * (d["y"] - p["mu"]) ** 2, data)
    >>> float(model.without(model.change(remove=[5])).log_joint({"mu": jnp.array(0.0)}))
    -15.0
    """
    tree = opened(source, columns)
    named = [(path_of(path), reader) for path, reader in jax.tree_util.tree_leaves_with_path(tree)]
    if not named:
        raise DataError("the stream holds no arrays.", "pass a path, or a tree of arrays: pe.stream({'y': y}).")
    for name, reader in named:
        check_kind(name, reader.dtype, len(reader.shape))
    n_rows = row_count({name: reader.shape[0] for name, reader in named})
    names, readers = [name for name, _ in named], [reader for _, reader in named]
    dtypes = [jax.dtypes.canonicalize_dtype(reader.dtype.newbyteorder("=")) for reader in readers]
    numbers = [int(np.prod(reader.shape[1:], dtype=int)) for reader in readers]
    if block_rows is None:
        check_int("block_bytes", block_bytes, 1)
        row_bytes = sum(size * dtype.itemsize for size, dtype in zip(numbers, dtypes, strict=True))
        chunk = max(reader.chunk_rows for reader in readers)
        block_rows = max(1, block_bytes // max(1, row_bytes) // chunk) * chunk
    check_int("block_rows", block_rows, 1)
    block_rows = min(block_rows, n_rows)
    if not isinstance(read_ahead, bool):
        raise InvalidOptionError(f"read_ahead is {read_ahead!r}.", "use True or False.")
    most = max(FEWEST_PIECE_ROWS, PIECE_ELEMENTS // max(1, sum(numbers)))
    layout = Layout(n_rows, block_rows, -(-block_rows // -(-block_rows // most)))
    made = Source(readers, names, dtypes, layout, read_ahead)
    filler = [jnp.asarray(leaf[0]) for leaf in made.rows(np.zeros(1, int))]
    return Stream(jnp.ones(n_rows, bool), filler, made, jax.tree.structure(tree))


def mask_at(mask: Bool[Array, " rows"], ids: Int[Array, " some"]) -> Bool[Array, " some"]:
    """A mask over all rows at some ids; false where there is no such row."""
    return mask.at[ids].get(mode="fill", fill_value=False)


class Counted(AbstractRows):
    """Rows of a stream, of which some count."""

    stream: Stream
    counted: Bool[Array, " rows"]

    def added_up(self, summand: Summand, *shared: PyTree) -> PyTree:
        layout = self.stream.source.layout

        def add_block(index: Int[Array, ""]) -> PyTree:
            block = self.stream.block(index)

            def add_piece(at: Int[Array, ""]) -> PyTree:
                rows, ids = self.stream.piece(block, index * layout.block_rows, at)
                return summand(rows, mask_at(self.counted, ids), *shared)

            return add_up(add_piece, jnp.arange(0, layout.padded_rows, layout.piece_rows))

        return add_up(add_block, jnp.arange(layout.n_blocks))


# --- errors in reading, on their way through compiled code

_raised: deque[PosteraseError] = deque(maxlen=16)


def raises_read_errors(function: Callable[P, R]) -> Callable[P, R]:
    """The function, where an error in reading is raised as it was: compiled code makes another one of it."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except Exception as error:
            cause = read_error(error)
            if cause is None:
                raise
        raise cause  # not while the other one is handled: it would be its context

    return call


def read_error(error: BaseException) -> PosteraseError | None:
    """The error in reading that compiled code has made another one of, if it was one."""
    seen: BaseException | None = error
    while seen is not None:
        if failed_running(seen):
            said = str(seen)
            return next((each for each in reversed(_raised) if each.problem in said), None)
        seen = seen.__cause__ or seen.__context__
    return None


@contextmanager
def _kept_for_later() -> Iterator[None]:
    """Errors of posterase are remembered for `raises_read_errors`."""
    try:
        yield
    except PosteraseError as error:
        _raised.append(error)
        raise


@contextmanager
def _told_where(what: str) -> Iterator[None]:
    """Errors of other libraries as ours, with what was being read."""
    try:
        yield
    except PosteraseError:
        raise
    except Exception as error:
        said = f"{what} cannot be read: {type(error).__name__}: {error}"
        raise StreamError(said, "check that the file is there, and whole.") from error


def _is_news(record: logging.LogRecord) -> bool:
    """Not an error that `raises_read_errors` raises anew; jax would print it with a page of its own frames."""
    return not (record.exc_info and isinstance(record.exc_info[1], PosteraseError))


logging.getLogger("jax._src.callback").addFilter(_is_news)
