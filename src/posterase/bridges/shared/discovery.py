"""Finding out which arguments of a program hold its rows, by trying.

Entries of an argument are overwritten, and only the likelihoods of the same rows may change. So a change takes the
rows' values out of the model, and does not only mask them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TypeVar

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from posterase.bridges.shared.traced_model import (
    Argument,
    BridgedModel,
    Densities,
    Draw,
    Program,
    deterministic_values,
    evaluated,
    filled,
    values_of,
)
from posterase.data.row_source import row_source
from posterase.errors import AmbiguousRowsError, CoupledRowsError, DifferentModelError, UnsupportedModelError
from posterase.model.change import SMALLEST_BUCKET
from posterase.runtime.precision import as_jax

LAGGED = (
    "In an autoregression, pass the values before as an argument of their own: before=y[:-1] beside y=y[1:]. The "
    "posterior is the same, so the draws need not be made again; an erasure then drops the rows whose covariates are "
    "gone. Where a value acts on all later ones (a moving average, GARCH), make whole series the rows (in a plate of "
    "series), or write a pe.MaskedModel."
)
"""What works for a series whose observed values are covariates of later ones."""

ORDERS = 4
"""So many orders of the rows are tried: values of single rows may be equal by chance."""

P = TypeVar("P", bound=Program)


def left_in_memory(model: BridgedModel, draw: Draw, leaves: dict[int, Array], lists: bool = False) -> tuple[str, ...]:
    """What of the removed rows may stay in the model; `lists`: some of its arguments are no arrays of numbers."""
    program, said = model.program, []
    if model.held:
        said.append(
            f"not erased from the model in memory: {', '.join(model.held)} of the removed rows: the rest depends on it"
        )
    whole = [program.arguments[i].name for i in model.constants if program.arguments[i].name not in model.held]
    if whole:
        said.append(f"arguments that are no rows stay whole in the model in memory: {', '.join(whole)}")
    sizes = {size for _, size in program.blocks}
    own = [name for name, shape in program.latents.items() if sizes & set(shape) and name not in program.row_latents]
    if lists or (not model.held and not own and not _all_from_arguments(program, draw, leaves)):
        said.append(
            "not erased from the model in memory: values of rows that are no argument with one entry a row (in a "
            "closure, a list, or text)"
        )
    return tuple(said)


def _all_from_arguments(program: Program, draw: Draw, leaves: dict[int, Array]) -> bool:
    """Whether rows that are overwritten, with their parameters, are as likely as the row that they became a copy of."""
    left = [np.arange(size) < max(1, size // 2) for _, size in program.blocks]
    rows = {n: jnp.moveaxis(draw.params[n], axis, 0) for n, (_, axis) in program.row_latents.items()}
    copied = {
        name: jnp.moveaxis(row_source(rows[name]).without(jnp.asarray(left[block])), 0, axis)
        for name, (block, axis) in program.row_latents.items()
    }
    _, values = evaluated(program, Draw({**draw.params, **copied}, draw.transforms), overwritten(program, leaves, left))
    return all(
        np.allclose(each[~mask], each[0], rtol=1e-6, atol=1e-6, equal_nan=True)
        for each, mask in zip(values, left, strict=True)
    )


def overwritten(program: Program, leaves: Mapping[int, Array], left: Sequence[np.ndarray]) -> dict[int, Array]:
    """The arguments with every row that is not left overwritten, by block."""
    return {
        i: leaf if (at := program.arguments[i]).block is None else _along(leaf, at.axis, left[at.block])
        for i, leaf in leaves.items()
    }


def _along(leaf: Array, axis: int, left: np.ndarray) -> Array:
    if axis == 0:  # each operation outside of compiled code is a program
        return filled(leaf, as_jax(left))
    return jnp.moveaxis(filled(jnp.moveaxis(leaf, axis, 0), as_jax(left)), 0, axis)


def with_arguments(program: P, one: Draw, leaves: dict[int, Array], before: Densities, shared: frozenset[str]) -> P:
    """Find which arguments hold rows, by overwriting entries and looking whose likelihood changes.

    `before` are the densities at this draw, with nothing overwritten.
    """
    unknown = shared - {argument.name for argument in program.arguments.values()}
    if unknown:
        names = ", ".join(argument.name for argument in program.arguments.values())
        raise UnsupportedModelError(f"shared names {sorted(unknown)[0]!r}.", f"the arguments are {names}.")
    if not np.isfinite(before[0]):
        raise DifferentModelError(
            f"the log prior of the first draw is {before[0]:.3g}: the model cannot have made these draws.",
            "pass the model that they were sampled from.",
        )
    values = np.concatenate(before[1])
    impossible = np.flatnonzero(np.isnan(values) | (values == -np.inf))
    if impossible.size:
        first = impossible[0]
        raise DifferentModelError(
            f"the log-likelihood of row {first} is {values[first]} at the first draw"
            + (f", and that of {impossible.size - 1} other rows is not finite either." if impossible.size > 1 else "."),
            "pass the data of the fit. Mask missing outcomes (numpyro.handlers.mask, a masked array in PyMC), with any "
            "number in their place.",
        )
    arguments = dict(program.arguments)
    for i, argument in program.arguments.items():
        if argument.name in shared:
            continue
        candidates = [
            (block, axis)
            for axis, length in enumerate(leaves[i].shape)
            for block, (dim, size) in enumerate(program.blocks)
            if length == size and (argument.dims or (None,) * leaves[i].ndim)[axis] in (None, dim)
        ]
        told = {at: _told_by(program, one, leaves, i, *at, before) for at in candidates}
        telling = [at for at, rows in told.items() if rows] or [at for at, rows in told.items() if rows is not None]
        if candidates and not telling:
            raise _coupled(program, one, leaves, i, candidates, before)
        if len({block for block, _ in telling}) > 1 and not any(told[at] for at in telling):
            axes = " or ".join(program.blocks[block][0] for block, _ in telling)
            raise AmbiguousRowsError(
                f"the argument {argument.name!r} is in no likelihood, and as long as several axes of rows: {axes}.",
                f"name its axis, leave it out of the model, or let it stay: shared={argument.name!r}.",
            )
        if telling:
            arguments[i] = Argument(argument.name, *telling[0], argument.dims)
    return dataclasses.replace(program, arguments=arguments)


def _coupled(
    program: Program,
    one: Draw,
    leaves: dict[int, Array],
    i: int,
    candidates: list[tuple[int, int]],
    before: Densities,
) -> CoupledRowsError:
    """Explain why the entries of an argument cannot be removed with their rows."""
    name = program.arguments[i].name
    if _is_observed(program, one, leaves, i):
        return CoupledRowsError(
            f"the argument {name!r} holds the observed values of a series, and the value of one row "
            "changes the likelihood of others: it is a covariate of theirs.",
            LAGGED,
        )
    if program.row_latents and any(_is_in_prior_only(program, one, leaves, i, *at, before) for at in candidates):
        own = ", ".join(program.row_latents)
        return CoupledRowsError(
            f"the argument {name!r} has an entry for each row, and changes the prior, not the likelihood: the prior of "
            f"the rows' own parameters ({own}) seems to depend on it.",
            f"keep the removed rows' entries in the model with shared={name!r}: the output does not contain them, and "
            "the verdict names them. Or fit a non-centred model, with the argument in the likelihood.",
        )
    return CoupledRowsError(
        f"the argument {name!r} has an entry for each row, and the entry of one row changes the "
        "likelihood of others, or the prior.",
        "compute what is made of several rows (means, distances, the row before) outside the model; give "
        "variables of the same rows the same plate or dims. Where removed rows' entries may stay in the model, "
        f"as the places of a Gaussian process may, say so: shared={name!r}; the verdict will name it.",
    )


def _is_in_prior_only(
    program: Program,
    one: Draw,
    leaves: dict[int, Array],
    i: int,
    block: int,
    axis: int,
    before: Densities,
) -> bool:
    """Whether overwriting half of an argument's entries changes the prior and no likelihood."""
    is_left = np.arange(program.blocks[block][1]) < max(1, program.blocks[block][1] // 2)
    prior, rows = evaluated(program, one, {**leaves, i: _along(leaves[i], axis, is_left)})
    same_rows = all(
        np.allclose(now, then, rtol=1e-9, atol=1e-9, equal_nan=True) for now, then in zip(rows, before[1], strict=True)
    )
    return same_rows and not np.isclose(prior, before[0], rtol=1e-9, atol=1e-9)


def _is_observed(program: Program, one: Draw, leaves: Mapping[int, Array], argument: int) -> bool:
    """Whether an argument holds the values of an observed site."""
    values = values_of(program, one.params, dict(leaves), tuple(site.name for site in program.sites))
    mine = np.asarray(leaves[argument])
    return any(np.array_equal(np.asarray(each), mine) for each in values.values())


def _told_by(
    program: Program,
    one: Draw,
    leaves: dict[int, Array],
    leaf: int,
    block: int,
    axis: int,
    before: Densities,
) -> bool | None:
    """Whether overwriting entries of an argument changes the likelihoods of the same rows; None: of others, too."""
    size, told = program.blocks[block][1], False
    rng = np.random.default_rng(0)
    first = rng.permutation(size) < max(1, size // 2)
    for left in (first, ~first):  # so that every row is overwritten once
        prior, rows = evaluated(program, one, {**leaves, leaf: _along(leaves[leaf], axis, left)})
        same = [np.isclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True) for a, b in zip(rows, before[1], strict=True)]
        told |= not same[block][~left].all()
        same[block] = same[block] | ~left
        if not all(each.all() for each in same) or not np.isclose(prior, before[0], rtol=1e-9, atol=1e-9):
            return None
    return told


def with_rows_found(program: P, one: Draw, leaves: dict[int, Array], whole: Densities) -> tuple[P, tuple[str, ...]]:
    """Find whether the program can be called on some rows, and which variables it computes from several; remarks.

    `whole` are the densities at this draw.
    """
    by_rows, remarks = _is_by_rows(program, one, leaves, whole)
    if not program.deterministic:
        return dataclasses.replace(program, by_rows=by_rows), remarks
    aggregates = _aggregates(program, one, leaves) if by_rows else {}
    dropped = _ordered(program, one, leaves, aggregates) if by_rows else _change_with_rows(program, one, leaves)
    left = tuple(name for name in program.deterministic if name not in dropped)
    aggregates = {name: rows for name, rows in aggregates.items() if name not in dropped}
    return dataclasses.replace(program, by_rows=by_rows, deterministic=left, aggregates=aggregates), remarks


def _is_by_rows(
    program: Program, one: Draw, leaves: dict[int, Array], whole: Densities
) -> tuple[bool, tuple[str, ...]]:
    """Whether the model, called on some rows, gives what it gives for them among all rows; and what to say if not."""
    prior, values_of_all = whole
    for places in _some_rows(program):
        try:
            prior_of_some, rows = evaluated(program, one, leaves, places)
        except Exception:  # whatever the model's own code raises on fewer rows: then it is called on all of them
            return False, ()
        if any(values.shape != at.shape for values, at in zip(rows, places, strict=True)):
            return False, ()
        same = [
            np.allclose(v, w[at], rtol=1e-9, atol=1e-9) for v, w, at in zip(rows, values_of_all, places, strict=True)
        ]
        if not all(same) or (not program.row_latents and not np.isclose(prior_of_some, prior, rtol=1e-9, atol=1e-9)):
            said = (
                "called on fewer rows the model is another one (it uses their number, say): it stays that of all rows"
            )
            return False, (said,)
    return True, ()


def _some_rows(program: Program) -> list[list[np.ndarray]]:
    """Two choices of rows of every block, of different sizes."""
    rng = np.random.default_rng(0)
    sizes = SMALLEST_BUCKET, 2 * SMALLEST_BUCKET + 1
    return [[rng.integers(size, size=some) for _, size in program.blocks] for some in sizes]


def _aggregates(program: Program, one: Draw, leaves: dict[int, Array]) -> dict[str, tuple[int, int] | None]:
    """Variables that have other values among some of the rows, with the axis of rows that they have, if any.

    A variable without an axis of rows must keep its value, and one with such an axis the entries of the same rows.
    """
    whole = deterministic_values(program, one, leaves)
    found: dict[str, tuple[int, int] | None] = {}
    for places in _some_rows(program):
        some = deterministic_values(program, one, leaves, places)
        for name in program.deterministic:
            rows = _row_axis(whole[name].shape, some[name].shape, program, places)
            expected = whole[name] if rows is None else np.take(whole[name], places[rows[0]], axis=rows[1])
            same = expected.shape == some[name].shape and np.allclose(
                expected, some[name], rtol=1e-9, atol=1e-9, equal_nan=True
            )
            if not same:
                found[name] = rows
    return found


def _row_axis(
    whole: tuple[int, ...], some: tuple[int, ...], program: Program, places: Sequence[np.ndarray]
) -> tuple[int, int] | None:
    """The block and the axis, from the end, that is as long as all rows in one case and as some in the other."""
    for axis, (before, after) in enumerate(zip(whole, some, strict=False)):
        for block, (_, size) in enumerate(program.blocks):
            if before == size and after == len(places[block]) and len(whole) == len(some):
                return block, axis - len(whole)
    return None


def _ordered(
    program: Program, one: Draw, leaves: dict[int, Array], aggregates: Mapping[str, tuple[int, int] | None]
) -> set[str]:
    """Variables that change when the rows are called in another order: they read certain rows (`y[5] - mu[5]`).

    When such a row is removed, another one has its place.
    """
    if not aggregates:
        return set()
    whole = deterministic_values(program, one, leaves)
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(ORDERS):
        places = [_moved(rng.permutation(size)) for _, size in program.blocks]
        other = deterministic_values(program, one, leaves, places)
        for name, rows in aggregates.items():
            expected = whole[name] if rows is None else np.take(whole[name], places[rows[0]], axis=rows[1])
            if expected.shape != other[name].shape or not np.allclose(
                expected, other[name], rtol=1e-5, atol=1e-6, equal_nan=True
            ):
                found.add(name)
    return found


def _moved(order: np.ndarray) -> np.ndarray:
    """An order of rows in which none is where it was: each in the place of the next one of another order."""
    places = np.empty_like(order)
    places[order] = np.roll(order, 1)
    return places


def _change_with_rows(program: Program, one: Draw, leaves: dict[int, Array]) -> set[str]:
    """Variables whose entries change with the values of other rows, for a program that is only called on all of them.

    Rows are overwritten, half of them and then the others. Entries of those that are left must stay, and there must be
    some: an axis of rows.
    """
    before = deterministic_values(program, one, leaves)
    rng = np.random.default_rng(0)
    halves = [rng.permutation(size) < max(1, size // 2) for _, size in program.blocks]
    found = set()
    for left in (halves, [~half for half in halves]):
        after = deterministic_values(program, one, overwritten(program, leaves, left))
        for name in program.deterministic:
            same = np.isclose(before[name], after[name], rtol=1e-9, atol=1e-9, equal_nan=True)
            by_row = False
            for block, (_, size) in enumerate(program.blocks):
                for axis in (at for at, length in enumerate(same.shape) if length == size):
                    by_row |= bool(np.moveaxis(same, axis, 0)[left[block]].all())
            if not same.all() and not by_row:
                found.add(name)
    return found
