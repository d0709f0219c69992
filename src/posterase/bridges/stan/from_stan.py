"""From a Stan program, its data and its draws, as they are.

    model, draws = pe.from_stan(program, data, fit)
    result = pe.erase(model, draws, rows=person == 17, policy=pe.Policy(refit=True))

The program is evaluated by Stan: compiled with what PyStan brings, or in a library that BridgeStan compiled.
"""

from __future__ import annotations

import operator
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from posterase.bridges.shared.assembly import changed, same, without_fixed_numbers
from posterase.bridges.shared.groups import (
    DATA_GROUPS,
    axes_of,
    check_sampled,
    labelled,
    make_container,
    opened,
    sampled,
)
from posterase.bridges.shared.row_frames import describe_rows, read_frames
from posterase.bridges.shared.traced_model import check_parameters
from posterase.bridges.stan.computed import Dependent, find_computed, find_dependent
from posterase.bridges.stan.data import OWN_SUBSET, ByLength, Subset, as_arrays, by_length
from posterase.bridges.stan.model import (
    Host,
    Parameter,
    StanModel,
    check_same_parameters,
    unconstrained,
)
from posterase.bridges.stan.programs import (
    BridgeStanProgram,
    Data,
    PyStanProgram,
    StanPosterior,
    is_odd,
)
from posterase.bridges.stan.pystan_cache import delete_cached_chains, describe_cached_chains
from posterase.bridges.stan.row_parameters import RowParameters, find_row_parameters, moments_of
from posterase.data.selection import Block, columns_of
from posterase.draws.draws import Draws
from posterase.draws.inference_groups import SAMPLE_DIMS
from posterase.errors import (
    AmbiguousRowsError,
    DataChangedError,
    DrawsShapeError,
    InputFileError,
    InvalidTypeError,
    NotFactorisedError,
    OutsideSupportError,
    StanProgramError,
    UnsupportedModelError,
)
from posterase.runtime.garbage import rare_collections
from posterase.runtime.optional import need

ROWS = "row"
"""What the axis of rows is called."""

NOTED, ROUNDING = 1e-5, 0.1
"""Log densities are noted to about so many digits; rounded parameters may move them by that share of their spread."""

ELSEWHERE = 0.3
"""Unconstrained parameters are moved by this to see whether Stan finds them again."""

UNNOTED = "whether the data are those of the fit could not be checked: the draws came without data and log densities"
UNIDENTIFIED = (
    "the identity of the rows was not checked: log densities are those of the fit, which other rows in their order "
    "would not change"
)

KnownBy = Literal["data", "their log densities", "nothing"]
"""What shows that the data are those of the fit: the data stored with the draws, or the log densities noted there."""

UNCHECKED: dict[KnownBy, tuple[str, ...]] = {
    "data": (),
    "their log densities": (UNIDENTIFIED,),
    "nothing": (UNNOTED,),
}
"""What is then noted."""

ANEW = (
    "the program does not compute them for the kept rows as they are stored, or from single rows by their number. To "
    "get them back, run its generated quantities on the kept data with the new draws (generate_quantities in CmdStan)"
)

JOINED = (
    "rows depend on one another in this program: what comes out is the posterior of the program with the kept data, in "
    "which the rows before and after a removed one are neighbours"
)

FEWEST_NEIGHBOURS, ADDITIVE = 3, 1e-8
"""Densities of fewer rows than the first are not compared; they are sums over rows up to the second."""

LIBRARIES = (".so", ".dylib", ".dll")


