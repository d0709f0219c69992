"""From a file by ArviZ's schema, and nothing else: stored log-likelihoods are enough to reweight.

    model, draws = pe.from_arviz("fit.nc")
    result = pe.erase(model, draws, rows='county == "ANOKA"')
    result.draws.save("kept.nc")

Whatever program made it (CmdStan, brms, Turing, PyMC, NumPyro), a DataTree or InferenceData with the groups `posterior`
and `log_likelihood` will do. Log-likelihoods stay in the file until they are used, and are read a piece at a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import xarray as xr

from posterase.bridges.shared.derived_variables import without_sums_of_likelihoods
from posterase.bridges.shared.groups import (
    Axes,
    axes_of,
    check_sampled,
    labelled,
    make_container,
    opened,
    require_group,
    sampled,
)
from posterase.bridges.shared.linear_relations import Summaries, without_functions_of_data
from posterase.bridges.shared.row_frames import describe_rows, read_frames
from posterase.data.parameters import check_known
from posterase.data.selection import Block
from posterase.draws.draws import Draws
from posterase.draws.inference_groups import SAMPLE_DIMS, UNNAMED
from posterase.errors import AmbiguousRowsError, DrawsShapeError, InputFileError, InvalidTypeError
from posterase.model.stored import LikelihoodBlock, StoredLikelihoods

MAY_BE_DATA = (
    "left out of the posterior, since they are exactly linear in other variables with numbers that may be from all "
    "rows: {} (where they are not, keep them with var_names=)"
)


def from_arviz(
    source: Any,
    *,
    row_dim: str | Sequence[str] = (),
    var_names: Sequence[str] | None = None,
    preprocessing: str | None = None,
    frame: Any = None,
) -> tuple[StoredLikelihoods, Draws]:
    """The draws of a file, and as much of a model as stored log-likelihoods are.

    Parameters
    ----------
    source
        A netCDF file, a zarr folder, a DataTree or an InferenceData, with the groups `posterior` and `log_likelihood`.
    row_dim
        The axis of the log-likelihoods that is the rows, where they have several; a list, where there are more.
    var_names
        The parameters whose effective draws are watched. Left out: all real variables, but those of single rows, and
        those that were computed from others with the data (log densities, an intercept for covariates that are not
        centred, a variable plus a number that is not a small fraction), which do not come out after an erasure.
    preprocessing
        What was computed from all rows before the fit, in words, "x standardised" say; "none" if nothing was. The
        verdict names it, and asks where it was not said.
    frame
        What is known about the rows beside the model's data, as columns that `pe.erase(…, rows=…)` can name: a
        DataFrame (pandas, polars) or a dict of columns with one row per row of the model, in the order of the fit; for
        several axes of rows, a dict of these by axis. It is used in memory only, and does not come out.

    Returns
    -------
    model
        Enough for `pe.Reweight` and its verdict; to move draws the model itself is needed (`pe.from_numpyro`).
    draws
        The draws, in the container that they go out in again.
    """
    frames = read_frames(frame)
    groups = opened(source)
    check_sampled(groups)
    likelihoods = _likelihoods(groups)
    wanted = [row_dim] if isinstance(row_dim, str) else list(row_dim)
    dims = {str(name): _row_dim(str(name), values, wanted) for name, values in likelihoods.data_vars.items()}
    blocks, named = _blocks(dims, likelihoods)
    axes = axes_of(named, blocks, groups, frozenset())
    names = _parameters(groups["posterior"], axes, var_names)
    given = Draws.from_arviz(sampled(groups), var_names=names)
    variables = [[name for name, dim in dims.items() if named[dim] == block] for block in range(len(blocks))]
    stored = [
        LikelihoodBlock(size, [_draws_first(likelihoods[name], dims[name], given) for name in held])
        for (_, size), held in zip(blocks, variables, strict=True)
    ]
    if var_names is None:
        total = sum((block.total(block.rows) for block in stored), np.zeros((given.n_chains, given.n_draws)))
        names = without_sums_of_likelihoods(names, groups["posterior"], total)
    rows_of = [Block(dim, size, tuple(held)) for (dim, size), held in zip(blocks, variables, strict=True)]
    table = labelled(rows_of, axes, groups)
    remarks: tuple[str, ...] = ()
    if var_names is None:
        before, names = names, without_functions_of_data(names, groups["posterior"], Summaries.of(table))
        linear = [name for name in before if name not in names]
        remarks = (MAY_BE_DATA.format(", ".join(linear)),) if linear else ()
        given = Draws.from_arviz(sampled(groups), var_names=names)
    container = make_container(groups, names, table, axes, preprocessing, remarks=remarks)
    draws = describe_rows(given.inside(container), frames)
    return StoredLikelihoods(stored, draws.params), draws


def _parameters(posterior: xr.Dataset, axes: Axes, var_names: Sequence[str] | None) -> list[str]:
    """The variables to weigh: real ones, without those of single rows, which go along beside them."""
    if isinstance(var_names, str):
        var_names = [var_names]
    if var_names is not None:
        check_known(var_names, [str(name) for name in posterior.data_vars], "var_names")
        return list(var_names)
    real = [str(name) for name, values in posterior.data_vars.items() if values.dtype.kind == "f"]
    names = [name for name in real if not {*axes.rows, *axes.unknown} & set(posterior[name].dims)]
    if not names:
        raise InvalidTypeError(
            f"the posterior has no real parameters but of single rows: {', '.join(map(str, posterior.data_vars))}.",
            "name those to weigh: var_names=[…].",
        )
    return names


def _likelihoods(groups: Mapping[str, xr.Dataset]) -> xr.Dataset:
    require_group(
        groups,
        "log_likelihood",
        "store the log-likelihood of every row with the fit (pm.compute_log_likelihood, generated quantities in Stan, "
        "log_likelihood=True in arviz_base.from_numpyro), or give the model as well (pe.from_numpyro).",
    )
    found = groups["log_likelihood"]
    if not found.data_vars:
        raise InputFileError("the group 'log_likelihood' is empty.", "store the log-likelihood of every row in it.")
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
            f"say which of them is the rows: row_dim={own[0]!r} (on the command line --row-dim {own[0]})"
            f"{'' if not wanted else '; ' + ', '.join(map(repr, wanted)) + ' is none'}.",
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
