"""Finding out about a PyMC model: its variables, which axes of them are rows, which arrays hold the rows.

Observed variables have one likelihood per row along one of their axes. A Potential is part of the prior, unless it has
an axis of the same rows. Outcomes with gaps are rows like all others: PyMC's parameters in the place of the missing
values stay in the prior.

What cannot be erased from is refused by the name of the variable.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Array
from pymc.model.transform.conditioning import remove_value_transforms
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import AdvancedSubtensor, AdvancedSubtensor1

from posterase.bridges.pymc.gaps import Gaps, gaps_of
from posterase.bridges.pymc.model import (
    IN_PYTHON,
    PyMCProgram,
    array_value,
    is_number,
    not_compiled,
    transforms_of,
    with_function,
)
from posterase.bridges.shared.discovery import left_in_memory, overwritten, with_arguments, with_rows_found
from posterase.bridges.shared.traced_model import (
    Argument,
    BridgedModel,
    Draw,
    Params,
    Program,
    Site,
    evaluated,
    filled,
    log_probs_of,
    values_of,
)
from posterase.errors import AmbiguousRowsError, CoupledRowsError, UnsupportedModelError

SERIES = ("AutoRegressive", "GARCH11", "RandomWalk", "EulerMaruyama")
"""PyMC's distributions of whole series."""


class Discovered(NamedTuple):
    """What is known of a model."""

    model: BridgedModel
    remarks: tuple[str, ...]
    """What every verdict must say."""
    gaps: tuple[Gaps, ...]
    """Variables whose missing values are parameters."""


class Term(NamedTuple):
    """A variable, or a Potential, with log densities along an axis of rows."""

    name: str
    site: str
    """The name of its densities."""
    density: Any
    shape: tuple[int, ...]
    """Of its values."""


class Graphs(NamedTuple):
    """A model on the parameters' own scales, and the graphs of its densities and values by the name of the variable."""

    model: Any
    inputs: dict[str, Any]
    """Parameters."""
    shapes: dict[str, tuple[int, ...]]
    """Of the parameters."""
    densities: dict[str, Any]
    deterministic: dict[str, Any]
    values: dict[str, Any]
    """Observed values of variables without gaps."""
    gaps: tuple[Gaps, ...]
    value_arrays: tuple[Any, ...]
    """Arrays of observed values."""

    @property
    def outputs(self) -> list[Any]:
        """All of them, in the order in which a program returns them."""
        return [*self.densities.values(), *self.deterministic.values(), *self.values.values()]

    @property
    def pinned(self) -> set[int]:
        """The outputs that do not change with the rows: densities of missing values."""
        return {list(self.densities).index(each.unobserved) for each in self.gaps}


def discover(
    model: Any,
    params: Callable[[Mapping[str, tuple[int, ...]]], Mapping[str, Any]],
    row_dim: Sequence[str],
    shared: Sequence[str],
) -> Discovered:
    """The program of a model, its rows and the arrays that hold them; and what is to be said of it.

    `params` gives the parameters of one draw when it is told which names and shapes the model has; `row_dim` names
    dimensions, `shared` arrays that removed rows may stay in. The model has passed `check_variables`.
    """
    graphs = _graphs_of(model)
    one = {name: jnp.asarray(leaf) for name, leaf in params(graphs.shapes).items()}
    potentials = [
        Term(name, name, density, _shape_at(density, graphs.inputs, one))
        for name, density in ((each.name, graphs.densities[each.name]) for each in model.potentials)
    ]
    sites, blocks = _rows_of(graphs.model, _observed_terms(graphs, model.observed_RVs), potentials, row_dim)
    arrays = _arrays(graphs, blocks)
    program = PyMCProgram(
        function=not_compiled,
        densities_of=tuple(graphs.densities),
        values_of=(*graphs.deterministic, *graphs.values),
        arguments={
            i: Argument(name, None, 0, _dims(graphs.model, arrays[i]))
            for i, name in enumerate(_names(graphs.model, arrays))
        },
        latents=graphs.shapes,
        row_latents=_row_latents(graphs.model, list(graphs.inputs), blocks),
        deterministic=tuple(graphs.deterministic),
        aggregates={},
        sites=sites,
        blocks=blocks,
        frozen={},
        by_rows=False,
    )
    draw = Draw(one, transforms_of(model))
    inputs = list(graphs.inputs.values())
    program, leaves = with_function(program, inputs, dict(enumerate(arrays)), graphs.outputs, graphs.pinned, one)
    in_prior = [each.name for each in potentials if each.name not in {site.name for site in sites}]
    _check_potentials(program, draw, leaves, in_prior, shared)
    densities = evaluated(program, draw, leaves)
    program = with_arguments(program, draw, leaves, densities, frozenset(shared))
    _check_observed(program, draw, leaves)
    program, remarks = with_rows_found(program, draw, leaves, densities)
    found = BridgedModel(program, leaves, draw.transforms)
    remarks += (*left_in_memory(found, draw, leaves), *_remarks(graphs, program, arrays, in_prior))
    return Discovered(found, remarks, graphs.gaps)


