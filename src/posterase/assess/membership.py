"""The paper's membership attack (Appendix D): a threshold on the probability of the true class.

    Acc(ρ) = ½ (share of kept rows with f_θ(x)_y ≥ ρ + share of test rows with f_θ(x)_y < ρ)

is maximised over ρ on kept and test rows; what is reported is the share of removed rows with f_θ(x)_y ≥ ρ*: how many of
them the attack takes for members. Lower is *not* better: the target is what a refit, which never saw them, gives.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float

from posterase.errors import InvalidOptionError


def attack(
    kept: Float[np.ndarray, "draws kept"],
    test: Float[np.ndarray, "draws test"],
    removed: Float[np.ndarray, "draws removed"],
) -> float:
    """The share of removed rows taken for members, averaged over draws; arguments are probabilities of true classes."""
    for name, values in (("kept", kept), ("test", test), ("removed", removed)):
        if values.shape[-1] == 0:
            raise InvalidOptionError(f"there are no {name} rows.", "the attack needs kept, test and removed rows.")
    return float(np.mean([np.mean(r >= threshold(k, t)) for k, t, r in zip(kept, test, removed, strict=True)]))


def threshold(kept: Float[np.ndarray, " kept"], test: Float[np.ndarray, " test"]) -> float:
    """The best threshold between members and others; of several as good ones the lowest."""
    values = np.unique(np.concatenate([kept, test, [np.inf]]))
    members = 1 - np.searchsorted(np.sort(kept), values, side="left") / len(kept)
    others = np.searchsorted(np.sort(test), values, side="left") / len(test)
    return float(values[np.argmax(members + others)])
