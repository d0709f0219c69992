"""Models as users of NumPyro write them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpyro
import numpyro.distributions as dist

from tests.corpus.case import Case


def coin(flips: Any = None) -> None:
    """Flips of a coin."""
    heads = numpyro.sample("heads", dist.Beta(1.0, 1.0))
    numpyro.sample("flip", dist.Bernoulli(heads), obs=flips)


FLIPS = (np.random.default_rng(1).uniform(size=60) < 0.7).astype(int)

CASES = [
    Case("numpyro-coin", "numpyro", coin, {"flips": FLIPS}, row=3, group=np.arange(10), n_rows=60, fast=True),
]
