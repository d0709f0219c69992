"""From a NumPyro fit to a model and draws that rows can be erased from.

    model, draws = pe.from_numpyro(mcmc, *model_args, **model_kwargs)
    result = pe.erase(model, draws, rows=data["person"] == 17)
    result.draws.to_arviz()

How a model's rows are found stands in `numpyro_discovery`; what becomes of the container in
`posterase.draws.inference_groups`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import xarray as xr

from posterase.bridges.shared.assembly import Posterior, changed, same
from posterase.bridges.shared.groups import opened
from posterase.bridges.shared.row_frames import describe_rows, read_frames
from posterase.data.parameters import parameter_names
from posterase.draws.draws import Draws, groups_of
from posterase.draws.inference_groups import SAMPLE_DIMS
from posterase.errors import (
    DataChangedError,
    DifferentModelError,
    DrawsShapeError,
    InvalidOptionError,
    InvalidTypeError,
    UnsupportedModelError,
)
from posterase.runtime.garbage import rare_collections
from posterase.runtime.optional import need

if TYPE_CHECKING:
    from posterase.bridges.shared.traced_model import BridgedModel

OPTIONS = ("draws", "row_dim", "shared", "dims", "coords", "preprocessing", "frame")


@rare_collections()
def from_numpyro(
    fitted: Any,
    *model_args: Any,
    draws: Any = None,
    row_dim: str | Sequence[str] = (),
    shared: str | Sequence[str] = (),
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    preprocessing: str | None = None,
    frame: Any = None,
    **model_kwargs: Any,
) -> tuple[BridgedModel, Draws]:
    """The model and the draws of a NumPyro fit.

    Parameters
    ----------
    fitted
        An `MCMC` object that has run; or the model, with its draws in `draws`.
    *model_args, **model_kwargs
        What the model is called with. An `MCMC` object remembers what it was run with: leave them out, or give them
        again to have them compared.
    draws
        Draws of the model, where `fitted` is not an `MCMC` object: a DataTree, InferenceData or file by ArviZ's
        schema, `pe.Draws`, or a dict of arrays `(chain, draw, …)` (`mcmc.get_samples(group_by_chain=True)`).
    row_dim
        The plate whose elements are the rows, where observed sites are in several; a list, where there are more.
    shared
        Arguments of which removed rows' entries may stay in the model, since other rows are computed from them.
    dims, coords
        Names of axes, and their labels, as in ArviZ. Without them axes are named after their plates.
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
        For `pe.erase` and every method. Deterministic sites are not parameters: they come out computed anew.
    draws
        The draws, in the container that they go out in again.
    """
    need("numpyro", "from_numpyro", "numpyro")
    from numpyro.infer import MCMC

    from posterase.bridges.numpyro.discovery import discover

    frames = read_frames(frame)
    function: Callable[..., Any]
    if isinstance(fitted, MCMC):
        if draws is not None:
            raise InvalidOptionError("there are draws, and an MCMC object with its own.", "pass one of them.")
        function = fitted.sampler.model
        groups, args, kwargs = _from_mcmc(fitted, model_args, model_kwargs, dims, coords)
    else:
        if not callable(fitted):
            raise InvalidTypeError(
                f"fitted is {fitted!r} ({type(fitted).__name__}).", "pass an MCMC object, or a model and its draws."
            )
        function, args, kwargs = fitted, model_args, model_kwargs
        _check_no_collision(function)
        groups = _from_draws(draws, function, args, kwargs, dims, coords)
    found = Posterior(groups)
    plates, stay = ([each] if isinstance(each, str) else list(each) for each in (row_dim, shared))
    model, remarks = discover(function, args, kwargs, found.one, plates, stay, found.names)
    return model, describe_rows(found.inside(model, remarks, preprocessing), frames)


# --- draws


def _from_mcmc(
    mcmc: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dims: Mapping[str, Sequence[str]] | None,
    coords: Mapping[str, Any] | None,
) -> tuple[dict[str, xr.Dataset], tuple[Any, ...], dict[str, Any]]:
    """The groups of a fit, and the arguments that it was run with."""
    from arviz_base import from_numpyro as to_tree

    if mcmc.last_state is None:
        raise DrawsShapeError("the MCMC object has not run.", "call mcmc.run(key, …) first.")
    if mcmc.post_warmup_state is mcmc.last_state:
        raise DifferentModelError(
            "the MCMC object has been warmed up and not run: its draws, if any, are from the warm-up.",
            "call mcmc.run(key, …) after mcmc.warmup(key, …).",
        )
    if mcmc.sampler.model is None:
        raise UnsupportedModelError(
            "the MCMC object has a potential_fn instead of a model, whose rows nobody can tell apart.",
            "write it as a pe.Model, and wrap the draws: pe.Draws(mcmc.get_samples(group_by_chain=True)).",
        )
    if args or kwargs:
        _check_same(mcmc.sampler.model, (mcmc._args, mcmc._kwargs), (args, kwargs))
    _check_names(mcmc.get_samples())
    named = _plate_dims(mcmc.sampler.model, mcmc._args, mcmc._kwargs) if dims is None else dims
    tree = to_tree(
        mcmc, dims={name: list(each) for name, each in named.items()}, coords=None if coords is None else dict(coords)
    )
    return groups_of(tree), mcmc._args, mcmc._kwargs


def _from_draws(
    draws: Any,
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dims: Mapping[str, Sequence[str]] | None,
    coords: Mapping[str, Any] | None,
) -> dict[str, xr.Dataset]:
    """The groups of draws that came apart from their model."""
    if draws is None:
        raise InvalidOptionError("there are no draws.", "pass the MCMC object, or draws=… with the model.")
    if isinstance(draws, Mapping) and not isinstance(draws, (xr.DataTree, xr.Dataset)):
        _check_names(draws)
        named = _plate_dims(function, args, kwargs) if dims is None else dims
        fitting = {n: d for n, d in named.items() if n in draws and len(d) == np.ndim(draws[n]) - len(SAMPLE_DIMS)}
        draws = Draws(dict(draws), dims=fitting, coords=coords)
    if isinstance(draws, Draws):
        draws = draws.to_arviz(include_weights=True)
    if isinstance(draws, xr.Dataset):
        draws = xr.DataTree.from_dict({"posterior": draws})
    return opened(draws)


def _check_names(names: Iterable[str]) -> None:
    """Names that ArviZ can store: `handlers.scope` puts slashes into them, which are paths there."""
    for name in names:
        if "/" in str(name):
            raise UnsupportedModelError(
                f"site {name!r} has a slash in its name, which ArviZ cannot store.",
                "give handlers.scope another divider (divider='.'), and pass that model with renamed draws: "
                "draws={name.replace('/', '.'): values for name, values in samples.items()}.",
            )


def _plate_dims(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Mapping[str, Sequence[str]]:
    """Axes named after their plates, as ArviZ names them."""
    from arviz_base.io_numpyro import infer_dims

    try:
        return infer_dims(function, args, kwargs)
    except Exception:  # it traces the whole model, which not every model allows; then axes have no names
        return {}


# --- data


def _check_same(function: Callable[..., Any], fitted: tuple[Any, Any], given: tuple[Any, Any]) -> None:
    """The arguments given are those of the fit, up to the precision that they are used in."""
    theirs, ours = (_bound(function, *each) for each in (fitted, given))
    if theirs.keys() != ours.keys() or str(jax.tree.structure(theirs)) != str(jax.tree.structure(ours)):
        raise DataChangedError(
            "the model's arguments are not those that it was fitted with: others, or of another kind.",
            "leave them out: the MCMC object remembers them.",
        )
    for name, before, now in zip(parameter_names(theirs), *map(jax.tree.leaves, (theirs, ours)), strict=True):
        if before is not now and not same(np.asarray(before), np.asarray(now)):
            raise changed(f"argument {name}", np.asarray(before), np.asarray(now))


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, however they were passed."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {**{str(i): each for i, each in enumerate(args)}, **kwargs}
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if value is not None}


# --- the model's arguments


def _check_no_collision(function: Callable[..., Any]) -> None:
    """An argument of the model that is called like one of ours would never reach it."""
    try:
        names = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return
    for name in OPTIONS:
        if name in names:
            raise InvalidOptionError(
                f"the model has an argument {name!r}, which is also an option of from_numpyro.",
                f"bind it first: functools.partial(model, {name}=…).",
            )
