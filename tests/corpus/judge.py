"""Whether an erased posterior is that of the kept rows: the strict test against a long run.

A variable is wrong where its mean is off by more than 4.5 standard errors *and* more than 0.15 standard deviations, or
its standard deviation by more than 4.5 standard errors and more than 15 %. Two independent NUTS runs practically never
differ by that much.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np
import xarray as xr
from arviz_stats.base import array_stats
from jaxtyping import Float, Int

STANDARD_ERRORS, MEAN_SHIFT, SPREAD_RATIO = 4.5, 0.15, 1.15


@dataclasses.dataclass(frozen=True)
class Summary:
    """Mean and standard deviation of a variable, with their Monte Carlo errors."""

    mean: Float[np.ndarray, "..."]
    sd: Float[np.ndarray, "..."]
    mean_error: Float[np.ndarray, "..."]
    sd_error: Float[np.ndarray, "..."]

    @classmethod
    def of(cls, values: Float[np.ndarray, "chain draw ..."]) -> Summary:
        """Of draws."""
        wide = np.asarray(values, np.float64)
        with np.errstate(all="ignore"):
            errors = [array_stats.mcse(wide, chain_axis=0, draw_axis=1, method=m) for m in ("mean", "sd")]
        moments = wide.mean(axis=(0, 1)), wide.std(axis=(0, 1), ddof=1)
        return cls(*(np.asarray(each) for each in (*moments, *errors)))

    def without(self, numbers: Int[np.ndarray, " some"], shape: tuple[int, ...]) -> Summary:
        """Without these entries of the axis that is longer by so many than in `shape`."""
        if self.mean.shape == shape or self.mean.ndim != len(shape):
            return self
        lengths = enumerate(zip(self.mean.shape, shape, strict=True))
        axes = [i for i, (ours, theirs) in lengths if ours == theirs + len(numbers)]
        fields = [getattr(self, field.name) for field in dataclasses.fields(self)]
        for axis in axes:
            fields = [np.delete(each, numbers, axis) for each in fields]
        return Summary(*fields)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON."""
        digits = np.vectorize(lambda x: float(f"{x:.6g}"), otypes=[float])
        return {name: digits(each).tolist() for name, each in dataclasses.asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Summary:
        """From plain JSON."""
        return cls(**{name: np.asarray(each, np.float64) for name, each in values.items()})


def wrong_variables(
    posterior: xr.Dataset,
    reference: Mapping[str, Summary],
    emptied: Int[np.ndarray, " some"],
    ignore: tuple[str, ...] = (),
) -> list[str]:
    """What is wrong with a posterior, variable by variable; empty where it passes."""
    found = []
    for name, values in posterior.transpose("chain", "draw", ...).data_vars.items():
        if name in ignore or str(name) not in reference or not np.issubdtype(values.dtype, np.floating):
            continue
        ours, theirs = Summary.of(values.values), reference[str(name)]
        theirs = theirs.without(emptied, ours.mean.shape)
        if ours.mean.shape != theirs.mean.shape:
            found.append(f"{name} has the shape {ours.mean.shape}, the reference {theirs.mean.shape}")
            continue
        found += _differences(str(name), ours, theirs)
    return found


def _differences(name: str, ours: Summary, theirs: Summary) -> list[str]:
    constant = (theirs.sd <= 1e-6 * (1e-300 + np.abs(theirs.mean))) & (ours.sd <= 1e-5 * (1e-300 + np.abs(ours.mean)))
    with np.errstate(all="ignore"):
        shift = np.abs(ours.mean - theirs.mean)
        errors = np.hypot(ours.mean_error, theirs.mean_error)
        mean_off = ~(shift <= STANDARD_ERRORS * errors) & ~(shift <= MEAN_SHIFT * theirs.sd) & ~constant
        ratio = np.abs(np.log(ours.sd / theirs.sd))
        ratio_error = np.hypot(ours.sd_error / ours.sd, theirs.sd_error / theirs.sd)
        sd_off = ~(ratio <= STANDARD_ERRORS * ratio_error) & ~(ratio <= np.log(SPREAD_RATIO)) & ~constant
    found = []
    for at in zip(*np.nonzero(np.atleast_1d(mean_off)), strict=True):
        own = [np.atleast_1d(each)[at] for each in (shift, theirs.sd, errors)]
        found.append(f"{name}{list(map(int, at))}: mean off by {own[0] / own[1]:.2f} sd, {own[0] / own[2]:.1f} se")
    for at in zip(*np.nonzero(np.atleast_1d(sd_off)), strict=True):
        scale = (np.atleast_1d(ours.sd) / np.atleast_1d(theirs.sd))[at]
        found.append(f"{name}{list(map(int, at))}: standard deviation {scale:.2f} times the reference's")
    return found
