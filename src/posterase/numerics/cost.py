"""What a computation costs, in evaluations of the model: the same on every machine."""

from __future__ import annotations

from typing import NamedTuple


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
