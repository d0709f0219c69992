"""What all methods share: how they are called, and what they return.

A method is an object with its settings, called as

    erased = method(key, model, draws, change)

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
from posterase.methods.diagnostics import Diagnostics
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.stored import StoredLikelihoods, needs_density
from posterase.runtime import sharding
from posterase.runtime.checks import check_type
from posterase.runtime.compilation_cache import programs_kept
from posterase.runtime.precision import is_known
from posterase.runtime.prng import as_key


@dataclasses.dataclass(frozen=True)
class MethodResult:
    """What a method returns."""

    draws: Draws
    """Draws of the kept posterior, shaped, named and labelled as those that went in."""
    details: Any
    """What the method measured; a dataclass of its own for each method."""
    diagnostics: Diagnostics
    """The part of it that all methods share, for a policy to judge."""
    samples_anew: bool = False
    """Whether the method that made it samples anew. Filled in when a method is called."""

    @property
    def ancestors(self) -> Any:
        """Which draws that went in those that came out descend from, where they were resampled; else None."""
        return getattr(self.details, "ancestors", None)

    def without_full_model(self) -> MethodResult:
        """The same, with nothing left that holds the removed rows: no function that evaluates them."""
        details = self.details
        if getattr(details, "transported", False):
            details = dataclasses.replace(details, transported=None)
        started = getattr(details, "started", None)
        if started is not None:
            details = dataclasses.replace(details, started=started.without_full_model())
        diagnostics = dataclasses.replace(self.diagnostics, log_weights_at=None, moved=None)
        return dataclasses.replace(self, details=details, diagnostics=diagnostics)

    def at_home(self) -> MethodResult:
        """The same, its draws as plain arrays that no mesh of devices holds."""
        return dataclasses.replace(self, draws=sharding.home(self.draws))

    def __str__(self) -> str:
        flaw = self.diagnostics.flaw
        return str(self.details) if flaw is None else f"{self.details}\n{flaw.reason}"


class Method(eqx.Module):
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
        change: Change,
        *,
        mesh: Mesh | None = None,
        before: MethodResult | None = None,
    ) -> MethodResult:
        """Erase the change's rows from the draws; over a `mesh` of devices (`pe.mesh()`), if there is one.

        `before` is what a cheaper method made of the same draws, for those that can go on from there.
        """
        typed = as_key(key)
        check_type(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
        check_type(draws, Draws, "draws", "wrap them: pe.Draws({'name': array}).")
        check_type(change, Change, "change", "make one: model.change(remove=[3, 17]).")
        if not is_known(*jax.tree.leaves((draws, model, change))):
            raise InsideJitError(
                f"{type(self).__name__} was called inside jax.jit, jax.vmap or jax.grad.",
                "call it outside: a method compiles its own hot loops, and reads its diagnostics in between.",
            )
        if self.needs_density and isinstance(model, StoredLikelihoods):
            raise needs_density(f"the density, which {type(self).__name__} needs,")
        model.change(remove=change.row_ids)  # made for this model, and not carried out before
        model.check(draws)
        if draws.container is not None:
            draws = draws.without(change.row_ids, model.without(change))
        with sharding.over(mesh):
            if before is None:
                erased = self._erase(typed, model.spread(), draws, change)
            else:
                erased = self._go_on(typed, model.spread(), draws, change, before)
        erased = dataclasses.replace(erased, samples_anew=self.samples_anew)
        return erased if mesh is None else erased.at_home()

    @abc.abstractmethod
    def _erase(self, key: Key[Array, ""], model: AbstractModel, draws: Draws, change: Change) -> MethodResult:
        """The algorithm, on checked input."""

    def _go_on(
        self, key: Key[Array, ""], model: AbstractModel, draws: Draws, change: Change, before: MethodResult
    ) -> MethodResult:
        """The same from what a cheaper method made, where that helps."""
        return self._erase(key, model, draws, change)


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
