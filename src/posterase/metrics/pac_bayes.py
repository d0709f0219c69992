"""The PAC-Bayes bound of the paper's Theorem 3, corrected, and what an erasure adds to it (Corollary 1).

With the prior P = Laplace(0, 1) on each of d unconstrained parameters, fixed before any data were seen, and a loss
between 0 and 1, for all laws Q of the parameters at once and with probability at least 1 − δ over the kept rows,

    R(Q) ≤ R̂(Q) + √((KL(Q ‖ P) + log(1/δ) + log N′ + 2) / (2N′ − 1)),
    KL(Q ‖ P) = E_Q log q(θ) + E_Q ‖θ‖₁ + d log 2.

Corrected: the paper has log 2 where d log 2 belongs, and N, all rows, where only the N′ kept ones may be counted: the
bound is about rows drawn independently of each other, so which rows S′ were removed must not depend on their values.

E log q needs the normalised density: log q = kept − log p(S − S′) for draws of the kept posterior, and so the evidence.
Where that is not known, only what a shift θ − I(S′) changes is: ΔKL = E‖θ − I‖₁ − E‖θ‖₁, by which the bound grows by
√(max(ΔKL, 0)/(2N′ − 1)) at most.

References
----------
McAllester (2003), PAC-Bayesian stochastic model selection, Machine Learning 51.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from posterase.errors import DrawsShapeError, InvalidOptionError
from posterase.numerics.weights import Estimate, base_of, standard_error
from posterase.runtime.checks import check_int

CONDITION = "holds where the removed rows were chosen without looking at their values"


class PacBayes(NamedTuple):
    """A bound on the expected loss of a law of parameters."""

    bound: Estimate
    """On the expected loss, with the Monte Carlo error of what is averaged over draws. Above 1 it says nothing."""
    divergence: Estimate
    """KL(Q ‖ P), in nats."""
    risk: float
    """Mean loss on the kept rows."""

    def __str__(self) -> str:
        vacuous = "; vacuous" if self.bound.value >= 1 else ""
        return f"expected loss ≤ {self.bound} ({self.risk:.3f} on the kept rows{vacuous}); {CONDITION}"


class PacBayesChange(NamedTuple):
    """What an erasure adds to the bound at most."""

    divergence: Estimate
    """ΔKL = E‖θ′‖₁ − E‖θ‖₁, in nats."""
    bound: float
    """√(max(ΔKL, 0)/(2N′ − 1))."""

    def __str__(self) -> str:
        return f"ΔKL {self.divergence}: the bound grows by {self.bound:.2g} at most; {CONDITION}"


def pac_bayes(
    risk: float,
    log_density: Float[np.ndarray, "chain draw"],
    l1_norm: Float[np.ndarray, "chain draw"],
    dimensions: int,
    kept_rows: int,
    *,
    weights: Float[np.ndarray, "chain draw"] | None = None,
    delta: float = 0.05,
) -> PacBayes:
    """The bound for draws whose normalised density is known.

    Parameters
    ----------
    risk
        Mean loss over draws and kept rows; the loss lies between 0 and 1.
    log_density
        log q at every draw, *normalised*, of unconstrained parameters.
    l1_norm
        ‖θ‖₁ of every draw, of the same unconstrained parameters.
    dimensions
        How many of them there are.
    kept_rows
        N′.
    weights
        Of the draws, summing to one; None: equal.
    delta
        The bound fails with at most this probability.
    """
    check_int("dimensions", dimensions, 1)
    check_int("kept_rows", kept_rows, 1)
    if not 0 <= risk <= 1:
        raise InvalidOptionError(f"risk is {risk!r}.", "the loss must lie between 0 and 1.")
    if not 0 < delta < 1:
        raise InvalidOptionError(f"delta is {delta!r}.", "use a probability between 0 and 1.")
    terms = log_density + l1_norm
    if not np.isfinite(terms).all():
        raise DrawsShapeError(
            "log_density or l1_norm is NaN or infinite.", "give the normalised density of every draw."
        )
    base = base_of(terms.shape) if weights is None else weights
    divergence = Estimate(float((base * terms).sum()) + dimensions * np.log(2), standard_error(terms, base))
    if divergence.value < -4 * divergence.error:
        raise InvalidOptionError(
            f"KL to the prior comes out as {divergence}, and cannot be negative.",
            "log_density must be normalised: is the evidence right, are prior and likelihood normalised?",
        )
    known = np.log(1 / delta) + np.log(kept_rows) + 2
    # By chance the estimate can be negative, a KL cannot.
    root = float(np.sqrt((max(divergence.value, 0.0) + known) / (2 * kept_rows - 1)))
    error = divergence.error / (2 * root * (2 * kept_rows - 1))
    return PacBayes(Estimate(risk + root, error), divergence, float(risk))


def pac_bayes_change(
    before: Float[np.ndarray, "chain draw"], after: Float[np.ndarray, "chains draws"], kept_rows: int
) -> PacBayesChange:
    """What a shift adds, from ‖θ‖₁ of every draw before it, and of the same draw after it."""
    check_int("kept_rows", kept_rows, 1)
    if before.shape != after.shape:
        raise DrawsShapeError(
            f"there are {before.shape} draws before and {after.shape} after.", "a shift moves every draw."
        )
    difference = after - before
    change = Estimate(float(difference.mean()), standard_error(difference, base_of(difference.shape)))
    return PacBayesChange(change, float(np.sqrt(max(change.value, 0.0) / (2 * kept_rows - 1))))