@rare_collections()
def from_stan(
    program: Any,
    data: Mapping[str, Any] | None,
    draws: Any,
    *,
    subset: Subset | None = None,
    n_rows: str | int | None = None,
    preprocessing: str | None = None,
    frame: Any = None,
) -> tuple[StanModel, Draws]:
    """The model and the draws of a fit by Stan.

    Parameters
    ----------
    program
        The program's text, a `.stan` file, or what `stan.build` returned; or the library that BridgeStan compiled of it
        (a file, or a `bridgestan.StanModel`).
    data
        The data of the fit, by name. None: those in what `stan.build` returned.
    draws
        What `sample` of PyStan returned; arrays `(chain, draw, …)` by name; or a file, a DataTree or InferenceData by
        ArviZ's schema, of CmdStan's draws say.
    subset
        `subset(data, rows)` → the same data with some of the rows, given by their places among those there are. Left
        out, every array whose first axis is as long as there are rows is cut, and their number set.
    n_rows
        The name of the number in the data that counts the rows, where there are several that could. With a `subset` of
        your own, their number will do too.
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
        For `pe.erase` and every method; `model.calls` says how often Stan was called. Transformed parameters and
        generated quantities are no parameters: they come out computed anew, with the kept rows.
    draws
        The draws, in the container that they go out in again.
    """
    frames = read_frames(frame)
    given, source = _given(program, data), _source(program)
    arrays, groups = as_arrays(given), _groups(draws)
    check_sampled(groups)
    _check_arrays(arrays, groups)
    size, default = _size(arrays, n_rows, subset is not None)
    compiled = PyStanProgram(source) if isinstance(source, str) else BridgeStanProgram(source)
    posterior = compiled.with_data(arrays)
    parameters = _parameters(posterior, groups["posterior"])
    cut: Subset = subset if subset is not None else default  # type: ignore[assignment] # one of them is there
    host = Host(compiled, cut, parameters)
    thetas = _unconstrained(host, posterior, groups["posterior"])
    known_by = _check_noted(posterior, groups, thetas)
    came_along = data is None and known_by == "their log densities"
    remarks = () if came_along else UNCHECKED[known_by]
    if isinstance(source, str):
        remarks += describe_cached_chains(source)
    fewer, row_parameters, told = _check_subset(host, arrays, posterior, size)
    told += _check_neighbours(host, arrays, row_parameters, thetas[0], size)
    computed = find_computed(posterior, fewer, groups, thetas[0], size)
    dependent = Dependent(frozenset(), frozenset())
    if computed["posterior"] and row_parameters is None:
        with_rows = lambda rows: compiled.with_data(host.cut(arrays, rows))  # noqa: E731
        dependent = find_dependent(posterior, with_rows, computed["posterior"], thetas[0], size)
        computed["posterior"] = {n: each for n, each in computed["posterior"].items() if n not in dependent.ordered}
    spread = thetas.std(axis=0)
    host = Host(compiled, cut, parameters, computed, row_parameters)
    model = StanModel(
        data=jnp.asarray(host.closed(arrays, None if row_parameters is None else moments_of(thetas))),
        present=jnp.ones(size, bool),
        transforms={},
        scales=jnp.asarray(np.where(spread > 0, spread, 1)),
        host=host,
    )
    draws = _inside(model, arrays, groups, size, preprocessing, remarks + told, dependent.of_rows)
    return model, describe_rows(draws, frames)


def clear_pystan_cache(program: Any) -> int:
    """Delete the draws of a program that PyStan keeps in the user's cache.

    PyStan writes what it samples with a random seed to files, and an erasure leaves them as they are: they hold the
    draws from before it. The verdict says how many there are, and nothing deletes them unasked. The compiled program
    stays; PyStan samples anew when it is next asked for these draws.

    Parameters
    ----------
    program
        The program's text, a `.stan` file, or what `stan.build` returned, exactly as PyStan got it: its cache is sorted
        by the program's text, and by the Python that sampled.

    Returns
    -------
    How many files were deleted, one per chain. Data do not matter: draws of all fits of the program are deleted.
    """
    source = _source(program)
    if not isinstance(source, str):
        raise InvalidTypeError("program is a library.", "pass the text of the program that PyStan sampled.")
    need("httpstan", "clear_pystan_cache", "stan")
    return delete_cached_chains(source)


# --- what was given


