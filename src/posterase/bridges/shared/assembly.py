"""Draws beside their program: what came with them is checked, cut and kept, whichever library made them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Shaped

from posterase.bridges.shared.groups import Axes, axes_of, check_sampled, labelled, make_container, sampled
from posterase.bridges.shared.linear_relations import Summaries, without_functions_of_data
from posterase.bridges.shared.traced_model import BridgedModel, check_parameters, row_values
from posterase.data.selection import Block, RowTable, columns_of
from posterase.draws.draws import Draws
from posterase.draws.inference_groups import FINGERPRINT, OF_DRAWS, SAMPLE_DIMS, fingerprint
from posterase.errors import DataChangedError

UNCHECKED = "the identity of the rows was not checked: the draws came without observed data and log-likelihoods"

FIXED_NUMBERS = (
    "left out of the posterior, since they are exactly linear in other variables with numbers that are no small "
    "fractions, and that may be from all rows: {} (compute them from the draws that come out and the kept rows; or in "
    "the model, from arguments with one entry per row)"
)

LIKELIHOOD_RTOL, LIKELIHOOD_ATOL = 5e-3, 2e-2
"""How far a log-likelihood may be from the stored one, which was computed in float32 or by another program."""


class Posterior:
    """The groups of a fit, with its draws among them."""

    def __init__(self, groups: Mapping[str, xr.Dataset]):
        check_sampled(groups)
        self.draws = groups["posterior"].transpose(*SAMPLE_DIMS, ...)
        self.groups = {**groups, "posterior": self.draws}

    @property
    def names(self) -> frozenset[str]:
        """Of everything that there are draws of."""
        return frozenset(map(str, self.draws.data_vars))

    def one(self, latents: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
        """The parameters of one draw; draws of another model are refused."""
        given = {str(name): values.shape[2:] for name, values in self.draws.data_vars.items()}
        if any(given.get(name) != shape for name, shape in latents.items()):
            check_parameters(given, latents)
        return {name: self.draws[name].values[0, 0] for name in latents}

    def inside(self, model: BridgedModel, remarks: tuple[str, ...], preprocessing: str | None) -> Draws:
        """The draws of a model's parameters, in the container that they go out in again."""
        program, posterior = model.program, self.draws
        one = self.one(program.latents)
        unchecked = check_data(model.observed(one), self.groups)
        _check_arguments(model, self.groups)
        remarks += () if _check_log_likelihoods(model, one, self.groups) else unchecked
        names = list(program.latents)
        computed = [name for name in program.deterministic if name in posterior]
        unknown = [str(name) for name in posterior.data_vars if name not in (*names, *computed)]
        if unknown:
            remarks += (
                "left out of the posterior, since the model does not compute them, or not from the kept rows alone "
                f"(they depend on the order or the number of the rows): {', '.join(unknown)}",
            )
        groups = {**self.groups, "posterior": posterior[[*names, *computed]]}
        own = frozenset(
            str(dim) for name in names if name not in program.row_latents for dim in posterior[name].dims[2:]
        )
        axes = axes_of(_row_dims(model, groups), program.blocks, groups, own)
        table = labelled(_blocks(model), axes, groups)
        fixed = [name for name in computed if name not in program.aggregates]
        groups, told = without_fixed_numbers(groups, names, fixed, axes, table)
        remarks += told
        container = make_container(
            groups,
            names,
            table,
            axes,
            preprocessing,
            model=model,
            computable=_computable(model, groups),
            remarks=remarks,
        )
        return Draws.from_arviz(sampled(groups), var_names=names).inside(container)


def without_fixed_numbers(
    groups: Mapping[str, xr.Dataset], parameters: Sequence[str], computed: Sequence[str], axes: Axes, table: RowTable
) -> tuple[dict[str, xr.Dataset], tuple[str, ...]]:
    """Leave out variables that the model computes with numbers from elsewhere than its arguments; and what to say.

    A number that was made from all rows before the fit (`centre = float(y.mean())`, and `mu + centre` in the model)
    stays what it was when rows are removed.

    Parameters
    ----------
    groups
        What came with the draws.
    parameters
        The model's parameters, which stay.
    computed
        Variables that it computes from these, and from nothing of the rows that it is called with.
    axes, table
        The rows. Variables along them are no candidates.
    """
    posterior = groups["posterior"]
    of_rows = {*axes.rows, *axes.unknown}
    candidates, first = (
        [name for name in names if not of_rows & set(posterior[name].dims)] for names in (computed, parameters)
    )
    if not candidates:
        return dict(groups), ()
    kept = without_functions_of_data(candidates, posterior, Summaries.of(table), first)
    dropped = [name for name in candidates if name not in kept]
    if not dropped:
        return dict(groups), ()
    return {**groups, "posterior": posterior.drop_vars(dropped)}, (FIXED_NUMBERS.format(", ".join(dropped)),)


