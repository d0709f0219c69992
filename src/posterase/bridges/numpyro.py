"""From a NumPyro fit to a model and draws that rows can be erased from.

    model, draws = pe.from_numpyro(mcmc, *model_args, **model_kwargs)
    result = pe.erase(model, draws, rows=data["person"] == 17)
    result.draws.to_arviz()

How a model's rows are found stands in `numpyro_model`; what becomes of the container in `posterase.container`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import xarray as xr
from jaxtyping import Shaped

from posterase.bridges.arviz import axes_of, check_sampled, labelled, make_container, opened, sampled
from posterase.container import FINGERPRINT, SAMPLE_DIMS, fingerprint
from posterase.draws import Draws, groups_of
from posterase.errors import (
    DataChangedError,
    DrawsShapeError,
    InvalidOptionError,
    InvalidTypeError,
    UnsupportedModelError,
    WarmupDrawsError,
)
from posterase.extras import need
from posterase.parameters import parameter_names
from posterase.rows import Block, columns_of

if TYPE_CHECKING:
    from posterase.bridges.numpyro_model import NumPyroModel

OPTIONS = ("draws", "rows", "shared", "dims", "coords", "preprocessing")

UNCHECKED = "whether the data are those of the fit could not be checked: the draws came without observed data"


def from_numpyro(
    fitted: Any,
    *model_args: Any,
    draws: Any = None,
    rows: str | Sequence[str] = (),
    shared: str | Sequence[str] = (),
    dims: Mapping[str, Sequence[str]] | None = None,
    coords: Mapping[str, Any] | None = None,
    preprocessing: str | None = None,
    **model_kwargs: Any,
) -> tuple[NumPyroModel, Draws]:
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
    rows
        The plate whose elements are the rows, where observed sites are in several; a list, where there are more.
    shared
        Arguments of which removed rows' entries may stay in the model, since other rows are computed from them.
    dims, coords
        Names of axes, and their labels, as in ArviZ. Without them axes are named after their plates.
    preprocessing
        What was computed from all rows before the fit, in words, "x standardised" say; "none" if nothing was. The
        verdict names it, and asks where it was not said.

    Returns
    -------
    model
        For `pe.erase` and every eraser. Deterministic sites are not parameters: they come out computed anew.
    draws
        The draws, in the container that they go out in again.
    """
    need("numpyro", "from_numpyro", "numpyro")
    from numpyro.infer import MCMC

    from posterase.bridges.numpyro_discovery import discover

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
    check_sampled(groups)
    posterior = groups["posterior"] = groups["posterior"].transpose(*SAMPLE_DIMS, ...)

    def one(latents: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        _check_latents(posterior, latents)
        return {name: posterior[name].values[0, 0] for name in latents}

    plates, stay = ([each] if isinstance(each, str) else list(each) for each in (rows, shared))
    model, remarks = discover(function, args, kwargs, one, plates, stay, frozenset(map(str, posterior.data_vars)))
    remarks += _check_data(model.observed(one(model.program.latents)), groups)
    names = list(model.program.latents)
    computed = [name for name in model.program.deterministic if name in posterior]
    groups["posterior"] = posterior[[*names, *computed]]
    unknown = [str(name) for name in posterior.data_vars if name not in groups["posterior"]]
    if unknown:
        remarks += (f"left out of the posterior, since the model does not compute them: {', '.join(unknown)}",)
    own = frozenset(
        str(dim) for name in names if name not in model.program.row_latents for dim in posterior[name].dims[2:]
    )
    axes = axes_of(_row_dims(model, groups), model.program.blocks, groups, own)
    container = make_container(
        groups,
        names,
        labelled(_blocks(model), axes, groups),
        axes,
        preprocessing,
        model=model,
        computed=lambda kept, params: kept.computed(params),
        remarks=remarks,
    )
    return model, Draws.from_arviz(sampled(groups), var_names=names).inside(container)


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
        raise WarmupDrawsError(
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
        named = _plate_dims(function, args, kwargs) if dims is None else dims
        fitting = {n: d for n, d in named.items() if n in draws and len(d) == np.ndim(draws[n]) - len(SAMPLE_DIMS)}
        draws = Draws(dict(draws), dims=fitting, coords=coords)
    if isinstance(draws, Draws):
        draws = draws.to_arviz()
    if isinstance(draws, xr.Dataset):
        draws = xr.DataTree.from_dict({"posterior": draws})
    return opened(draws)


def _plate_dims(
    function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Mapping[str, Sequence[str]]:
    """Axes named after their plates, as ArviZ names them."""
    from arviz_base.io_numpyro import infer_dims

    try:
        return infer_dims(function, args, kwargs)
    except Exception:  # it traces the whole model, which not every model allows; then axes have no names
        return {}


def _check_latents(posterior: xr.Dataset, latents: Mapping[str, tuple[int, ...]]) -> None:
    from posterase.bridges.numpyro_model import check_parameters

    given = {str(name): values.shape[2:] for name, values in posterior.data_vars.items()}
    if any(given.get(name) != shape for name, shape in latents.items()):
        check_parameters(given, latents)


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
        if before is not now and not _same(np.asarray(before), np.asarray(now)):
            raise _changed(f"argument {name}", np.asarray(before), np.asarray(now))


def _bound(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by name, however they were passed."""
    try:
        bound = inspect.signature(function).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return {**{str(i): each for i, each in enumerate(args)}, **kwargs}
    bound.apply_defaults()
    return {name: value for name, value in bound.arguments.items() if value is not None}


def _same(before: Shaped[np.ndarray, "..."], now: Shaped[np.ndarray, "..."]) -> bool:
    """Whether arrays hold the same: real numbers up to float32, which one of them may have been through."""
    if before.dtype.kind == "f" and now.dtype.kind == "f":
        before, now = before.astype(np.float32), now.astype(np.float32)
    return np.array_equal(before, now, equal_nan=before.dtype.kind == "f" and now.dtype.kind == "f")


def _check_data(observed: Mapping[str, Shaped[np.ndarray, "..."]], groups: Mapping[str, xr.Dataset]) -> tuple[str, ...]:
    """The observed values are those that came with the draws; what to say where that cannot be known."""
    stored = groups.get("observed_data")
    digest = groups["posterior"].attrs.get(FINGERPRINT)
    if stored is not None:
        for name, now in observed.items():
            if name in stored:
                before = stored[name].values
                if not _same(before, now):
                    raise _changed(f"observed variable {name}", before, now)
        return () if set(observed) <= set(stored.data_vars) else (UNCHECKED,)
    if digest is None:
        return (UNCHECKED,)
    if digest != fingerprint(observed):
        raise DataChangedError(
            "the observed data are not those that the draws belong to: their fingerprints differ.",
            "pass the data of the fit; after an erasure, without the removed rows.",
        )
    return ()


def _changed(what: str, before: Shaped[np.ndarray, "..."], now: Shaped[np.ndarray, "..."]) -> DataChangedError:
    if before.shape != now.shape:
        said = f"has the shape {now.shape}, and had {before.shape}"
    else:
        said = f"differs in {int(np.sum(before.astype(np.float32) != now.astype(np.float32)))} of {now.size} values"
    return DataChangedError(
        f"the data changed since the fit: the {what} {said}.", "pass the data that the draws were fitted to."
    )


def _row_dims(model: NumPyroModel, groups: Mapping[str, xr.Dataset]) -> dict[str, int]:
    """The names that axes of rows go by: of their plates, and wherever a site's own axis has another."""
    program = model.program
    found = {dim: i for i, (dim, _) in enumerate(program.blocks)}
    for site in program.sites:
        for group, axis in (("observed_data", site.value_axis), ("posterior_predictive", site.value_axis)):
            if site.name in groups.get(group, ()):
                found.setdefault(str(groups[group][site.name].dims[axis]), site.block)
        if site.name in groups.get("log_likelihood", ()):
            found.setdefault(str(groups["log_likelihood"][site.name].dims[site.axis]), site.block)
    for name, (block, axis) in program.row_latents.items():
        found.setdefault(str(groups["posterior"][name].dims[axis]), block)
    return found


def _blocks(model: NumPyroModel) -> list[Block]:
    """The axes of rows, with the arguments that hold one number a row as columns."""
    program = model.program
    columns: list[dict[str, Any]] = [{} for _ in program.blocks]
    for i, leaf in model.data.items():
        argument = program.arguments[i]
        assert argument.block is not None
        columns[argument.block] |= columns_of(argument.name, np.asarray(leaf))
    for name, leaf in model.held.items():
        for block, (_, size) in enumerate(program.blocks):
            if leaf.shape == (size,):
                columns[block].setdefault(name, np.asarray(leaf))
    variables = [tuple(site.name for site in program.sites if site.block == i) for i in range(len(program.blocks))]
    return [Block(dim, size, variables[i], columns[i]) for i, (dim, size) in enumerate(program.blocks)]


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
