"""Parameters of single rows in a Stan program: one effect per school, one true value per measurement.

Without a row the program has fewer parameters. Draws keep their shape all the same: parameters z of absent rows stay,
with a density of their own beside that of the program with the kept rows,

    log p(θ | kept rows) + log q(z),        q = N(m, s²), for each number on the unconstrained scale.

Its marginal for θ is the kept posterior, whatever q is (Carlin & Chib 1995 call q a pseudo-prior). The mean m and the
standard deviation s are those of the same parameter over all draws and kept rows, so that they hold nothing of the
absent row. What comes out is cut to the kept rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Int

from posterase.bridges.stan.programs import StanPosterior, Table

LOG_SQRT_2PI = 0.5 * np.log(2 * np.pi)

LEAST_SD = 1e-6
"""Where a parameter is the same in all draws."""


class Moments(NamedTuple):
    """Mean and standard deviation of every unconstrained number."""

    means: Float[np.ndarray, " d"]
    sds: Float[np.ndarray, " d"]


class RowParameters(NamedTuple):
    """Where the parameters of single rows are among the numbers of a draw."""

    unconstrained: tuple[str, ...]
    """Names of all unconstrained numbers."""
    parameters: tuple[str, ...]
    """Names of all numbers on their own scale."""
    free: Int[np.ndarray, "rows each"]
    """Places of every row's numbers among the unconstrained ones."""
    flat: Int[np.ndarray, "rows each"]
    """Their places on their own scale."""
    axes: dict[str, int]
    """Their axes of rows, by parameter."""

    def kept(self, places: Int[np.ndarray, "rows each"], size: int, mask: Bool[np.ndarray, " rows"]) -> np.ndarray:
        """Which numbers are not those of absent rows."""
        here = np.ones(size, bool)
        here[places[~mask]] = False
        return here

    def moments(self, known: Moments, present: Bool[np.ndarray, " rows"], mask: Bool[np.ndarray, " rows"]) -> Moments:
        """Moments with those of rows that go (present, and not in the mask) replaced by those of the rows that stay."""
        going = present & ~mask
        means, sds = (each.copy() for each in known)
        staying = self.free[mask]
        means[self.free[going]] = known.means[staying].mean(axis=0)
        within, between = (known.sds[staying] ** 2).mean(axis=0), known.means[staying].var(axis=0)
        sds[self.free[going]] = np.sqrt(within + between)
        return Moments(means, sds)


def moments_of(thetas: Table) -> Moments:
    """Moments of the draws."""
    return Moments(thetas.mean(axis=0), np.maximum(thetas.std(axis=0), LEAST_SD))


def find_row_parameters(
    posterior: StanPosterior, fewer: StanPosterior, names: Sequence[str], size: int
) -> RowParameters | None:
    """Find the parameters of single rows: those with an axis that is shorter by one without the first row.

    None where there are none, or where they are more than one number per entry on one of the scales.
    """
    axes = {}
    for name in names:
        whole, less = posterior.shapes[name], fewer.shapes.get(name, ())
        changed = [axis for axis, (one, other) in enumerate(zip(whole, less, strict=False)) if one != other]
        if len(whole) == len(less) and len(changed) == 1 and (whole[changed[0]], less[changed[0]]) == (size, size - 1):
            axes[name] = changed[0]
    if not axes:
        return None
    places = []
    for kind in ("unconstrained", "parameters"):
        every = posterior.elements(kind)
        at = _places(every, axes, size)
        if at is None or fewer.elements(kind) != _without_first(every, axes):
            return None
        places.append(at)
    free, flat = places
    if free.shape != flat.shape:
        return None
    unconstrained, parameters = (tuple(posterior.elements(kind)) for kind in ("unconstrained", "parameters"))
    return RowParameters(unconstrained, parameters, free, flat, axes)


def _split(element: str, axes: dict[str, int]) -> tuple[tuple[str, ...], int | None]:
    """An element's name without its row, and the row, from 0."""
    name, *index = element.split(".")
    if name not in axes:
        return (element,), None
    row = int(index.pop(axes[name])) - 1
    return (name, *index), row


def _places(elements: Sequence[str], axes: dict[str, int], size: int) -> Int[np.ndarray, "rows each"] | None:
    slots: dict[tuple[str, ...], list[int]] = {}
    for place, element in enumerate(elements):
        if len(element.split(".")) <= axes.get(element.split(".")[0], -1) + 1:
            return None  # one number for several entries
        slot, row = _split(element, axes)
        if row is not None:
            slots.setdefault(slot, [-1] * size)[row] = place
    found = np.array([slots[slot] for slot in sorted(slots)]).T
    return found if found.size and (found >= 0).all() else None


