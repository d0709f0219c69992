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
