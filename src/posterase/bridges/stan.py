"""From a Stan program, its data and its draws, as they are.

    model, draws = pe.from_stan(program, data, fit)
    result = pe.erase(model, draws, rows=person == 17, policy=pe.Policy(refit=True))

The program is evaluated by Stan: compiled with what PyStan brings, or in a library that BridgeStan compiled.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import xarray as xr
from jaxtyping import Float

from posterase.bridges.arviz import axes_of, check_sampled, labelled, make_container, opened, sampled
from posterase.bridges.assembly import UNCHECKED
from posterase.bridges.programs import check_parameters
from posterase.bridges.stan_data import OWN_SUBSET, Subset, as_arrays, by_length, packed
from posterase.bridges.stan_model import Host, Parameter, StanModel, check_same_parameters, unconstrained
from posterase.bridges.stan_programs import BridgeStanProgram, Data, PyStanProgram, StanPosterior, StanProgram
from posterase.container import SAMPLE_DIMS
from posterase.draws import Draws
from posterase.errors import (
    AmbiguousRowsError,
    DataChangedError,
    InputFileError,
    InvalidTypeError,
    OutsideSupportError,
    StanProgramError,
    UnsupportedModelError,
)
from posterase.rows import Block, columns_of

ROWS = "row"
"""What the axis of rows is called."""

NOTED = 1e-5
"""Log densities are noted to about so many digits."""

LIBRARIES = (".so", ".dylib", ".dll")


def from_stan(
    program: Any,
    data: Mapping[str, Any] | None,
    draws: Any,
    *,
    subset: Subset | None = None,
    rows: str | int | None = None,
    preprocessing: str | None = None,
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
    rows
        The name of the number in the data that counts the rows, where there are several that could. With a `subset` of
        your own, their number will do too.
    preprocessing
        What was computed from all rows before the fit, in words, "x standardised" say; "none" if nothing was. The
        verdict names it, and asks where it was not said.

    Returns
    -------
    model
        For `pe.erase` and every eraser; `model.calls` says how often Stan was called. Transformed parameters are no
        parameters: they come out computed anew. Generated quantities do not come out.
    draws
        The draws, in the container that they go out in again.
    """
    compiled, given = _program(program, data)
    arrays = as_arrays(given)
    size, default = _size(arrays, rows, subset is not None)
    posterior = compiled.with_data(arrays)
    groups = _groups(draws)
    check_sampled(groups)
    parameters, transformed = _kinds(posterior, groups["posterior"])
    host = Host(compiled, default if subset is None else subset, parameters)
    thetas = _unconstrained(host, posterior, groups["posterior"])
    remarks = _check_noted(posterior, groups, thetas)
    fewer = _check_subset(host, arrays, posterior, size)
    host.transformed = tuple(name for name in transformed if posterior.shapes[name] == fewer.shapes[name])
    spread = thetas.std(axis=0)
    model = StanModel(
        data=jnp.asarray(packed(arrays)),
        present=jnp.ones(size, bool),
        transforms={},
        scales=jnp.asarray(np.where(spread > 0, spread, 1)),
        host=host,
    )
    return model, _inside(model, arrays, groups, size, preprocessing, remarks)


# --- what was given


def _program(program: Any, data: Mapping[str, Any] | None) -> tuple[StanProgram, Mapping[str, Any]]:
    """The compiled program, and its data."""
    built = type(program).__module__.split(".")[0], type(program).__name__
    if built == ("stan", "Model"):
        return PyStanProgram(program.program_code), _known(program.data if data is None else data)
    if built == ("bridgestan", "StanModel"):
        return BridgeStanProgram(Path(program.lib_path)), _known(data)
    if not isinstance(program, (str, os.PathLike)):
        raise InvalidTypeError(
            f"program is a {type(program).__name__}.", "pass its text, a .stan file, or what stan.build returned."
        )
    text = os.fspath(program)
    if "\n" not in text and "{" not in text:
        path = Path(text)
        if not path.is_file():
            raise InputFileError(f"there is no file {text!r}.", "pass a .stan file, or the program's text.")
        if path.suffix in LIBRARIES:
            return BridgeStanProgram(path), _known(data)
        text = path.read_text(encoding="utf-8")
    return PyStanProgram(text), _known(data)


def _known(data: Mapping[str, Any] | None) -> Mapping[str, Any]:
    if not isinstance(data, Mapping):
        raise InvalidTypeError(f"data is a {type(data).__name__}.", "pass the data of the fit, a dict by name.")
    return data


def _groups(draws: Any) -> dict[str, xr.Dataset]:
    """Draws as ArviZ has them, with the log densities that Stan noted where they are there."""
    if isinstance(draws, Draws):
        return opened(draws.to_arviz())
    if type(draws).__module__.split(".")[0] == "stan" and type(draws).__name__ == "Fit":
        names = [*draws.param_names, "lp__"]
        arrays = {name: _by_chain(draws, name) for name in names}
        noted = {"lp": arrays.pop("lp__")}
        return {"posterior": _dataset(arrays), "sample_stats": _dataset(noted)}
    if isinstance(draws, Mapping) and not isinstance(draws, xr.DataTree):
        return {"posterior": _dataset({str(name): np.asarray(values) for name, values in draws.items()})}
    return opened(draws)


def _by_chain(fit: Any, name: str) -> Float[np.ndarray, "chain draw ..."]:
    """PyStan's draws of a parameter: it lays chains beside each other, draw by draw, along the last axis."""
    values = np.asarray(fit[name])
    dims = [] if name not in fit.param_names else list(fit.dims[fit.param_names.index(name)])
    return np.moveaxis(values.reshape(*dims, -1, fit.num_chains), (-1, -2), (0, 1))


