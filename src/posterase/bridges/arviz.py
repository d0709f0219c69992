"""From a file by ArviZ's schema, and nothing else: stored log-likelihoods are enough to reweight.

    model, draws = pe.from_arviz("fit.nc")
    result = pe.erase(model, draws, rows='county == "ANOKA"')
    result.draws.save("kept.nc")

Whatever program made it (CmdStan, brms, Turing, PyMC, NumPyro), a DataTree or InferenceData with the groups `posterior`
and `log_likelihood` will do. Log-likelihoods stay in the file until they are used, and are read a piece at a time.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr
from jaxtyping import Shaped

from posterase.container import SAMPLE_DIMS, UNNAMED, Computed, Container, looks_standardised
from posterase.draws import Draws, groups_of
from posterase.errors import AmbiguousRowsError, DrawsShapeError, InvalidTypeError, MissingGroupError, WarmupDrawsError
from posterase.files import PIECE_ELEMENTS, read_tree
from posterase.rows import Block, RowTable
from posterase.stored import LikelihoodBlock, StoredLikelihoods

DATA_GROUPS = ("constant_data", "observed_data")


def from_arviz(
    source: Any,
    *,
    rows: str | Sequence[str] = (),
    var_names: Sequence[str] | None = None,
    preprocessing: str | None = None,
) -> tuple[StoredLikelihoods, Draws]:
    """The draws of a file, and as much of a model as stored log-likelihoods are.

    Parameters
    ----------
    source
        A netCDF file, a zarr folder, a DataTree or an InferenceData, with the groups `posterior` and `log_likelihood`.
    rows
        The axis of the log-likelihoods that is the rows, where they have several; a list, where there are more.
    var_names
        The parameters to watch and to give out; all, where it is left out.
    preprocessing
        What was computed from all rows before the fit, in words, "x standardised" say; "none" if nothing was. The
        verdict names it, and asks where it was not said.

    Returns
    -------
    model
        Enough for `pe.Reweight` and its verdict; to move draws the model itself is needed (`pe.from_numpyro`).
    draws
        The draws, in the container that they go out in again.
    """
    groups = opened(source)
    check_sampled(groups)
    likelihoods = _likelihoods(groups)
    wanted = [rows] if isinstance(rows, str) else list(rows)
    dims = {str(name): _row_dim(str(name), values, wanted) for name, values in likelihoods.data_vars.items()}
    blocks, row_dims = _blocks(dims, likelihoods)
    row_dims = with_unnamed(row_dims, blocks, groups)
    posterior = groups["posterior"]
    names = [
        str(name)
        for name, values in posterior.data_vars.items()
        if values.dtype.kind == "f"
        and (values.size <= PIECE_ELEMENTS or not set(row_dims) & set(values.dims))
        and (var_names is None or name in var_names)
    ]
    given = Draws.from_arviz(sampled(groups), var_names=names if var_names is None else var_names)
    variables = [[name for name, dim in dims.items() if row_dims[dim] == block] for block in range(len(blocks))]
    stored = [
        LikelihoodBlock(size, [_draws_first(likelihoods[name], dims[name], given) for name in held])
        for (_, size), held in zip(blocks, variables, strict=True)
    ]
    rows_of = [Block(dim, size, tuple(held)) for (dim, size), held in zip(blocks, variables, strict=True)]
    table = labelled(rows_of, row_dims, groups)
    container = make_container(groups, names, table, row_dims, preprocessing)
    draws = given.inside(container)
    return StoredLikelihoods(stored, draws.params), draws


# --- what both bridges read


def opened(source: Any) -> dict[str, xr.Dataset]:
    """The groups of a file or a tree, with a posterior among them."""
    if isinstance(source, (str, os.PathLike)):
        source = read_tree(source)
    groups = groups_of(source)
    if not groups and not isinstance(source, xr.DataTree):
        raise InvalidTypeError(
            f"source is a {type(source).__name__}.",
            "pass a netCDF file, a zarr folder, a DataTree or an InferenceData.",
        )
    if "posterior" not in groups and "warmup_posterior" in groups:
        raise WarmupDrawsError(
            "there are draws from the warm-up only (warmup_posterior).", "sample on: warm-up draws are no posterior."
        )
    _need(groups, "posterior", "pass the file that holds the posterior draws.")
    return groups


def check_sampled(groups: Mapping[str, xr.Dataset]) -> None:
    """Refuse draws that a sampler says are from its warm-up."""
    tune = groups.get("sample_stats", xr.Dataset()).get("tune")
    if tune is not None and bool(tune.any()):
        raise WarmupDrawsError(
            f"{int(tune.sum())} of the draws are from the warm-up (sample_stats.tune).",
            "leave them out: idata.sel(draw=slice(tuning_steps, None)).",
        )


def with_unnamed(
    row_dims: Mapping[str, int], blocks: Sequence[tuple[str, int]], groups: Mapping[str, xr.Dataset]
) -> dict[str, int]:
    """Names of axes of rows, with those that nobody named and that have as many entries as there are rows.

    Programs that do not name axes (CmdStan, say) call the same rows `log_lik_dim_0`, `y_dim_0` and `mu_dim_0`. Where
    there is but one axis of rows, an unnamed axis of the same length is taken for it: rather cut than leaked.
    """
    found = dict(row_dims)
    if len(blocks) == 1:
        size = blocks[0][1]
        for group in groups.values():
            found |= {str(d): 0 for d, n in group.sizes.items() if n == size and UNNAMED.search(str(d))}
    return found


def labelled(blocks: Sequence[Block], row_dims: Mapping[str, int], groups: Mapping[str, xr.Dataset]) -> RowTable:
    """The table of rows, with coordinates and one-dimensional data as columns."""
    columns: list[dict[str, Shaped[np.ndarray, "..."]]] = [dict(block.columns) for block in blocks]
    sources = [groups[name] for name in (*DATA_GROUPS, "log_likelihood", "posterior") if name in groups]
    for group in sources:
        known = dict(group.coords.items())
        if group is groups.get("constant_data") or group is groups.get("observed_data"):
            known |= dict(group.data_vars.items())
        for name, values in known.items():
            block = row_dims.get(str(values.dims[0])) if values.ndim == 1 else None
            if block is not None and values.size == blocks[block].size:
                own = blocks[block].dim if name in row_dims else str(name)
                columns[block].setdefault(own, values.values)
    return RowTable(tuple(Block(b.dim, b.size, b.variables, found) for b, found in zip(blocks, columns, strict=True)))


def make_container(
    groups: Mapping[str, xr.Dataset],
    names: Sequence[str],
    table: RowTable,
    row_dims: Mapping[str, int],
    preprocessing: str | None,
    *,
    model: Any = None,
    computed: Computed | None = None,
    remarks: tuple[str, ...] = (),
) -> Container:
    """What draws of these parameters came in."""
    posterior = groups["posterior"]
    rest = posterior.drop_vars([name for name in posterior.data_vars if name in names])
    own = {str(dim) for name in posterior.data_vars for dim in posterior[name].dims} - set(row_dims)
    return Container(
        table=table,
        row_dims=dict(row_dims),
        groups={name: group for name, group in groups.items() if name != "posterior"},
        companions=rest,
        fitted=None,
        present=np.ones(table.n_rows, bool),
        parameter_dims=frozenset(own),
        attrs=dict(posterior.attrs),
        model=model,
        computed=computed,
        preprocessing=preprocessing,
        suspected=looks_standardised(table),
        remarks=remarks,
    )


def sampled(groups: Mapping[str, xr.Dataset]) -> xr.DataTree:
    """Draws and their weights."""
    return xr.DataTree.from_dict({name: groups[name] for name in ("posterior", "sample_stats") if name in groups})


def _need(groups: Mapping[str, xr.Dataset], name: str, advice: str) -> None:
    if name not in groups:
        raise MissingGroupError(f"there is no group {name!r}; there are {', '.join(groups) or 'none'}.", advice)


# --- log-likelihoods


def _likelihoods(groups: Mapping[str, xr.Dataset]) -> xr.Dataset:
    _need(
        groups,
        "log_likelihood",
        "store the log-likelihood of every row with the fit (pm.compute_log_likelihood, generated quantities in Stan, "
        "log_likelihood=True in arviz_base.from_numpyro), or give the model as well (pe.from_numpyro).",
    )
    found = groups["log_likelihood"]
    if not found.data_vars:
        raise MissingGroupError("the group 'log_likelihood' is empty.", "store the log-likelihood of every row in it.")
    return found


def _row_dim(name: str, values: xr.DataArray, wanted: Sequence[str]) -> str:
    if not set(SAMPLE_DIMS) <= set(values.dims):
        raise DrawsShapeError(
            f"the log-likelihood of {name} has the dimensions {values.dims}.", "it needs a chain and a draw dimension."
        )
    own = [str(dim) for dim in values.dims if dim not in SAMPLE_DIMS]
    if not own:
        raise AmbiguousRowsError(
            f"the log-likelihood of {name} is one number a draw, summed over rows.", "store one value a row."
        )
    picked = [dim for dim in own if dim in wanted] if wanted else own
    if len(picked) != 1:
        shown = ", ".join(f"{dim!r} ({values.sizes[dim]})" for dim in own)
        raise AmbiguousRowsError(
            f"the log-likelihood of {name} has the axes {shown}.",
            f"say which of them is the rows: rows={own[0]!r} (on the command line --row-dim {own[0]}).",
        )
    return picked[0]


def _draws_first(values: xr.DataArray, dim: str, draws: Draws) -> xr.Variable:
    """Axes in the order chain, draw, rows, others."""
    if (values.sizes["chain"], values.sizes["draw"]) != (draws.n_chains, draws.n_draws):
        raise DrawsShapeError(
            f"the log-likelihood of {values.name} is of {values.sizes['chain']} chains × {values.sizes['draw']} draws, "
            f"the posterior of {draws.n_chains} × {draws.n_draws}.",
            "store both at the same draws.",
        )
    return values.variable.transpose(*SAMPLE_DIMS, dim, ...)


def _blocks(dims: Mapping[str, str], likelihoods: xr.Dataset) -> tuple[list[tuple[str, int]], dict[str, int]]:
    """Axes of rows; unnamed ones of the same length are the same rows."""
    blocks: list[tuple[str, int]] = []
    row_dims: dict[str, int] = {}
    for dim in dims.values():
        size = likelihoods.sizes[dim]
        if dim in row_dims:
            continue
        twin = [i for i, (o, n) in enumerate(blocks) if n == size and UNNAMED.search(o) and UNNAMED.search(dim)]
        row_dims[dim] = twin[0] if twin else len(blocks)
        if not twin:
            blocks.append((dim, size))
    return blocks, row_dims