def _without_first(elements: Sequence[str], axes: dict[str, int]) -> list[str]:
    """The elements' names in a program without the first row."""
    found = []
    for element in elements:
        name, *index = element.split(".")
        if name in axes:
            row = int(index[axes[name]]) - 1
            if row == 0:
                continue
            index[axes[name]] = str(row)
        found.append(".".join([name, *index]))
    return found


class WithAbsentRows(StanPosterior):
    """The program with the kept rows, with places for the parameters of absent ones."""

    def __init__(self, inner: StanPosterior, rows: RowParameters, mask: Bool[np.ndarray, " rows"], moments: Moments):
        self.inner, self.rows, self.mask, self.calls = inner, rows, mask, inner.calls
        self.free = rows.kept(rows.free, len(rows.unconstrained), mask)
        self.flat = rows.kept(rows.flat, len(rows.parameters), mask)
        self.means, self.sds = (each[~self.free] for each in moments)

    def elements(self, kind: str) -> list[str]:
        if kind == "unconstrained":
            return list(self.rows.unconstrained)
        return [*self.rows.parameters, *self.inner.elements(kind)[int(self.flat.sum()) :]]

    def log_density(self, thetas: Table, jacobian: bool = True) -> Float[np.ndarray, " n"]:
        return self.inner.log_density(self.of_kept(thetas), jacobian) + self._of_absent(thetas)

    def log_density_and_gradient(self, thetas: Table) -> tuple[Float[np.ndarray, " n"], Table]:
        slopes = np.empty_like(thetas)
        values, slopes[:, self.free] = self.inner.log_density_and_gradient(self.of_kept(thetas))
        slopes[:, ~self.free] = -(thetas[:, ~self.free] - self.means) / self.sds**2
        return values + self._of_absent(thetas), slopes

    def _of_absent(self, thetas: Table) -> Float[np.ndarray, " n"]:
        """The log density of the absent rows' parameters."""
        score = (thetas[:, ~self.free] - self.means) / self.sds
        return -(0.5 * score**2 + np.log(self.sds) + LOG_SQRT_2PI).sum(axis=1)

    def constrain(self, thetas: Table, kind: str = "parameters", seed: int = 1) -> Table:
        made = self.inner.constrain(self.of_kept(thetas), kind, seed)
        n = int(self.flat.sum())
        whole = np.empty((len(thetas), len(self.rows.parameters)))
        whole[:, self.flat] = made[:, :n]
        for absent, lent in self._lent():
            there = thetas.copy()
            there[:, self.rows.free[lent]] = thetas[:, self.rows.free[absent]]
            values = np.empty_like(whole)
            values[:, self.flat] = self.inner.constrain(self.of_kept(there))
            whole[:, self.rows.flat[absent]] = values[:, self.rows.flat[lent]]
        return np.concatenate([whole, made[:, n:]], axis=1)

    def unconstrain(self, params: Table) -> tuple[Table, str]:
        thetas = np.empty((len(params), len(self.rows.unconstrained)))
        thetas[:, self.free], said = self.inner.unconstrain(np.ascontiguousarray(params[:, self.flat]))
        for absent, lent in self._lent():
            there = params.copy()
            there[:, self.rows.flat[lent]] = params[:, self.rows.flat[absent]]
            values = np.empty_like(thetas)
            values[:, self.free], _ = self.inner.unconstrain(np.ascontiguousarray(there[:, self.flat]))
            thetas[:, self.rows.free[absent]] = values[:, self.rows.free[lent]]
        return thetas, said

    def of_kept(self, thetas: Table) -> Table:
        """Unconstrained parameters of the program with the kept rows."""
        return np.ascontiguousarray(thetas[:, self.free])

    def with_absent(self, inner: Table, random: np.random.Generator) -> Table:
        """Unconstrained parameters of the kept rows, with draws for the absent ones beside them."""
        thetas = np.empty((len(inner), len(self.rows.unconstrained)))
        thetas[:, self.free] = inner
        thetas[:, ~self.free] = self.means + self.sds * random.normal(size=(len(inner), len(self.means)))
        return thetas

    def _lent(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Absent rows, and kept ones whose places they take: the program maps them as it does those."""
        absent, kept = np.flatnonzero(~self.mask), np.flatnonzero(self.mask)
        starts = range(0, len(absent), len(kept))
        parts = [absent[at : at + len(kept)] for at in starts]
        return [(part, kept[: len(part)]) for part in parts]