def _graphs_of(model: Any) -> Graphs:
    plain = _on_own_scales(model)
    free, observed = _variables(plain, model.free_RVs), _variables(plain, model.observed_RVs)
    terms = [*free, *observed, *_variables(plain, model.potentials)]
    densities = _by_name(terms, plain.logp(vars=terms, sum=False, jacobian=False))
    deterministic = _by_name(plain.deterministics, plain.replace_rvs_by_values(plain.deterministics))
    values = {each.name: plain.rvs_to_values[each] for each in observed}
    _check_no_chance([*densities.values(), *deterministic.values(), *values.values()])
    gaps = gaps_of(plain, free)
    arrays = list(values.values())
    for each in gaps:
        densities, deterministic, array = each.fill(densities, deterministic)
        arrays.append(array)
        del values[each.observed]  # the variable that joins them with the missing ones has the values
    known = plain.eval_rv_shapes()
    return Graphs(
        model=plain,
        inputs={each.name: plain.rvs_to_values[each] for each in free},
        shapes={each.name: tuple(int(n) for n in known[each.name]) for each in free},
        densities=densities,
        deterministic=deterministic,
        values=values,
        gaps=tuple(gaps),
        value_arrays=tuple(arrays),
    )


def _observed_terms(graphs: Graphs, observed: Sequence[Any]) -> list[Term]:
    """Observed variables, in the order in which they were written."""
    with_gaps = {each.observed: each for each in graphs.gaps}
    found = []
    for name in dict.fromkeys(each.name for each in observed):
        gaps = with_gaps.get(name)
        if gaps is not None:
            found.append(Term(gaps.name, gaps.site, graphs.densities[gaps.site], gaps.mask.shape))
        else:
            shape = np.shape(graphs.values[name].eval(mode=IN_PYTHON))
            found.append(Term(name, name, graphs.densities[name], shape))
    return found


def _variables(model: Any, named: Sequence[Any]) -> list[Any]:
    """These variables in the model, each once: drawing predictions enters them a second time."""
    return [model[name] for name in dict.fromkeys(each.name for each in named)]


def _by_name(variables: Sequence[Any], graphs: Sequence[Any]) -> dict[str, Any]:
    return dict(zip([each.name for each in variables], graphs, strict=True))


def _shape_at(density: Any, inputs: Mapping[str, Any], one: Params) -> tuple[int, ...]:
    """The shape of a Potential, at the parameters of one draw."""
    if all(size is not None for size in density.type.shape):
        return tuple(density.type.shape)
    used = set(ancestors([density]))
    given = {value: np.asarray(one[name], value.type.dtype) for name, value in inputs.items() if value in used}
    return np.shape(density.eval(given, mode=IN_PYTHON))


def _arrays(graphs: Graphs, blocks: tuple[tuple[str, int], ...]) -> list[Any]:
    """Arrays in the graphs that may hold rows. Where values are missing decides what a graph is, and stays in it."""
    sizes = {size for _, size in blocks if size > 1}  # an axis of one is everywhere
    return [
        each
        for each in ancestors(graphs.outputs)
        if (
            _holds_data(each, sizes) or (isinstance(each, Constant) and any(each is own for own in graphs.value_arrays))
        )
        and not any(gaps.is_mask(each) for gaps in graphs.gaps)
    ]


