"""What happened to the draws that a request returns: one word for programs, one sentence for people."""

from __future__ import annotations

from typing import Literal

Origin = Literal["moved", "subset", "refitted", "refitted and moved"]

ORIGINS: dict[Origin, str] = {
    "moved": "The method weighted, mapped or moved the old draws. They were then resampled, and every one was moved by "
    "a Markov chain that leaves the new posterior invariant. A test for drift along this chain found none.",
    "subset": "The draws are a subset of the old ones: each old draw was kept or dropped at random, with a probability "
    "that depends on the removed rows.",
    "refitted": "The draws come from a new fit without the removed rows.",
    "refitted and moved": "The draws come from a new fit without the removed rows. They were then resampled, and every "
    "one was moved by a Markov chain that leaves the new posterior invariant. A test for drift along this chain found "
    "none.",
}
