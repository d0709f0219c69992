"""The protocol of methods: what a method is given, what it returns, and how it is called.

A method is an object with its settings. Users call it,

    result = method(key, model, draws, change)

which checks the input and calls `run`, the one function that a method has to write. The ladder has checked its input
already and calls `run` itself. A method is deterministic given the key and leaves its input untouched. It never returns
draws that cannot be used at all (NaN): that is an error. Whether draws pass is for a policy to decide.
"""

from __future__ import annotations

import abc
import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import equinox as eqx
import jax
from jax.sharding import Mesh
from jaxtyping import Array, Key, PyTree

from posterase.draws.draws import Draws
from posterase.errors import InvalidTypeError, NonFiniteDrawsError, NonFiniteResultError, OutsideSupportError
from posterase.methods.diagnostics import Diagnostics
from posterase.model.base import AbstractModel
from posterase.model.change import Change
from posterase.model.densities import Split, split
from posterase.model.stored import needs_density
from posterase.numerics.densities import unconstrained
from posterase.numerics.failures import entry_point
from posterase.numerics.propriety import check_informed
from posterase.runtime import sharding
from posterase.runtime.checks import check_type
from posterase.runtime.precision import is_known
from posterase.runtime.prng import as_key


@dataclasses.dataclass(frozen=True)
class Problem:
    """What a method is given: draws of the source, and how the data change."""

    key: Key[Array, ""]
    """A jax key for all random numbers."""
    model: AbstractModel
    """The source: its posterior is what the draws are of."""
    draws: Draws
    change: Change
    near: Draws | None = None
    """Draws nearer to the target than `draws`, with their weights, where other methods have made some."""
    is_trusted: bool = True
    """Whether the draws may be taken for draws of the source: not where their chains disagree."""
    objection: Callable[[MethodResult], str] | None = None
    """What the caller objects to in a result, in words; "" where nothing. A method that can try again may ask."""
    report: Callable[[str, float], None] | None = None
    """Is called with what has been done, and the seconds that are left."""

    @property
    def parts(self) -> tuple[Key[Array, ""], AbstractModel, Draws, Change]:
        """The key, the source model, its draws, and the change."""
        return self.key, self.model, self.draws, self.change

    @property
    def target(self) -> AbstractModel:
        """The model after the change."""
        return self.model.without(self.change)

    def split(self) -> Split:
        """The three functions of the problem: source, target and log ratio."""
        return split(self.model, self.change)

    def replace(self, **fields: Any) -> Problem:
        """The same with other fields."""
        return dataclasses.replace(self, **fields)


@dataclasses.dataclass(frozen=True)
class MethodResult:
    """What a method returns."""

    draws: Draws
    """Draws of the target, shaped, named and labelled as those that went in."""
    details: Any
    """What the method measured; a dataclass of its own for each method."""
    diagnostics: Diagnostics
    """The part of it that all methods share, for a policy to judge."""
    samples_anew: bool = False
    """Whether the method that made it samples anew. Taken from the method's class."""

    @property
    def ancestors(self) -> Any:
        """Which draws that went in those that came out descend from, where they were resampled; else None."""
        return getattr(self.details, "ancestors", None)

    def without_source(self) -> MethodResult:
        """The same, with nothing left that holds the removed rows: no function that evaluates them.

        Details that hold the source model have a `without_source` of their own.
        """
        drop = getattr(self.details, "without_source", None)
        diagnostics = dataclasses.replace(self.diagnostics, log_weights_at=None, moved=None)
        return dataclasses.replace(self, details=self.details if drop is None else drop(), diagnostics=diagnostics)

    def at_home(self) -> MethodResult:
        """The same, its draws as plain arrays that no mesh of devices holds."""
        return dataclasses.replace(self, draws=sharding.home(self.draws))

    def __str__(self) -> str:
        flaw = self.diagnostics.flaw
        return str(self.details) if flaw is None else f"{self.details}\n{flaw.reason}"


class Method(eqx.Module):
    """An algorithm that maps draws of the source to draws of the target.

    Derive from it, write `run`, and state as class attributes what the ladder must know.
    """

    needs_density: ClassVar[bool] = True
    """Whether it evaluates the model at other draws than those it is given."""
    samples_anew: ClassVar[bool] = False
    """Whether it is a refit: new chains on the target, whatever the draws that went in. Their R̂ is what counts;
    `erase` returns them as they are, and they spend nothing of the budget."""
    needs_informed: ClassVar[bool] = False
    """Whether the target must depend on every parameter. Checked when the method is called; the ladder checks it once
    for all methods."""
    takes_many_gradients: ClassVar[bool] = False
    """Whether a refit costs less where another program (Stan) computes the gradients."""

    @abc.abstractmethod
    def run(self, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
        """Map the draws, given input that has been checked.

        `warm_start` is what an earlier method of the ladder made of the same problem: go on from it where that helps.
        """

    def expected_gradients(self, draws: Draws, parameters: int, steps: float) -> float | None:
        """Return how many gradients a method that samples anew is expected to take; None where nothing is known.

        `steps` are those of a trajectory of length π/2, where moves of the draws have measured them; else 0.
        """
        return None

    def check(self, model: AbstractModel) -> None:
        """Raise an error where this method cannot be used with such a model."""
        if self.needs_density and not model.has_density:
            raise needs_density(f"the density, which {type(self).__name__} needs,")

    @entry_point
    def __call__(
        self,
        key: Key[Array, ""] | int,
        model: AbstractModel,
        draws: Draws,
        change: Change,
        *,
        mesh: Mesh | None = None,
        warm_start: MethodResult | None = None,
    ) -> MethodResult:
        """Check the input and run the method; over a `mesh` of devices (`pe.mesh()`), if there is one."""
        typed = as_key(key)
        check_type(model, AbstractModel, "model", "make one: pe.Model(log_prior, log_likelihood, data).")
        check_type(draws, Draws, "draws", "wrap them: pe.Draws({'name': array}).")
        check_type(change, Change, "change", "make one: model.change(remove=[3, 17]).")
        if not is_known(*jax.tree.leaves((draws, model, change))):
            raise InvalidTypeError(
                f"{type(self).__name__} was called inside jax.jit, jax.vmap or jax.grad.",
                "call it outside: a method compiles its own hot loops, and reads its diagnostics in between.",
            )
        self.check(model)
        model.change(remove=change.row_ids)  # made for this model, and not carried out before
        model.check(draws)
        if self.needs_informed:
            source, target, log_ratio = split(model, change)
            check_informed(target, log_ratio, *unconstrained(source.model, draws))
        if draws.container is not None:
            draws = draws.without(change.row_ids, model.without(change))
        with sharding.over(mesh):
            result = run_method(self, Problem(typed, model.spread(), draws, change), warm_start)
        return result if mesh is None else result.at_home()


def run_method(method: Method, problem: Problem, warm_start: MethodResult | None = None) -> MethodResult:
    """Run a method on checked input; what it is, its class says."""
    return dataclasses.replace(method.run(problem, warm_start), samples_anew=method.samples_anew)


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