def _remarks(graphs: Graphs, program: PyMCProgram, arrays: Sequence[Any], in_prior: Sequence[str]) -> tuple[str, ...]:
    """What was taken for granted, and what stays: counts of rows, covariates of missing values."""
    blocks = [dim for dim, _ in program.blocks]
    dims = graphs.model.named_vars_to_dims
    unnamed = [
        [each.name for each in program.sites if each.block == block and not dims.get(each.name)]
        for block in range(len(blocks))
    ]
    said = [
        f"taken for the same rows, since they have no dims and are as many: {', '.join(alone)}"
        for alone in unnamed
        if len(alone) > 1
    ]
    every = ancestors(list(graphs.densities.values()))
    counted = {each.name for each in every if isinstance(each, SharedVariable) and is_number(each)}
    said += [f"the model uses the number of {dim}, which stays that of all rows" for dim in blocks if dim in counted]
    if in_prior:
        said.append(f"Potentials are part of the prior: {', '.join(in_prior)}")
    if set(ancestors([graphs.outputs[number] for number in graphs.pinned])) & set(arrays):
        names = ", ".join(each.name for each in graphs.gaps)
        said.append(f"not erased from the model in memory: covariates of rows with missing values of {names}")
    return tuple(said)


def _dims(model: Any, array: Any) -> tuple[str | None, ...]:
    """Names of an array's axes, where PyMC knows them."""
    named = model.named_vars_to_dims.get(array.name) if array.name in model.named_vars else None
    return tuple(None if each is None else str(each) for each in named or ())


def _check_no_chance(outputs: Sequence[Any]) -> None:
    """Refuse densities and data that are drawn anew at every call: generators of random numbers are in their graphs."""
    if any(isinstance(each, SharedVariable) and not hasattr(each.type, "ndim") for each in ancestors(outputs)):
        raise UnsupportedModelError(
            "the model draws random numbers at every call, as pm.Minibatch does.",
            "pass the model of all rows; its posterior is the one that was aimed at.",
        )


def check_variables(model: Any) -> None:
    """Refuse by name what cannot be erased from."""
    if not model.observed_RVs and not model.potentials:
        raise UnsupportedModelError(
            "the model has no observed variable, so no rows to remove.",
            "pass the model that was fitted, with observed=… in its likelihood.",
        )
    for each in model.free_RVs:
        of = each.name.removesuffix("_unobserved")
        if of != each.name and f"{of}_observed" in model.named_vars and np.dtype(each.dtype).kind != "f":
            raise UnsupportedModelError(
                f"missing values of {of!r} are discrete parameters, which cannot be moved along gradients.",
                "leave out the rows without an outcome: they say nothing about the parameters.",
            )
        if np.dtype(each.dtype).kind != "f":
            raise UnsupportedModelError(
                f"the variable {each.name!r} is discrete and not observed: it cannot be moved along gradients.",
                "sum it out of the model (pm.Mixture, or pymc_extras.marginalize), and fit that.",
            )
    for each in (*model.free_RVs, *model.observed_RVs):
        kind = type(each.owner.op).__name__
        if "Minibatch" in kind or "Simulator" in kind:
            raise UnsupportedModelError(
                f"the density of {each.name!r} ({kind.removesuffix('RandomVariable')}) is an estimate: a mini-batch's, "
                "scaled, or by simulation.",
                "pass the model of all rows with an exact density; its posterior is the one that was aimed at.",
            )
    _check_no_chance([model.rvs_to_values[each] for each in dict.fromkeys(model.observed_RVs)])
    if not model.free_RVs:
        raise UnsupportedModelError("the model has no parameters.", "pass the model that the draws were sampled from.")


def _on_own_scales(model: Any) -> Any:
    """The same model, as a function of its variables on their own scale."""
    begun = dict(model.rvs_to_initial_values)  # which PyMC cannot carry over, and nobody needs here
    try:
        model.rvs_to_initial_values.update(dict.fromkeys(begun))
        plain = remove_value_transforms(model)
        plain.observed_RVs = _variables(plain, plain.observed_RVs)
        return plain
    finally:
        model.rvs_to_initial_values.update(begun)


def _holds_data(variable: Variable, sizes: set[int] | None) -> bool:
    """Shared arrays, and constants with an axis as long as one of rows (None: all); others are part of the graph."""
    if not isinstance(variable, SharedVariable | Constant) or getattr(variable.type, "ndim", 0) == 0:
        return False
    if np.dtype(variable.type.dtype).kind not in "fiub":
        return False
    return isinstance(variable, SharedVariable) or sizes is None or bool(sizes & set(array_value(variable).shape))


