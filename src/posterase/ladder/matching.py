"""Matched empirically: the verdict on networks, which have neither k̂ nor ε.

What speaks for an erased network is that it behaves as retrained ones do: predictions on the removed rows differ from
a refit's by no more than two refits differ (the floor), and errors, membership attack and the loss on kept rows lie
within the spread of the refits. The verdict says against how many refits, and that ε was not measured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, PyTree

from posterase.draws.draws import Draws
from posterase.errors import InvalidOptionError
from posterase.ladder.policy import Policy
from posterase.ladder.verdict import Verdict
from posterase.metrics.membership import membership_attack
from posterase.metrics.predictive import error_rate, mean_loss, predict, prediction_difference
from posterase.runtime.checks import check_type

SETS = ("kept", "removed", "test")


class Labelled(NamedTuple):
    """Rows to predict, and their classes."""

    x: PyTree
    labels: Sequence[int] | np.ndarray


class Behaviour(NamedTuple):
    """How a set of draws behaves."""

    errors: dict[str, float]
    attack: float
    kept_loss: float


class Matched(NamedTuple):
    """A comparison with refits, and what it comes to."""

    verdict: Verdict
    erased: Behaviour
    refits: list[Behaviour]
    difference: float
    """Of predictions on the removed rows, erased against refits."""
    floor: float
    """The same between refits."""

    def __str__(self) -> str:
        spread = np.array([[*each.errors.values(), each.attack, each.kept_loss] for each in self.refits])
        own = [*self.erased.errors.values(), self.erased.attack, self.erased.kept_loss]
        names = [*(f"error on {name} rows" for name in self.erased.errors), "membership attack", "loss on kept rows"]
        lines = [str(self.verdict), "", f"{'':24}erased   refits"]
        for name, value, column in zip(names, own, spread.T, strict=True):
            lines.append(f"{name:24}{value:<9.3f}{column.mean():.3f} ± {column.std(ddof=1):.3f}")
        lines.append(f"{'prediction difference':24}{self.difference:<9.3f}{self.floor:.3f} (floor)")
        return "\n".join(lines)


def match_refits(
    predictor: Callable[[PyTree, PyTree], Float[Array, "rows classes"]],
    erased: Draws,
    refits: Sequence[Draws],
    *,
    kept: Labelled | tuple[PyTree, Any],
    removed: Labelled | tuple[PyTree, Any],
    test: Labelled | tuple[PyTree, Any],
    policy: Policy | None = None,
) -> Matched:
    """Compare an erased classifier with refitted ones.

    Parameters
    ----------
    predictor
        `predictor(params, x)` → class probabilities, one row for each row of x.
    erased
        Draws after an erasure.
    refits
        Draws of two refits or more, fitted now or stored.
    kept, removed, test
        Rows and their classes: `(x, labels)`.
    policy
        How far figures may lie from the refits'.
    """
    policy = Policy() if policy is None else policy
    check_type(policy, Policy, "policy", "use pe.Policy(…).")
    if len(refits) < 2:
        raise InvalidOptionError(
            f"there are {len(refits)} refits.", "give two or more: their difference is the floor of any comparison."
        )
    sets = {name: Labelled(*each) for name, each in zip(SETS, (kept, removed, test), strict=True)}
    labels = {name: np.asarray(each.labels) for name, each in sets.items()}
    for name, each in labels.items():
        if each.ndim != 1 or not np.issubdtype(each.dtype, np.integer) or each.size == 0:
            raise InvalidOptionError(f"labels of {name} are {each!r}.", "use whole numbers, the class of each row.")
    outputs = [{name: predict(predictor, draws, sets[name].x) for name in SETS} for draws in (erased, *refits)]
    own, *others = (_behaviour(output, labels) for output in outputs)
    seen = [output["removed"] for output in outputs]
    difference = float(np.mean([prediction_difference(seen[0], one).value for one in seen[1:]]))
    floor = float(np.mean([prediction_difference(one, other).value for one, other in combinations(seen[1:], 2)]))
    reasons = _reasons(own, others, difference, floor, policy)
    told = f"excess over the floor {max(difference / floor - 1, 0):.0%}" if floor > 0 else "predictions as the refits'"
    against = f"against {len(refits)} refits; ε not measured"
    verdict = Verdict(
        accepted=not reasons,
        kind="refused" if reasons else "matched empirically",
        method="" if reasons else "a match with refits",
        reason=f"{'; '.join(reasons)} ({against})" if reasons else f"matched empirically {against}; {told}",
        public_reason=f"the predictions {'do not match' if reasons else 'match'} those of {len(refits)} refits",
        advice="continue longer on the kept rows, shift with another curvature, or refit." if reasons else "",
    )
    return Matched(verdict, own, others, difference, floor)


def _behaviour(output: dict[str, Float[np.ndarray, "draws rows classes"]], labels: dict[str, np.ndarray]) -> Behaviour:
    true = {name: output[name][:, np.arange(len(labels[name])), labels[name]] for name in SETS}
    return Behaviour(
        errors={name: error_rate(output[name], labels[name]) for name in SETS},
        attack=membership_attack(true["kept"], true["test"], true["removed"]),
        kept_loss=mean_loss(output["kept"], labels["kept"]),
    )


def _reasons(own: Behaviour, others: list[Behaviour], difference: float, floor: float, policy: Policy) -> list[str]:
    reasons = []
    if difference > floor * (1 + policy.prediction_excess):
        reasons.append(f"predictions on removed rows differ by {difference:.3f}, two refits by {floor:.3f}")
    for name in SETS:
        gap = _gap(own.errors[name], [each.errors[name] for each in others])
        if gap > policy.error_gap:
            reasons.append(f"the error on {name} rows is {gap:.1%} beyond the refits' spread")
    gap = _gap(own.attack, [each.attack for each in others])
    if gap > policy.attack_gap:
        reasons.append(f"the membership attack is {gap:.1%} beyond the refits' spread")
    losses = [each.kept_loss for each in others]
    if _gap(own.kept_loss, losses) > policy.loss_gap * float(np.mean(losses)):
        reasons.append(f"the loss on kept rows is {own.kept_loss:.3g}, the refits' {np.mean(losses):.3g}")
    return reasons


def _gap(value: float, others: list[float]) -> float:
    """How far a value lies outside the range of the others."""
    return max(min(others) - value, value - max(others), 0.0)
