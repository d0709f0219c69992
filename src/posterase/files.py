"""Files that appear whole or not at all; trees of labelled arrays in netCDF and zarr files.

Log-likelihoods of every row at every draw may be more than memory holds, so that large variables are read and written
a piece at a time.
"""

from __future__ import annotations

import errno
import os
import tempfile
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Shaped

from posterase.errors import InputFileError, OutputError, PosteraseError
from posterase.extras import need

PIECE_ELEMENTS = 2**22
"""About how many numbers of a variable are in memory at once."""


def cache_folder() -> Path:
    """The user's cache, by the XDG rule: what `pooch.os_cache("posterase")` says on Linux."""
    named = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(named) if Path(named).is_absolute() else Path.home() / ".cache") / "posterase"


def make_folder(folder: Path) -> Path:
    """The folder, made where it was not there, and checked to take files."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(f"the folder {str(folder)!r} cannot be made: {error.strerror}.", "choose another.") from error
    check_writable(folder / "posterase")
    return folder


def check_writable(target: Path) -> None:
    """Refuse a file that could not be written, before the work that would fill it."""
    folder = target.parent
    if not folder.is_dir():
        raise OutputError(f"there is no folder {str(folder)!r} to write {target.name!r} in.", "make the folder first.")
    if target.is_dir():
        raise OutputError(f"{str(target)!r} is a folder.", "name a file.")
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise OutputError(
            f"the folder {str(folder)!r} cannot be written to: {error.strerror}.", "choose another one."
        ) from error


@contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path beside the target to write to; it takes the target's place when all went well, and vanishes if not."""
    target = Path(path)
    check_writable(target)
    handle, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=f".part{target.suffix}")
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        umask = os.umask(0)
        os.umask(umask)
        beside.chmod(0o666 & ~umask)  # mkstemp makes files that only their owner can read
        beside.replace(target)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OutputError(f"the disk is full: {target.name!r} was not written.", "make room for it.") from error
        raise
    finally:
        beside.unlink(missing_ok=True)


def read_toml(path: Path, wrong: type[PosteraseError]) -> dict[str, Any]:
    """The values of a TOML file; `wrong` is the error where it is none."""
    try:
        return tomllib.loads(path.read_text())
    except OSError as error:
        raise wrong(f"{str(path)!r} cannot be read: {error.strerror}.", "check the path.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise wrong(f"{str(path)!r} is not TOML: {error}.", "mend it there.") from None


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