def _names(model: Any, arrays: Sequence[Variable]) -> list[str]:
    """As they were called; or by the dimension whose entries they pick; or by number and shape."""
    indices = _indices(model)
    found: list[str] = []
    for i, each in enumerate(arrays):
        name = each.name or indices.get(each) or f"array {i + 1} ({'×'.join(map(str, array_value(each).shape))})"
        found.append(name if name not in found else f"{name} ({i + 1})")
    return found


def _indices(model: Any) -> dict[Variable, str]:
    """Arrays that pick entries of a variable with named dimensions, as in `alpha[county_idx]`: by the first dimension.

    So rows are found by the labels of their group, and a group that loses all of its rows is cut out.
    """
    found: dict[Variable, str] = {}
    for each in ancestors([*model.basic_RVs, *model.deterministics, *model.potentials]):
        if each.owner is None or not isinstance(each.owner.op, AdvancedSubtensor1 | AdvancedSubtensor):
            continue
        whole, index = each.owner.inputs[:2]
        dims = model.named_vars_to_dims.get(whole.name) if whole.name in model.named_vars else None
        if dims and dims[0] is not None and isinstance(index, Constant) and np.ndim(index.data) == 1:
            found.setdefault(index, str(dims[0]))
    return found


# --- rows


def _rows_of(
    model: Any, observed: Sequence[Term], potentials: Sequence[Term], wanted: Sequence[str]
) -> tuple[tuple[Site, ...], tuple[tuple[str, int], ...]]:
    """Observed variables with their axes of rows, Potentials with an axis of rows, and these axes."""
    blocks: dict[str, int] = {}
    unnamed: dict[int, str] = {}
    sites = []
    for term in observed:
        if term.density.type.ndim == 0:
            raise _one_likelihood(model[term.name] if term.name in model.named_vars else None, term)
        dims, named = _axes(model, term)
        picked = [at for at, dim in enumerate(dims) if not wanted or dim in wanted]
        if len(picked) != 1:
            axes = ", ".join(f"{dim!r} ({size})" for dim, size in zip(dims, term.shape, strict=False))
            raise AmbiguousRowsError(
                f"the variable {term.name!r} has the axes {axes}.",
                f"say which are the rows: {' or '.join(f'row_dim={dim!r}' for dim in dims)}.",
            )
        axis, size = picked[0], int(term.shape[picked[0]])
        dim = dims[axis] if named[axis] else unnamed.setdefault(size, dims[axis])
        blocks.setdefault(dim, size)
        sites.append(_site(term, dim, axis, blocks))
    for term in potentials:
        found = _potential_axis(model, term, blocks, wanted)
        if found is not None:
            dim, axis = found
            blocks.setdefault(dim, int(term.shape[axis]))
            sites.append(_site(term, dim, axis, blocks))
    if not sites:
        names = ", ".join(repr(term.name) for term in potentials)
        raise UnsupportedModelError(
            f"the model has no observed variable, and no entry of the Potentials {names} belongs to one row.",
            "give the Potential one entry per row (leave out .sum()), or write the likelihood as an observed variable.",
        )
    return tuple(sites), tuple(blocks.items())


def _site(term: Term, dim: str, axis: int, blocks: Mapping[str, int]) -> Site:
    return Site(term.site, list(blocks).index(dim), axis - term.density.type.ndim, axis - len(term.shape))


def _axes(model: Any, term: Term) -> tuple[list[str], list[bool]]:
    """Names of the axes of a variable's log densities, and whether the user gave them."""
    given = model.named_vars_to_dims.get(term.name) or [None] * len(term.shape)
    names = [str(each) if each is not None else f"{term.name}_dim_{at}" for at, each in enumerate(given)]
    batch = term.density.type.ndim
    return names[:batch], [each is not None for each in given][:batch]


def _potential_axis(model: Any, term: Term, blocks: Mapping[str, int], wanted: Sequence[str]) -> tuple[str, int] | None:
    """The rows of a Potential and its axis of them; None: it is part of the prior.

    It has rows where the user says so, or where it has their dimension; without dimensions, where it is as long as
    they are and is computed from data. A model without observed variables has its likelihood in Potentials.
    """
    dims, named = _axes(model, term)
    for axis, dim in enumerate(dims):
        if dim in wanted or (named[axis] and dim in blocks):
            return dim, axis
    if wanted:
        return None
    lengths = {n for each in ancestors([term.density]) if _holds_data(each, None) for n in array_value(each).shape}
    for axis, size in enumerate(term.shape):
        if size > 1 and size in lengths and not named[axis]:
            same = [dim for dim, other in blocks.items() if other == size]
            if same or not blocks:
                return (same[0] if same else dims[axis]), axis
    return None