def _source(program: Any) -> str | Path:
    """The program's text, or the library that BridgeStan compiled of it."""
    if _is_built(program):
        return program.program_code
    if _is_instance(program, "bridgestan", "StanModel"):
        return Path(program.lib_path)
    if not isinstance(program, (str, os.PathLike)):
        raise InvalidTypeError(
            f"program is a {type(program).__name__}.", "pass its text, a .stan file, or what stan.build returned."
        )
    text = os.fspath(program)
    if "\n" in text or "{" in text:
        return text
    path = Path(text)
    if not path.is_file():
        raise InputFileError(f"there is no file {text!r}.", "pass a .stan file, or the program's text.")
    return path if path.suffix in LIBRARIES else path.read_text(encoding="utf-8")


def _is_built(program: Any) -> bool:
    """Whether it is what `stan.build` returned."""
    return _is_instance(program, "stan", "Model")


def _is_instance(value: Any, package: str, name: str) -> bool:
    """Whether a value is of a class of this name, of a package that need not be installed."""
    return (type(value).__module__.split(".")[0], type(value).__name__) == (package, name)


def _given(program: Any, data: Any) -> Mapping[str, Any]:
    """The data of the fit."""
    if data is None and _is_built(program):
        data = program.data
    if not isinstance(data, Mapping):
        raise InvalidTypeError(f"data is a {type(data).__name__}.", "pass the data of the fit, a dict by name.")
    return data


def _groups(draws: Any) -> dict[str, xr.Dataset]:
    """Draws as ArviZ has them, with the log densities that Stan noted where they are there."""
    if isinstance(draws, Draws):
        return opened(draws.to_arviz(include_weights=True))
    if _is_instance(draws, "stan", "Fit"):
        arrays = {name: _by_chain(draws, name) for name in (*draws.param_names, "lp__")}
        noted = {"lp": arrays.pop("lp__")}
        return {"posterior": _dataset(arrays), "sample_stats": _dataset(noted)}
    if isinstance(draws, xr.Dataset):
        return opened(xr.DataTree.from_dict({"posterior": draws}))
    if isinstance(draws, Mapping) and not isinstance(draws, xr.DataTree) and not hasattr(draws, "posterior"):
        return {"posterior": _dataset({str(name): np.asarray(values) for name, values in draws.items()})}
    if draws is None:
        raise InvalidTypeError(
            "draws is None.", "pass what sample returned, arrays (chain, draw, …) by name, or a file."
        )
    return opened(draws)


