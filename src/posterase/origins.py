"""What happened to the draws that a request returns: one word for programs, one sentence for people."""

from __future__ import annotations

from typing import Literal

Origin = Literal["moved", "subset", "transported subset", "shifted", "refitted", "continued", "as returned"]

ORIGINS: dict[Origin, str] = {
    "moved": "The old draws were resampled, and then every one was moved by a Markov chain that leaves the new "
    "posterior invariant.",
    "subset": "The draws are a subset of the old ones: each old draw was kept or dropped at random, with a probability "
    "that depends on the removed rows.",
    "transported subset": "An affine map moved all or half of the old draws. The draws are a subset of these: each was "
    "kept or dropped at random, with a probability that depends on the removed rows.",
    "shifted": "Each old draw was shifted by InfluenceShift.",
    "refitted": "The draws come from a new fit without the removed rows.",
    "continued": "The chains went on without the removed rows.",
    "as returned": "The draws are as the method returned them.",
}
