"""The samplers of the paper's experiments, by name."""

from __future__ import annotations

from typing import Literal, get_args

from posterase.errors import InvalidOptionError
from posterase.sampling.sampler import NoiseFreePhase, Sampler
from posterase.sampling.schedules import Schedule
from posterase.sampling.sghmc import SGHMC
from posterase.sampling.sgld import SGLD

SamplerName = Literal["sgld", "sghmc"]
SAMPLERS: tuple[SamplerName, ...] = get_args(SamplerName)
"""In the order of the paper's tables."""


def sampler_of(
    name: SamplerName, schedule: Schedule, *, batch: int, friction: float, noise_free: NoiseFreePhase | None = None
) -> Sampler:
    """The sampler of this name; `friction` is SGHMC's."""
    if name == "sgld":
        return SGLD(schedule, batch=batch, noise_free=noise_free)
    if name == "sghmc":
        return SGHMC(schedule, friction=friction, batch=batch, noise_free=noise_free)
    raise InvalidOptionError(f"sampler is {name!r}.", f"use one of: {', '.join(SAMPLERS)}.")


def named_samplers(option: str) -> tuple[SamplerName, ...]:
    """The names that the command line's `--sampler` stands for."""
    choices: dict[str, tuple[SamplerName, ...]] = {**{name: (name,) for name in SAMPLERS}, "both": SAMPLERS}
    if option not in choices:
        raise InvalidOptionError(f"--sampler is {option!r}.", "use sgld, sghmc or both.")
    return choices[option]