def _computable(model: BridgedModel, groups: Mapping[str, xr.Dataset]) -> dict[str, frozenset[str]]:
    """The variables that the model computes again at moved draws, by group."""
    found = {}
    for group in ("posterior", *OF_DRAWS):
        stored = groups.get(group, xr.Dataset()).data_vars.items()
        shapes = {str(name): values.transpose(*SAMPLE_DIMS, ...).shape[2:] for name, values in stored}
        found[group] = model.computable(group, shapes) if shapes else frozenset()
    return found


def _check_arguments(model: BridgedModel, groups: Mapping[str, xr.Dataset]) -> None:
    """Arrays in the model are those of the same name that were stored with the draws."""
    stored = groups.get("constant_data", xr.Dataset())
    for i, argument in model.program.arguments.items():
        if argument.name in stored:
            before = stored[argument.name].values
            now = np.moveaxis(np.asarray(model.data[i]), 0, argument.axis) if i in model.data else model.constants[i]
            if not same(before, np.asarray(now)):
                raise changed(f"data {argument.name}", before, np.asarray(now))


def _check_log_likelihoods(model: BridgedModel, one: Mapping[str, Any], groups: Mapping[str, xr.Dataset]) -> bool:
    """Check that stored log-likelihoods are the model's, row by row, which sees another order of the rows.

    Whether there were any for all rows.
    """
    stored = groups.get("log_likelihood", xr.Dataset())
    sites = model.program.sites
    shapes = {str(name): values.transpose(*SAMPLE_DIMS, ...).shape[2:] for name, values in stored.data_vars.items()}
    comparable = model.computable("log_likelihood", shapes)
    if not comparable:
        return False
    params = {name: jnp.asarray(leaf) for name, leaf in one.items()}
    complete = True
    now = np.split(row_values(model, params)[1], np.cumsum([size for _, size in model.program.blocks])[:-1])
    for block, (dim, size) in enumerate(model.program.blocks):
        own = [site for site in sites if site.block == block]
        if not all(site.name in comparable for site in own):
            complete = False
            continue
        before = np.zeros(size)
        for site in own:
            first = stored[site.name].transpose(*SAMPLE_DIMS, ...).values[0, 0].astype(np.float64)
            before += np.moveaxis(first, site.axis, 0).reshape(size, -1).sum(axis=1)
        apart = ~np.isclose(now[block], before, rtol=LIKELIHOOD_RTOL, atol=LIKELIHOOD_ATOL, equal_nan=True)
        if apart.any():
            raise DataChangedError(
                f"the log-likelihoods stored with the draws are not those of this model: {int(apart.sum())} of {size} "
                f"values along {dim!r} differ.",
                "pass the model and the data of the fit, rows in the same order.",
            )
    return complete


def check_data(observed: Mapping[str, Shaped[np.ndarray, "..."]], groups: Mapping[str, xr.Dataset]) -> tuple[str, ...]:
    """The observed values are those that came with the draws; what to say where that cannot be known."""
    stored = groups.get("observed_data")
    digest = groups["posterior"].attrs.get(FINGERPRINT)
    if stored is not None:
        for name, now in observed.items():
            if name in stored:
                before = stored[name].values
                if not same(before, now):
                    raise changed(f"observed variable {name}", before, now)
        return () if set(observed) <= set(stored.data_vars) else (UNCHECKED,)
    if digest is None:
        return (UNCHECKED,)
    if digest != fingerprint(observed):
        raise DataChangedError(
            "the observed data are not those that the draws belong to: their fingerprints differ.",
            "pass the data of the fit; after an erasure, without the removed rows.",
        )
    return ()


def same(before: Shaped[np.ndarray, "..."], now: Shaped[np.ndarray, "..."]) -> bool:
    """Whether arrays hold the same: real numbers up to float32, which one of them may have been through."""
    if before.dtype.kind == "f" and now.dtype.kind == "f":
        before, now = before.astype(np.float32), now.astype(np.float32)
    return np.array_equal(before, now, equal_nan=before.dtype.kind == "f" and now.dtype.kind == "f")


def changed(what: str, before: Shaped[np.ndarray, "..."], now: Shaped[np.ndarray, "..."]) -> DataChangedError:
    """What to raise where data are not those of the fit."""
    if before.shape != now.shape:
        said = f"has the shape {now.shape}, and had {before.shape}"
    else:
        said = f"differs in {int(np.sum(before.astype(np.float32) != now.astype(np.float32)))} of {now.size} values"
    return DataChangedError(
        f"the data changed since the fit: the {what} {said}.", "pass the data that the draws were fitted to."
    )


def _row_dims(model: BridgedModel, groups: Mapping[str, xr.Dataset]) -> dict[str, int]:
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


def _blocks(model: BridgedModel) -> list[Block]:
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