def _by_chain(fit: Any, name: str) -> Float[np.ndarray, "chain draw ..."]:
    """PyStan's draws of a parameter: it lays chains beside each other, draw by draw, along the last axis.

    Where warm-up was saved it comes first, and is left out.
    """
    values = np.asarray(fit[name])
    dims = [] if name not in fit.param_names else list(fit.dims[fit.param_names.index(name)])
    warmup = -(-fit.num_warmup // fit.num_thin) if fit.save_warmup else 0
    return np.moveaxis(values.reshape(*dims, -1, fit.num_chains), (-1, -2), (0, 1))[:, warmup:]


def _dataset(arrays: Mapping[str, Any]) -> xr.Dataset:
    for name, values in arrays.items():
        if values.ndim < 2:
            raise InvalidTypeError(
                f"draws of {name} have the shape {values.shape}.", "pass arrays (chain, draw, …) for every parameter."
            )
    lead = {values.shape[:2] for values in arrays.values()}
    if len(lead) > 1:
        raise DrawsShapeError(
            f"draws have different leading axes: {', '.join(map(str, sorted(lead)))}.",
            "pass arrays (chain, draw, …), as many of each parameter.",
        )
    return xr.Dataset({n: ((*SAMPLE_DIMS, *(f"{n}_dim_{i}" for i in range(v.ndim - 2))), v) for n, v in arrays.items()})


# --- the program's parameters


def _parameters(posterior: StanPosterior, drawn: xr.Dataset) -> list[Parameter]:
    """The parameters, which there must be draws of."""
    shapes = posterior.shapes
    given = {str(name): values.shape[2:] for name, values in drawn.data_vars.items()}
    names = posterior.names("parameters")
    if not names:
        raise UnsupportedModelError("the program has no parameters.", "there is nothing to erase from.")
    if any(given.get(name) != shapes[name] for name in names):
        known = {name: shape for name, shape in given.items() if name not in shapes or name in names}
        check_parameters(known, {name: shapes[name] for name in names})
    odd = sorted({each.split(".")[0].split(":")[0] for each in posterior.elements("transformed") if is_odd(each)})
    if odd:
        raise UnsupportedModelError(
            f"complex numbers or tuples among the parameters: {', '.join(odd)}.",
            "declare its parts; among transformed parameters, compute it in the model block instead.",
        )
    free = Counter(each.split(".")[0] for each in posterior.elements("unconstrained"))
    return [Parameter(name, shapes[name], free[name]) for name in names]


def _unconstrained(host: Host, posterior: StanPosterior, drawn: xr.Dataset) -> Float[np.ndarray, "n d"]:
    """All draws, unconstrained."""
    arrays = {each.name: drawn[each.name].transpose(*SAMPLE_DIMS, ...).values.astype(float) for each in host.parameters}
    flat = host.flat(arrays, 2).reshape(-1, host.numbers)
    thetas, said = unconstrained(host, posterior, np.ascontiguousarray(flat))
    bad = int((~np.isfinite(thetas)).any(axis=1).sum())
    if bad:
        raise OutsideSupportError(
            f"{bad} of {len(thetas)} draws are not of the program's parameters{': ' + said if said else ''}.",
            "pass the program and the draws of one fit; draws of constrained parameters on their own scale.",
        )
    elsewhere = thetas[:1] + ELSEWHERE
    back, _ = posterior.unconstrain(np.ascontiguousarray(posterior.constrain(elsewhere)))
    lost = np.repeat([each.name for each in host.parameters], [each.free for each in host.parameters])
    unit = sorted(set(lost[~np.isclose(back[0], elsewhere[0], rtol=1e-4, atol=1e-4)]))
    if unit:
        raise UnsupportedModelError(
            f"Stan's unconstrained scale cannot be had from draws of {', '.join(unit)}, as of a unit_vector's.",
            "declare angles, and compute the vector from them.",
        )
    return thetas


# --- checks, and the draws' container


def _size(arrays: Data, n_rows: Any, own: bool) -> tuple[int, ByLength | None]:
    """How many rows there are, and the default subset, where there is none of the user's own."""
    if not own:
        if n_rows is not None and not isinstance(n_rows, str):
            raise AmbiguousRowsError(
                f"n_rows is {n_rows!r}.", "name the number in the data that counts them: n_rows='N'; or pass a subset."
            )
        default = by_length(arrays, n_rows)
        return int(arrays[default.counted_by]), default
    if isinstance(n_rows, str) or n_rows is None:
        numbers = {name for name, values in arrays.items() if values.shape == () and values.dtype.kind == "i"}
        lengths = {len(values) for values in arrays.values() if values.ndim}
        counting = [name for name in numbers if name == n_rows or (n_rows is None and int(arrays[name]) in lengths)]
        if len(counting) != 1:
            raise AmbiguousRowsError(
                f"n_rows is {n_rows!r}." if n_rows else "how many rows there are cannot be told from the data.",
                "say how many: n_rows=919, or the name of the number in the data that counts them.",
            )
        return int(arrays[counting[0]]), None
    if isinstance(n_rows, bool) or not hasattr(n_rows, "__index__") or operator.index(n_rows) < 1:
        raise AmbiguousRowsError(f"n_rows is {n_rows!r}.", "say how many there are: n_rows=919.")
    return operator.index(n_rows), None


def _check_subset(
    host: Host, arrays: Data, posterior: StanPosterior, size: int
) -> tuple[StanPosterior, RowParameters | None, tuple[str, ...]]:
    """All rows are the data; with one row less there are other data of the same parameters.

    That posterior comes back, the parameters of single rows, and which arrays of rows were left as they are.
    """
    if not callable(host.subset):
        raise InvalidTypeError("subset is no function.", f"{OWN_SUBSET}.")
    every = host.cut(arrays, np.arange(size))
    if set(every) != set(arrays) or not all(_same(every[name], values) for name, values in arrays.items()):
        raise UnsupportedModelError(
            "subset(data, every row) is not the data.", "let it return all of the data, cut to the rows given."
        )
    fewer, whole = posterior, set(arrays)
    row_parameters: RowParameters | None = None
    names = [each.name for each in host.parameters]
    for rows in (np.arange(1, size), np.arange(size - 1)) if size > 1 else ():
        cut = host.cut(arrays, rows)
        for name, values in arrays.items():
            now = cut.get(name, values[:0] if values.ndim else values)
            if values.ndim and len(values) == size and len(now) == len(rows) and not _same(now, values[rows]):
                raise UnsupportedModelError(
                    f"subset cuts {name}, but not to the rows that it is given.",
                    "index every array of rows with the places given: data['y'][rows].",
                )
        whole &= {name for name, values in arrays.items() if name in cut and _same(cut[name], values)}
        try:
            fewer = host.program.with_data(cut)
        except StanProgramError as error:
            raise UnsupportedModelError(
                f"with one row less the program does not take the data. {error.problem}", f"{OWN_SUBSET}."
            ) from error
        if rows[0] == 1:
            row_parameters = find_row_parameters(posterior, fewer, names, size)
        if row_parameters is None:
            check_same_parameters(posterior, fewer, names)
    if size > 1 and whole == set(arrays):
        raise UnsupportedModelError("subset leaves the data as they are, whichever rows go.", f"{OWN_SUBSET}.")
    held = [name for name in arrays if name in whole and arrays[name].ndim and len(arrays[name]) == size]
    said = (f"left whole by subset, the removed rows' entries too: {', '.join(held)}",) if held else ()
    return fewer, row_parameters, said


def _check_neighbours(
    host: Host, arrays: Data, row_parameters: RowParameters | None, theta: Float[np.ndarray, " d"], size: int
) -> tuple[str, ...]:
    """Whether what a row adds depends on the row before: two rows together add the sum of what each adds.

    Where it does, as in a series, a cut joins the neighbours. That is a fit to the cut data, and the verdict says so;
    but parameters of single rows, as the states of a series, would be joined as well.
    """

    def density(gone: list[int]) -> float:
        mask = ~np.isin(np.arange(size), gone)
        of_kept = theta if row_parameters is None else theta[row_parameters.kept(row_parameters.free, len(theta), mask)]
        posterior = host.program.with_data(host.cut(arrays, np.flatnonzero(mask)))
        return float(posterior.log_density(of_kept[None])[0])

    if size < FEWEST_NEIGHBOURS:
        return ()
    for first in {1, (size - 1) // 2}:
        pair = [first, first + 1]
        whole, *less, least = (density(gone) for gone in ([], pair[:1], pair[1:], pair))
        if not abs(whole - sum(less) + least) > ADDITIVE * (1 + abs(whole)):
            continue
        if row_parameters is not None:
            names = sorted({name.split(".")[0] for name in _names_of(row_parameters)})
            raise NotFactorisedError(
                f"rows next to each other depend on one another, and {', '.join(names)} has an axis of rows: without a "
                "row its neighbours would be joined.",
                "count times or places apart from the rows (array[N] int week; state[week]), so that a state stays "
                "where its rows go.",
            )
        return (JOINED,)
    return ()


def _names_of(rows: RowParameters) -> list[str]:
    return [rows.unconstrained[place] for place in rows.free[0]]


def _same(one: Any, other: Any) -> bool:
    return np.array_equal(one, other, equal_nan=one.dtype.kind == "f" and other.dtype.kind == "f")


def _check_arrays(arrays: Data, groups: Mapping[str, xr.Dataset]) -> None:
    """Data that came with the draws are those of the fit."""
    for group in DATA_GROUPS:
        for name, values in groups.get(group, xr.Dataset()).data_vars.items():
            if str(name) in arrays and not same(values.values, arrays[str(name)]):
                raise changed(f"data {name}", values.values, arrays[str(name)])


def _check_noted(posterior: StanPosterior, groups: Mapping[str, xr.Dataset], thetas: Any) -> KnownBy:
    """Check that log densities that Stan noted are the program's with these data, up to a constant.

    Returns what the data are known by.
    """
    noted = groups.get("sample_stats", xr.Dataset()).get("lp")
    if noted is None or noted.ndim != 2:
        return "data" if any(group in groups for group in DATA_GROUPS) else "nothing"
    flat = noted.transpose(*SAMPLE_DIMS).values.ravel()
    apart = posterior.log_density(thetas) - flat
    rounded = np.ptp(apart) <= NOTED * (1 + np.abs(flat).max()) or apart.std() <= ROUNDING * flat.std()
    if not rounded:
        raise DataChangedError(
            "the log densities noted with the draws are not those of this program with these data: they differ by more "
            "than a constant.",
            "pass the program and the data that the draws were fitted with.",
        )
    return "data" if any(group in groups for group in DATA_GROUPS) else "their log densities"


def _inside(
    model: StanModel,
    arrays: Data,
    groups: Mapping[str, xr.Dataset],
    size: int,
    preprocessing: str | None,
    remarks: tuple[str, ...],
    of_rows: frozenset[str],
) -> Draws:
    """The draws of the parameters, in the container that they go out in again.

    `of_rows` are variables that are computed from several rows.
    """
    names = [each.name for each in model.host.parameters]
    drawn = groups["posterior"].transpose(*SAMPLE_DIMS, ...)
    computed = model.host.computed
    groups = {**groups, "posterior": drawn[[*names, *computed["posterior"]]]}
    left_out = [
        str(name) for name, values in drawn.data_vars.items() if name not in groups["posterior"] and values.size
    ]
    if left_out:
        remarks += (f"left out of the posterior: {', '.join(left_out)}; {ANEW}",)
    columns: dict[str, Any] = {}
    for name, values in arrays.items():
        if values.ndim and len(values) == size:
            columns |= columns_of(name, values)
    rows = _row_dims(model, groups)
    own = frozenset(str(dim) for name in names for dim in drawn[name].dims[2:]) - set(rows)
    axes = axes_of(rows, [(ROWS, size)], groups, own)
    table = labelled([Block(ROWS, size, (), columns)], axes, groups, first=1)
    groups, said = without_fixed_numbers(
        groups, names, [name for name in computed["posterior"] if name not in of_rows], axes, table
    )
    remarks += said
    container = make_container(
        groups,
        names,
        table,
        axes,
        preprocessing,
        model=model,
        computable={group: frozenset(found) for group, found in computed.items()},
        remarks=remarks,
        first_group=1,
    )
    return Draws.from_arviz(sampled(groups), var_names=names).inside(container)


def _row_dims(model: StanModel, groups: Mapping[str, xr.Dataset]) -> dict[str, int]:
    """The names that the axis of rows goes by."""
    found = {ROWS: 0}
    for group, variables in model.host.computed.items():
        for name, each in variables.items():
            if each.row_axis is not None:
                dims = groups[group][name].transpose(*SAMPLE_DIMS, ...).dims
                found[str(dims[len(SAMPLE_DIMS) + each.row_axis])] = 0
    for name, axis in ({} if model.host.row_parameters is None else model.host.row_parameters.axes).items():
        found[str(groups["posterior"][name].dims[len(SAMPLE_DIMS) + axis])] = 0
    return found
