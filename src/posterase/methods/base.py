"""What all erasers share: how they are called, and what they return.

An eraser is an object with its settings, called as

    erased = eraser(key, model, draws, removal)

It checks its input before any work, is deterministic given the key, and leaves its input untouched. Draws that cannot
be used at all (NaN) are never returned: that is an error. Whether draws pass is for a policy to say.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, ClassVar

import equinox as eqx
import jax
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from posterase.data.streams import raises_read_errors
from posterase.draws.draws import Draws
from posterase.draws.origins import Origin
from posterase.errors import InsideJitError, NonFiniteDrawsError, NonFiniteResultError, OutsideSupportError
from posterase.methods.diagnostics import Evidence
from posterase.model.base import AbstractModel
from posterase.model.removal import Removal
from posterase.model.stored import StoredLikelihoods, needs_density
from posterase.runtime import sharding
from posterase.runtime.checks import check_type
from posterase.runtime.compilation_cache import programs_kept
from posterase.runtime.precision import is_known
from posterase.runtime.prng import as_key


@dataclasses.dataclass(frozen=True)
class Erased:
    """What an eraser returns."""

    draws: Draws
    """Draws of the kept posterior, shaped, named and labelled as those that went in."""
    diagnostics: Any
    """What the eraser measured; a dataclass of its own for each eraser."""
    evidence: Evidence
    """The part of it that all erasers share, for a policy to judge."""
    samples_anew: bool = False
    """Whether the eraser that made it samples anew. Filled in when an eraser is called."""

    @property
    def ancestors(self) -> Any:
        """Which draws that went in those that came out descend from, where they were resampled; else None."""
        return getattr(self.diagnostics, "ancestors", None)

    def without_full_model(self) -> Erased:
        """The same, with nothing left that holds the removed rows: no function that evaluates them."""
        diagnostics = self.diagnostics
        if getattr(diagnostics, "transported", False):
            diagnostics = dataclasses.replace(diagnostics, transported=None)
        started = getattr(diagnostics, "started", None)
        if started is not None:
            diagnostics = dataclasses.replace(diagnostics, started=started.without_full_model())
        evidence = dataclasses.replace(self.evidence, log_weights_at=None, moved=None)
        return dataclasses.replace(self, diagnostics=diagnostics, evidence=evidence)

    def at_home(self) -> Erased:
        """The same, its draws as plain arrays that no mesh of devices holds."""
        return dataclasses.replace(self, draws=sharding.home(self.draws))

    def __str__(self) -> str:
        flaw = self.evidence.flaw
        return str(self.diagnostics) if flaw is None else f"{self.diagnostics}\n{flaw.reason}"


class Eraser(eqx.Module):
    """An algorithm that turns draws of p(θ | S) into draws of p(θ | S − S′)."""

    needs_density: ClassVar[bool] = True
    """Whether it evaluates the model at other draws than those it is given."""
    origin: ClassVar[Origin] = "as returned"
    """What its draws are if `erase` does not move them afterwards."""
    samples_anew: ClassVar[bool] = False
    """Whether it is a refit: new chains on the kept rows, whatever the draws that went in. Their R̂ is what counts;
    `erase` returns them as they are, and they spend nothing of the budget."""
    takes_many_gradients: ClassVar[bool] = False
    """Whether a refit costs less where another program (Stan) computes the gradients."""

    @programs_kept()
    @raises_read_errors
    def __call__(
        self,
        key: Key[Array, ""] | int,
        model: AbstractModel,
        draws: Draws,
        removal: Removal,
        *,
        mesh: Mesh | None = None,
        before: Erased | None = None,
    ) -> Erased:
        """Erase the removal's rows from the draws; over a `mesh` of devices (`pe.mesh()`), if there is one.

        `before` is what a cheaper eraser made of the same draws, for those that can go on from there.
        """
        typed = as_key(key)
        check_type(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
        check_type(draws, Draws, "draws", "wrap them: pe.Draws({'name': array}).")
        check_type(removal, Removal, "removal", "make one: model.removal([3, 17]).")
        if not is_known(*jax.tree.leaves((draws, model, removal))):
            raise InsideJitError(
                f"{type(self).__name__} was called inside jax.jit, jax.vmap or jax.grad.",
                "call it outside: an eraser compiles its own hot loops, and reads its diagnostics in between.",
            )
        if self.needs_density and isinstance(model, StoredLikelihoods):
            raise needs_density(f"the density, which {type(self).__name__} needs,")
        model.removal(removal.row_ids)  # made for this model, and not carried out before
        model.check(draws)
        if draws.container is not None:
            draws = draws.without(removal.row_ids, model.without(removal))
        with sharding.over(mesh):
            if before is None:
                erased = self._erase(typed, model.spread(), draws, removal)
            else:
                erased = self._go_on(typed, model.spread(), draws, removal, before)
        erased = dataclasses.replace(erased, samples_anew=self.samples_anew)
        return erased if mesh is None else erased.at_home()

    @abc.abstractmethod
    def _erase(self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal) -> Erased:
        """The algorithm, on checked input."""

    def _go_on(
        self, key: Key[Array, ""], model: AbstractModel, draws: Draws, removal: Removal, before: Erased
    ) -> Erased:
        """The same from what a cheaper eraser made, where that helps."""
        return self._erase(key, model, draws, removal)


def replaced(draws: Draws, params: PyTree, log_weights: Any, what: str) -> Draws:
    """Moved draws; refused where some are no numbers any more."""
    try:
        return draws.replace(params, log_weights)
    except NonFiniteDrawsError as error:
        raise NonFiniteResultError(
            f"after {what} {error.problem}", "it leads too far: remove fewer rows at a time."
        ) from error


def check_in_support(model: AbstractModel, moved: Draws, what: str) -> None:
    """Moved draws are still inside the support of their transforms: too far out, rounding puts them on its edge."""
    try:
        model.check(moved)
    except OutsideSupportError as error:
        raise NonFiniteResultError(
            f"after {what} {error.problem}",
            "it leads too far for this precision: remove fewer rows at a time, or switch on 64-bit numbers in jax.",
        ) from error