def _one_likelihood(variable: Any, term: Term) -> UnsupportedModelError:
    """What to raise for a variable that has one likelihood for all of its values."""
    kind = "" if variable is None or variable.owner is None else type(variable.owner.op).__name__
    if term.shape == ():
        return UnsupportedModelError(
            f"the variable {term.name!r} has a single observed value: there are no rows.",
            "observe one value per row, such as pm.Bernoulli of every person's answer in place of pm.Binomial of their "
            "number.",
        )
    problem = (
        f"the variable {term.name!r} has one likelihood for {'×'.join(map(str, term.shape))} values: no row can be "
        "taken out of it."
    )
    if any(each in kind for each in SERIES):
        return UnsupportedModelError(
            problem,
            "make the series a latent variable and observe it with an error: "
            "pm.Normal(name, series, sigma, observed=values); or write the model as a pe.MaskedModel, whose density "
            "takes a mask of rows.",
        )
    if "MvNormal" in kind or "MvStudentT" in kind:
        return UnsupportedModelError(
            problem,
            "make the function a parameter, with one likelihood per row: pm.gp.HSGP or pm.gp.Latent at fixed places, "
            "and pm.Normal(name, f, sigma, observed=values); or write the model as a pe.MaskedModel, whose density "
            "takes a mask of rows.",
        )
    return UnsupportedModelError(
        problem,
        "write the model with one likelihood per row, or as a pe.MaskedModel, whose density takes a mask of rows.",
    )


def _check_observed(program: Program, one: Draw, leaves: dict[int, Array]) -> None:
    """Observed values must come from arrays that hold rows: what else they came from would stay in the model."""
    left = [np.arange(size) < max(1, size // 2) for _, size in program.blocks]
    values = values_of(
        program, one.params, overwritten(program, leaves, left), tuple(site.name for site in program.sites)
    )
    for site in program.sites:
        if site.name not in values:
            continue
        rows, gone = np.moveaxis(np.asarray(values[site.name]), site.value_axis, 0), ~left[site.block]
        if not np.array_equal(rows[gone], np.broadcast_to(rows[:1], rows[gone].shape), equal_nan=True):
            raise CoupledRowsError(
                f"the observed values of {site.name!r} do not come from an array with one entry per row: they are "
                "computed from one (a part of a series, say) whose entries are covariates of other rows.",
                "pass observed values and covariates as arrays of their own, with one entry per row; make a time "
                "series whose values are covariates of later ones a latent variable that is observed with an error, "
                "or a pe.MaskedModel.",
            )


def _check_potentials(
    program: Program, one: Draw, leaves: dict[int, Array], names: Sequence[str], shared: Sequence[str]
) -> None:
    """Refuse Potentials of the prior that are computed from the values of rows."""
    if not names:
        return
    before = log_probs_of(program, one.params, leaves)
    for i, leaf in leaves.items():
        if program.arguments[i].name in shared:
            continue
        for axis, length in enumerate(leaf.shape):
            if length == 1 or length not in dict(program.blocks).values():
                continue
            one_left = jnp.arange(length) == 0
            other = {**leaves, i: jnp.moveaxis(filled(jnp.moveaxis(leaf, axis, 0), one_left), 0, axis)}
            after = log_probs_of(program, one.params, other)
            changed = [n for n in names if not np.allclose(before[n], after[n], rtol=1e-5, atol=1e-6, equal_nan=True)]
            if changed:
                raise UnsupportedModelError(
                    f"the Potential {changed[0]!r} is computed from {program.arguments[i].name!r}, which has an entry "
                    "for each row, and none of its own entries belongs to one row.",
                    "give it one entry per row (leave out .sum()), which makes it a likelihood of the rows; or write "
                    "it as an observed variable: pm.CustomDist has any density.",
                )


def _row_latents(
    model: Any, parameters: Sequence[str], blocks: tuple[tuple[str, int], ...]
) -> dict[str, tuple[int, int]]:
    """Parameters that have an axis of rows, by its name."""
    rows = [dim for dim, _ in blocks]
    found = {}
    for name in parameters:
        dims = model.named_vars_to_dims.get(name) or ()
        for at, dim in enumerate(dims):
            if dim in rows:
                found[name] = rows.index(dim), at - len(dims)
    return found