def _dataset(arrays: Mapping[str, Any]) -> xr.Dataset:
    for name, values in arrays.items():
        if values.ndim < 2:
            raise InvalidTypeError(
                f"draws of {name} have the shape {values.shape}.", "pass arrays (chain, draw, …) for every parameter."
            )
    return xr.Dataset({n: ((*SAMPLE_DIMS, *(f"{n}_dim_{i}" for i in range(v.ndim - 2))), v) for n, v in arrays.items()})


# --- the program's parameters


def _kinds(posterior: StanPosterior, drawn: xr.Dataset) -> tuple[list[Parameter], list[str]]:
    """The parameters, which there must be draws of, and the transformed ones that there are."""
    shapes = posterior.shapes
    given = {str(name): values.shape[2:] for name, values in drawn.data_vars.items()}
    names, transformed = (posterior.names(kind) for kind in ("parameters", "transformed"))
    if not names:
        raise UnsupportedModelError("the program has no parameters.", "there is nothing to erase from.")
    if any(given.get(name) != shapes[name] for name in names):
        known = {name: shape for name, shape in given.items() if name not in shapes or name in names}
        check_parameters(known, {name: shapes[name] for name in names})
    free = Counter(each.split(".")[0] for each in posterior.elements("unconstrained"))
    parameters = [Parameter(name, shapes[name], free[name]) for name in names]
    return parameters, [name for name in transformed[len(names) :] if given.get(name) == shapes[name]]


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
    return thetas


# --- checks, and the draws' container


def _size(arrays: Data, rows: str | int | None, own: bool) -> tuple[int, Any]:
    """How many rows there are, and the default subset, where there is none of the user's own."""
    if isinstance(rows, int) and own:
        return rows, None
    if own and rows is None:
        counted = {n for n, v in arrays.items() if v.shape == () and v.dtype.kind == "i" and _longest(arrays, int(v))}
        if len(counted) != 1:
            raise AmbiguousRowsError(
                "how many rows there are cannot be told from the data.",
                "say so: rows=919, or the name of the number in the data that counts them.",
            )
        return int(arrays[counted.pop()]), None
    if own:
        return int(arrays[_counting(arrays, rows)]), None
    default = by_length(arrays, rows if rows is None else str(rows))
    return int(arrays[default.counted_by]), default


def _longest(arrays: Data, size: int) -> bool:
    return any(values.ndim and len(values) == size for values in arrays.values())


def _counting(arrays: Data, rows: Any) -> str:
    if rows not in arrays or arrays[rows].shape != () or arrays[rows].dtype.kind != "i":
        raise AmbiguousRowsError(f"rows is {rows!r}.", "name a whole number in the data, or give their number.")
    return str(rows)


def _check_subset(host: Host, arrays: Data, posterior: StanPosterior, size: int) -> StanPosterior:
    """All rows are the data; with one row less there are the same parameters. That posterior comes back."""
    every = host.cut(arrays, np.arange(size))
    if set(every) != set(arrays) or not all(np.array_equal(every[name], values) for name, values in arrays.items()):
        raise UnsupportedModelError(
            "subset(data, every row) is not the data.", "let it return all of the data, cut to the rows given."
        )
    if size == 1:
        return posterior
    try:
        fewer = host.program.with_data(host.cut(arrays, np.arange(size - 1)))
    except StanProgramError as error:
        raise UnsupportedModelError(
            f"with one row less the program does not take the data. {error.problem}", f"{OWN_SUBSET}."
        ) from error
    check_same_parameters(posterior, fewer, [each.name for each in host.parameters])
    return fewer


def _check_noted(posterior: StanPosterior, groups: Mapping[str, xr.Dataset], thetas: Any) -> tuple[str, ...]:
    """Log densities that Stan noted are the program's with these data, up to a constant."""
    noted = groups.get("sample_stats", xr.Dataset()).get("lp")
    if noted is None or noted.ndim != 2:
        return (UNCHECKED,)
    flat = noted.transpose(*SAMPLE_DIMS).values.ravel()
    apart = posterior.log_density(thetas) - flat
    if not np.ptp(apart) <= NOTED * (1 + np.abs(flat).max()):
        raise DataChangedError(
            f"the log densities noted with the draws are not those of this program with these data: they differ by "
            f"{apart.min():.6g} to {apart.max():.6g}, more than a constant.",
            "pass the program and the data that the draws were fitted with.",
        )
    return ()


def _inside(
    model: StanModel,
    arrays: Data,
    groups: Mapping[str, xr.Dataset],
    size: int,
    preprocessing: str | None,
    remarks: tuple[str, ...],
) -> Draws:
    """The draws of the parameters, in the container that they go out in again."""
    names = [each.name for each in model.host.parameters]
    drawn = groups["posterior"].transpose(*SAMPLE_DIMS, ...)
    groups = {**groups, "posterior": drawn[[*names, *model.host.transformed]]}
    left_out = [str(name) for name in drawn.data_vars if name not in groups["posterior"]]
    if left_out:
        anew = "run the program's generated quantities on the kept data"
        remarks += (f"left out of the posterior: {', '.join(left_out)}; {anew}",)
    columns: dict[str, Any] = {}
    for name, values in arrays.items():
        if values.ndim and len(values) == size:
            columns |= columns_of(name, values)
    own = frozenset(str(dim) for name in names for dim in drawn[name].dims[2:])
    axes = axes_of({ROWS: 0}, [(ROWS, size)], groups, own)
    table = labelled([Block(ROWS, size, (), columns)], axes, groups)
    container = make_container(
        groups,
        names,
        table,
        axes,
        preprocessing,
        model=model,
        computed=lambda kept, params: kept.computed(params),
        remarks=remarks,
    )
    return Draws.from_arviz(sampled(groups), var_names=names).inside(container)
