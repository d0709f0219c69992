"""What a computation costs, in evaluations of the model: the same on every machine."""

from __future__ import annotations

from typing import NamedTuple

REFIT_CHAINS, REFIT_WARMUP, WARM_WARMUP = range(2, 65), 500, 60
"""Chains of a refit; steps of its warm-up, cold and from a warm start."""

FEWEST_REFIT_DRAWS = 250
"""Draws in so many chains of at least so many draws are refitted in like chains, others in four. Chains are never
shorter, for the sake of R̂: where fewer are asked for, evenly spaced ones are returned."""

REFIT_LEAPFROGS, HARD_REFIT_LEAPFROGS = 2.2, 4.4
"""A transition of NUTS takes at least so many times the leapfrog steps of a trajectory of length π/2; the second where
one such trajectory does not forget the start. Measured: 6.6 for 3 on a logistic regression; 19 for 4 and 25 for 3.5 on
hierarchies, centred and not."""

FEWEST_STEPS = 3.0
"""NUTS takes a trajectory of length π/2 in at least so many leapfrog steps."""


def refit_chains(chains: int, draws: int) -> int:
    """In how many chains draws of this shape are refitted."""
    return chains if chains in REFIT_CHAINS and draws >= FEWEST_REFIT_DRAWS else 4


def refit_length(chains: int, draws: int) -> int:
    """How many draws of each chain a refit takes."""
    return max(-(-chains * draws // refit_chains(chains, draws)), FEWEST_REFIT_DRAWS)


def refit_transitions(chains: int, draws: int, *, is_warm: bool = False) -> int:
    """How many transitions of NUTS a refit takes, with its warm-up, that returns draws of this shape."""
    warmup = WARM_WARMUP if is_warm else REFIT_WARMUP
    return refit_chains(chains, draws) * (refit_length(chains, draws) + warmup)


def least_refit_gradients(
    chains: int, draws: int, steps: float = FEWEST_STEPS, *, is_hard: bool = False, is_warm: bool = False
) -> float:
    """The fewest gradients that a refit by NUTS takes, given the steps of a trajectory of length π/2."""
    leapfrogs = (HARD_REFIT_LEAPFROGS if is_hard else REFIT_LEAPFROGS) * max(steps, FEWEST_STEPS)
    return refit_transitions(chains, draws, is_warm=is_warm) * leapfrogs


GRADIENTS_PER_TRANSITION = 3.5
"""A transition of NUTS from a warm start takes about so many gradients times d¼, with d parameters. Measured: 4.8 at 4,
8.5 at 31 and 14 at 89 parameters."""

IMBALANCE = 1.4
"""Chains that run side by side wait for the longest trajectory: about so many times the mean."""


def expected_refit_gradients(chains: int, draws: int, parameters: int, steps: float = 0.0) -> float:
    """About how many gradients a warm refit takes, given the steps of a trajectory of length π/2 if they are known."""
    each = max(GRADIENTS_PER_TRANSITION * parameters**0.25, REFIT_LEAPFROGS * steps)
    return refit_transitions(chains, draws, is_warm=True) * each


class Cost(NamedTuple):
    """Evaluations, counted in passes over all rows: what sees removed rows only counts by its share of the rows."""

    gradients: float | int = 0.0
    densities: float | int = 0.0
    sequential: int = 0
    """Evaluations that wait for each other: what a machine with many cores waits for."""

    @property
    def evaluations(self) -> float:
        """All in gradients; a density counts a third of one, a product with the Hessian two."""
        return self.gradients + self.densities / 3

    def plus(self, other: Cost) -> Cost:
        """Both, one after the other."""
        return Cost(
            self.gradients + other.gradients, self.densities + other.densities, self.sequential + other.sequential
        )
