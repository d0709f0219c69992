"""Transport: move every draw by an affine map, mean and covariance together, and weigh what is left.

    θ ← T(θ) = m′ + A(θ − m),        log w = kept(Tθ) − full(θ) + log |det A|

The density of the moved draws is known exactly, so these weights are exact too: with Pareto smoothed weights the moved
draws are draws of the kept posterior wherever k̂ is small, and without the weights already near it. Exact in one step
for a Gaussian.

The map starts from the curvatures of full and kept at a few draws (`numerics.transport_maps`); then quasi-Newton steps
bring its target to the best one, the minimum over m′ of KL(T p_S ‖ kept) (`numerics.transport_fit`); where the weights
still do not pass, moment matching refines it.

**Two folds.** A map fitted to some draws fits these too well. So two maps are fitted, each to one half of the draws,
and each half is moved by the map of the other: k̂ and ε are scored on draws that the map never saw.

**Split.** Where k̂ does not pass, every second draw may stay where it was: the draws are then those of the mixture
½ full(θ) + ½ full(T⁻¹θ)/|det A|, and this is what their weights divide by (Paananen et al. 2021, Section 2.4).

References
----------
Paananen, Piironen, Bürkner, Vehtari (2021), Implicitly adaptive importance sampling, Statistics and Computing 31.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar, NamedTuple

import equinox as eqx
import numpy as np
from jaxtyping import Array, Float, Key, PyTree

from posterase.draws.draws import Draws
from posterase.errors import InvalidOptionError
from posterase.methods.base import Method, MethodResult, Problem, check_in_support, replaced
from posterase.methods.diagnostics import Weighed, WeightDetails, weigh, weight_diagnostics, weight_figures
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import LogDensity
from posterase.numerics.densities import constrained, evaluate_at, unconstrained
from posterase.numerics.transport_fit import Fit, Fitted, Options
from posterase.numerics.transport_maps import AffineMap
from posterase.numerics.weights import base_weights, parameter_ess
from posterase.runtime.checks import check_int


@dataclasses.dataclass(frozen=True)
class TransportDetails(WeightDetails):
    """How the draws were moved, and how far their weights can be trusted: scored on draws the map was not fitted to."""

    shift_in_sd: float
    """How far the mean moved, in posterior standard deviations: root of the mean square over directions."""
    log_stretch: float
    """Mean over directions of the log factor by which the spread grew."""
    residual: float
    """What the quasi-Newton steps left: the step they would take next, in standard deviations, root mean square."""
    refinements: int
    """How often the map was refined by moment matching."""
    split: bool
    """Whether every second draw stayed where it was."""
    maps: tuple[AffineMap, AffineMap]
    """The map of the first half of the draws (fitted to the second), and of the second half (fitted to the first)."""
    transported: Transported | None = dataclasses.field(repr=False)
    """All of it, with the model of all rows, for `Rejuvenate` to go on from; dropped from what `erase` returns."""

    def without_source(self) -> TransportDetails:
        """The same without the model of all rows."""
        return dataclasses.replace(self, transported=None)

    def __str__(self) -> str:
        moved = f"mean moved {self.shift_in_sd:.2g} posterior sd, spread × {np.exp(self.log_stretch):.2f}"
        stayed = ", every second draw left in place" if self.split else ""
        return f"{super().__str__()}; {moved}{stayed}"


class Transport(Method):
    """An affine map of all draws, with exact weights.

    Parameters
    ----------
    refinements
        How often, at most, the map is refined by moment matching where its weights do not pass.
    newton_steps
        How many quasi-Newton steps, at most, bring the target to the best one.
    samples
        How many draws of each half the map's first form is computed from.
    split
        Whether every second draw stays where it was. None: where the weights pass only so.
    """

    needs_informed: ClassVar[bool] = True
    refinements: int = eqx.field(default=2, static=True)
    newton_steps: int = eqx.field(default=8, static=True)
    samples: int = eqx.field(default=32, static=True)
    split: bool | None = eqx.field(default=None, static=True)

    def __check_init__(self) -> None:
        check_int("refinements", self.refinements, 0)
        check_int("newton_steps", self.newton_steps, 0)
        check_int("samples", self.samples, 2)
        if self.split not in (None, True, False):
            raise InvalidOptionError(f"split is {self.split!r}.", "use True, False, or None to let the weights decide.")

    def run(self, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
        key, model, draws, change = problem.parts
        transported = self.transport(key, model, draws, change)
        params = constrained(model, transported.fitted.moved, transported.like, draws)
        moved = replaced(draws, params, transported.weighed.smoothed.log_weights, "the map")
        check_in_support(model, moved, "the map")
        details = transported.diagnose()
        diagnostics = weight_diagnostics(
            transported.weighed,
            parameter_ess(moved),
            transported.fitted.cost,
            log_weights_at=transported.log_weights_at,
            moved=draws.replace(params, draws.log_weights),
        )
        return MethodResult(moved, details, diagnostics)

    def transport(self, key: Key[Array, ""], model: AbstractModel, draws: Draws, change: Change) -> Transported:
        """The moved draws with all that is known of them; `Rejuvenate` goes on from here."""
        options = Options(self.refinements, self.newton_steps, self.samples, self.split)
        kept = model.without(change)
        thetas, like = unconstrained(model, draws)
        base = base_weights(draws)
        fitted = Fit(options, key, model, kept, change, thetas, like, base).run()
        return Transported(model, kept, like, thetas, base, fitted, weigh(fitted.log_weights, base, fitted.smoothed))


class Transported(NamedTuple):
    """Draws moved by two maps, and what their exact weights say."""

    model: AbstractModel
    kept: AbstractModel
    like: PyTree
    origin: Float[np.ndarray, "n d"]
    """Unconstrained draws before they were moved."""
    base: Float[np.ndarray, "chain draw"]
    """The weights that the draws came with."""
    fitted: Fitted
    weighed: Weighed

    def diagnose(self) -> TransportDetails:
        """Figures for the record."""
        deviation = np.sqrt(np.maximum(self.origin.var(axis=0), np.finfo(float).tiny))
        fitted = self.fitted
        shift = (fitted.moved - self.origin)[~fitted.stayed].mean(axis=0) / deviation
        return TransportDetails(
            **weight_figures(self.weighed),
            shift_in_sd=float(np.sqrt(np.mean(shift**2))),
            log_stretch=float(np.mean([float(one.log_det) for one in fitted.maps]) / self.origin.shape[1]),
            residual=fitted.residual,
            refinements=fitted.refinements,
            split=bool(fitted.stayed.any()),
            maps=fitted.maps,
            transported=self,
        )

    def log_weights_at(self, draws: Draws) -> Float[np.ndarray, "chain draw"]:
        """log kept − log density of the moved draws, at other draws: those of a refit, say."""
        thetas, _ = unconstrained(self.model, draws)
        full = LogDensity(self.model)
        # Half of the draws were moved by each map; where the draws were split, half of these stayed.
        parts = [
            evaluate_at(full, np.asarray(one.inverse(thetas)), self.like) - float(one.log_det)
            for one in self.fitted.maps
        ]
        density = np.logaddexp(*parts) - np.log(2)
        if self.fitted.stayed.any():
            density = np.logaddexp(density, evaluate_at(full, thetas, self.like)) - np.log(2)
        return (evaluate_at(LogDensity(self.kept), thetas, self.like) - density).reshape(draws.n_chains, draws.n_draws)
