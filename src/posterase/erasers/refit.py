"""Refit: sample the kept posterior anew. Always exact, as the chains converge; the dearest rung.

Chains start at draws of the full posterior, or at those that `Transport` has moved, picked at random: near, and spread
out. By NUTS where all rows fit a step, by the model's own sampler where it has one (Stan), or by the SG-MCMC recipe
that made the draws, its step sizes rescaled by N/N′ as the sum over rows has shrunk.
"""

from __future__ import annotations

import dataclasses
from typing import ClassVar

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Key, PyTree

from posterase.checks import is_a, whole_number
from posterase.draws import Draws
from posterase.erasers.eraser import Erased, Eraser
from posterase.erasers.evidence import Evidence
from posterase.erasers.transport import TransportDiagnostics
from posterase.model import AbstractModel
from posterase.numerics.cost import REFIT_WARMUP, Cost, refit_chains
from posterase.objections import Objection
from posterase.origins import Origin
from posterase.removal import Removal
from posterase.sampling.mixing import mixing
from posterase.sampling.nuts import nuts
from posterase.sampling.sample import sample, start_chains
from posterase.sampling.sampler import Sampler


@dataclasses.dataclass(frozen=True)
class RefitDiagnostics:
    """How well the chains mixed."""

    rhat: dict[str, float]
    """R̂, rank normalised, the worst element of each parameter."""
    ess: dict[str, float]
    """Bulk effective sample size, the worst element of each parameter."""
    divergences: int
    """Transitions of NUTS whose energy went wrong."""
    chains: int

    @property
    def brief(self) -> str:
        """The figures that matter most."""
        return f"R̂ {max(self.rhat.values()):.3f}, ESS {min(self.ess.values()):.0f}"

    def __str__(self) -> str:
        return f"{self.chains} chains: {self.brief}, {self.divergences} divergences"


class Refit(Eraser):
    """Sample the kept posterior anew, from the draws at hand.

    Parameters
    ----------
    sampler
        The SG-MCMC recipe: `SGLD(…)` or `SGHMC(…)` as it sampled the full posterior. None: NUTS.
    warmup
        Steps before the first draw.
    thin
        Steps a draw, for an SG-MCMC recipe.
    """

    origin: ClassVar[Origin] = "refitted"
    samples_anew: ClassVar[bool] = True
    sampler: Sampler | None = None
    warmup: int = eqx.field(default=REFIT_WARMUP, static=True)
    thin: int = eqx.field(default=1, static=True)

    def __check_init__(self) -> None:
        if self.sampler is not None:
            is_a(self.sampler, Sampler, "sampler", "use SGLD(schedule) or SGHMC(schedule), or None for NUTS.")
        whole_number("warmup", self.warmup, 20)
        whole_number("thin", self.thin, 1)

    def _erase(self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal) -> Erased:
        return self.refit(key, model, draws, removal, draws)

    def _go_on(
        self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal, before: Erased
    ) -> Erased:
        nearer = before.draws if isinstance(before.diagnostics, TransportDiagnostics) else draws
        return self.refit(key, model, draws, removal, nearer)

    def refit(self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal, starts: Draws) -> Erased:
        """The same from other draws, shaped alike: nearer ones, that were moved."""
        kept = model.without(removal)
        chains = refit_chains(draws.n_chains, draws.n_draws)
        length = max(-(-draws.n_chains * draws.n_draws // chains), 4)
        pick, run = jax.random.split(key)
        places = jax.random.choice(pick, draws.n_chains * draws.n_draws, (chains,), p=starts.weights.ravel())
        initial = jax.tree.map(lambda leaf: leaf[places], starts.flat())
        own = kept.sampled(_seed(run), initial, length, self.warmup) if self.sampler is None else None
        if own is not None:
            fresh = Draws(own.params)
            diagnostics = RefitDiagnostics(*mixing(fresh), own.divergences, chains)
            cost = Cost(gradients=own.gradients, sequential=-(-own.gradients // chains))
        elif self.sampler is None:
            sampled = nuts(run, kept, initial, length, warmup=self.warmup)
            fresh, found = sampled.draws, sampled.diagnostics
            diagnostics = RefitDiagnostics(found.rhat, found.ess, found.divergences, chains)
            cost = Cost(gradients=found.gradients + found.warmup_gradients, sequential=found.sequential)
        else:
            recipe = self.sampler.rescaled(model.n_rows / kept.n_rows)
            state = sample(kept, recipe, start_chains(run, kept, recipe, initial), 1, thin=self.warmup).state
            fresh = sample(kept, recipe, state, length, thin=self.thin).draws
            diagnostics = RefitDiagnostics(*mixing(fresh), 0, chains)
            steps = self.warmup + length * self.thin
            share = 1.0 if recipe.batch is None else recipe.batch / kept.n_rows
            cost = Cost(gradients=share * chains * steps, sequential=steps)
        refitted = draws.replace(_dealt(fresh, draws))
        evidence = Evidence(
            ess=diagnostics.ess,
            cost=cost,
            rhat=max(diagnostics.rhat.values()),
            flaw=None if diagnostics.divergences == 0 else _diverged(diagnostics.divergences),
        )
        return Erased(refitted, diagnostics, evidence)


def _diverged(transitions: int) -> Objection:
    """Divergent transitions: regions that the chains could not enter."""
    return Objection("divergences", f"{transitions} transitions diverged", "use another parametrisation (non-centred).")


def _seed(key: Key[Array, ""]) -> int:
    """For samplers that are not jax's."""
    return int(jax.random.randint(key, (), 1, 2**31 - 1))


def _dealt(fresh: Draws, like: Draws) -> PyTree:
    """The new draws in the shape of the old ones, chains laid end to end."""

    def deal(new: Array, old: Array) -> Array:
        flat = new.reshape(-1, *new.shape[2:])[: old.shape[0] * old.shape[1]]
        return jnp.asarray(flat, old.dtype).reshape(old.shape)

    return jax.tree.map(deal, fresh.params, like.params)
