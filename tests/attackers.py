"""Attackers: what somebody learns of removed rows from the draws that an erasure wrote.

A signal is one number per draw that can be read off a file: a stored variable, how often a draw repeats, how many
neighbours it has, how near the next draw of its chain is. A signal that is a function of the removed rows correlates
with log p(S′ | θ), and least squares on the terms of the row's log-likelihood then gives the rows back.
"""

from collections.abc import Iterator

import numpy as np
import xarray as xr
from scipy.spatial import cKDTree

NEIGHBOURS = 16


def per_draw(tree: xr.DataTree, parameters: set[str]) -> Iterator[tuple[str, np.ndarray]]:
    """Every number per draw that is no parameter: variables and coordinates of all groups."""
    for group in tree.subtree:
        dataset = group.to_dataset()
        for name, values in {**dataset.data_vars, **dataset.coords}.items():
            if name in parameters or values.dtype.kind not in "fiub" or not {"chain", "draw"} <= set(values.dims):
                continue
            flat = values.transpose("chain", "draw", ...).values
            columns = flat.reshape(flat.shape[0] * flat.shape[1], -1)
            yield from ((f"{group.path}/{name}[{i}]", column) for i, column in enumerate(columns.T))


def clusters(theta: np.ndarray) -> Iterator[tuple[str, np.ndarray]]:
    """Signs of shared ancestors: copies, near neighbours, and likeness to the next draw of the chain."""
    white = (theta - theta.mean(axis=0)) / theta.std(axis=0)
    _, copy, times = np.unique(white, axis=0, return_inverse=True, return_counts=True)
    yield "copies", times[copy.ravel()].astype(float)
    tree = cKDTree(white)
    distances = tree.query(white, k=NEIGHBOURS + 1)[0][:, 1:]
    for k in (0, 1, 3):
        yield f"distance to neighbour {k + 1}", np.log(distances[:, -1] + 1e-9) - np.log(distances[:, k] + 1e-9)
    for share in (0.01, 0.1):
        radius = np.quantile(distances[:, 0], share) + 1e-12
        near = tree.query_ball_point(white, radius, return_length=True)
        yield f"neighbours within the {share} quantile", near.astype(float)
    step = np.linalg.norm(np.diff(white, axis=0), axis=1)
    yield "distance to the next draw", -np.log(np.append(step, step[-1]) + 1e-9)


def signals(tree: xr.DataTree, parameters: set[str]) -> dict[str, np.ndarray]:
    """Everything that an attacker can compute per draw."""
    posterior = tree["posterior"].to_dataset()
    leaves = [posterior[name].transpose("chain", "draw", ...).values for name in sorted(parameters)]
    theta = np.concatenate([leaf.reshape(leaf.shape[0] * leaf.shape[1], -1) for leaf in leaves], axis=1)
    return {**dict(per_draw(tree, parameters)), **dict(clusters(theta.astype(np.float64)))}


def differences(tree: xr.DataTree, kept: np.ndarray, n_rows: int) -> Iterator[tuple[str, np.ndarray]]:
    """What is left of numbers in a file without the kept rows: of a sum over all rows, that of the removed ones.

    Numbers are variables and attributes of all groups, and coefficients of every number per draw on the parameters.
    `kept` are the sums of the kept rows' covariates.
    """
    posterior = tree["posterior"].to_dataset().transpose("chain", "draw", ...)
    draws = {
        str(name): each.values.reshape(each.shape[0] * each.shape[1], -1).astype(np.float64)
        for name, each in posterior.data_vars.items()
    }
    numbers = dict(_numbers(tree))
    for name, values in draws.items():
        others = [each for other, each in draws.items() if other != name]
        if values.shape[1] == 1 and others:
            design = np.concatenate([np.ones_like(values), *others], axis=1)
            fitted, *_ = np.linalg.lstsq(design, values[:, 0], rcond=None)
            if np.std(values[:, 0] - design @ fitted) < 1e-3 * np.std(values):
                numbers[f"coefficients of {name}"] = fitted
    for name, values in numbers.items():
        flat = np.abs(np.ravel(values).astype(np.float64))
        for sums in (flat, n_rows * flat):
            for sign in (1, -1):
                yield name, sign * sums[:, None] - kept


def _numbers(tree: xr.DataTree) -> Iterator[tuple[str, np.ndarray]]:
    """Every number that belongs to no draw: variables, coordinates and attributes, of the groups and of their parts."""
    for group in tree.subtree:
        dataset = group.to_dataset()
        named = {**dataset.data_vars, **dataset.coords}
        every = {f"{group.path}@": group.attrs, **{f"{group.path}/{n}@": v.attrs for n, v in named.items()}}
        for place, attributes in every.items():
            for key, value in attributes.items():
                if np.asarray(value).dtype.kind in "fiu":
                    yield f"{place}{key}", np.asarray(value)
        for name, values in named.items():
            if values.dtype.kind in "fiu" and not {"chain", "draw"} & set(values.dims):
                yield f"{group.path}/{name}", values.values


def leak(signal: np.ndarray, log_removed: np.ndarray) -> float:
    """The correlation of a signal with log p(S′ | θ)."""
    return float(np.corrcoef(signal, log_removed)[0, 1]) if np.ptp(signal) > 0 else 0.0


def gaussian_row(signal: np.ndarray, beta: np.ndarray, noise: float) -> tuple[np.ndarray, float]:
    """The covariates (up to their common sign) and the outcome of one row, from −log p(y | x, β) at every draw."""
    first, second = np.triu_indices(beta.shape[1])
    design = np.column_stack([np.ones(len(beta)), beta, beta[:, first] * beta[:, second]])
    fitted = np.linalg.lstsq(design, -signal * noise**2, rcond=None)[0]
    linear, products = fitted[1 : 1 + beta.shape[1]], fitted[1 + beta.shape[1] :]
    outer = np.zeros((beta.shape[1],) * 2)
    outer[first, second] = np.where(first == second, -2 * products, -products)
    outer = outer + outer.T - np.diag(np.diag(outer))
    sizes, directions = np.linalg.eigh(outer)
    x = np.sqrt(max(sizes[-1], 0.0)) * directions[:, -1]
    return x, float(linear @ x / (x @ x))
