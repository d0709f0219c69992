"""Trees of labelled arrays in netCDF and zarr files.

Log-likelihoods of every row at every draw may be more than memory holds, so that large variables are read and written
a piece at a time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Int, Shaped
from xarray.backends import BackendArray
from xarray.core import indexing

from posterase.errors import InputFileError
from posterase.runtime.optional import need

PIECE_ELEMENTS = 2**22
"""About how many numbers of a variable are in memory at once."""


def read_tree(path: str | os.PathLike[str]) -> xr.DataTree:
    """The groups of a netCDF 4 file or a zarr folder; values are read when they are used."""
    source = Path(path)
    if not source.exists():
        raise InputFileError(f"there is no file {os.fspath(path)!r}.", "check the path.")
    zarr = source.is_dir() or source.name.endswith(".zarr.zip")
    if zarr:
        need("zarr", "reading zarr", "zarr")
    kind = "zarr" if zarr else "netCDF 4"
    try:
        if zarr:
            return xr.open_datatree(source, engine="zarr", consolidated=False)  # consolidated ones are read as well
        return xr.open_datatree(source, engine="h5netcdf")
    except (OSError, ValueError, KeyError) as error:
        raise InputFileError(
            f"{os.fspath(path)!r} cannot be read as {kind}: {str(error).splitlines()[0]}",
            "write it with ArviZ (idata.to_netcdf(path)) or with draws.save(path).",
        ) from error


def write_netcdf(tree: xr.DataTree, path: Path) -> None:
    """Write groups to a netCDF 4 file, large variables a piece at a time."""
    import h5netcdf

    large: list[tuple[str, str, xr.Variable]] = []
    small: dict[str, xr.Dataset] = {}
    for name, child in tree.children.items():
        group = child.to_dataset()
        apart = [str(each) for each, values in group.data_vars.items() if _large(values)]
        large += [(name, each, group[each].variable) for each in apart]
        small[name] = group.drop_vars(apart)
    xr.DataTree.from_dict(small).to_netcdf(path, engine="h5netcdf")
    if not large:
        return
    with h5netcdf.File(path, "a") as file:
        for name, each, values in large:
            group = file.groups[name]
            for dim, size in values.sizes.items():
                if dim not in group.dimensions:
                    group.dimensions[dim] = size
            written = group.create_variable(each, values.dims, values.dtype)
            for piece, block in pieces(values):
                written[piece] = block


def _large(values: xr.DataArray) -> bool:
    return values.size > PIECE_ELEMENTS and values.dtype.kind in "fiu"


def pieces(values: xr.Variable) -> Iterator[tuple[tuple[slice, ...], Shaped[np.ndarray, "..."]]]:
    """A variable a piece at a time, along its first two axes: chains one by one, then draws."""
    if values.ndim < 2:
        yield (slice(None),) * values.ndim, values.values
        return
    step = max(1, PIECE_ELEMENTS // max(1, int(np.prod(values.shape[2:]))))
    for chain in range(values.shape[0]):
        for start in range(0, values.shape[1], step):
            piece = slice(chain, chain + 1), slice(start, start + step)
            yield (*piece, *(slice(None),) * (values.ndim - 2)), values[piece].values


def select_draws(
    values: xr.Variable, chain: Int[np.ndarray, "chain draw"], draw: Int[np.ndarray, "chain draw"]
) -> xr.Variable:
    """Return a variable at these chains and draws, its values read when they are used.

    xarray's own vectorised indexing keeps an index for every element that it selects, which for log-likelihoods is
    rows × draws.
    """
    picked = indexing.LazilyIndexedArray(_SelectedDraws(values, chain, draw))
    return xr.Variable(values.dims, picked, values.attrs)


class _SelectedDraws(BackendArray):
    """Some draws of a variable `(chain, draw, …)` that may be in a file."""

    def __init__(self, values: xr.Variable, chain: np.ndarray, draw: np.ndarray):
        self.values, self.chain, self.draw = values, chain, draw
        self.shape, self.dtype = (*chain.shape, *values.shape[2:]), values.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> np.ndarray:
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._read)

    def _read(self, key: tuple[Any, ...]) -> np.ndarray:
        outer = np.ix_(*(np.atleast_1d(np.arange(n)[k]) for n, k in zip(self.chain.shape, key[:2], strict=True)))
        chain, draw = self.chain[outer], self.draw[outer]
        rest = tuple(k if isinstance(k, slice) else np.atleast_1d(k) for k in key[2:])
        out: np.ndarray | None = None
        for source in np.unique(chain):
            wanted = chain == source
            draws, places = np.unique(draw[wanted], return_inverse=True)
            found = self.values[(int(source), draws, *rest)].values[places]
            out = np.empty((*chain.shape, *found.shape[1:]), self.dtype) if out is None else out
            out[wanted] = found
        assert out is not None
        dropped = tuple(axis for axis, k in enumerate(key) if isinstance(k, (int, np.integer)))
        return out.squeeze(axis=dropped) if dropped else out
