"""Run benchmarks by name, or all of them."""

from __future__ import annotations

import importlib
import sys

from posterase.experiments.machine import machine

ALL = ["reweight", "influence_shift", "gmm", "memory", "evidence", "ladder", "networks"]


def main(names: list[str]) -> None:
    print(machine())
    for name in names:
        for ratio in importlib.import_module(f"benchmarks.{name}").run():
            print(ratio, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:] or ALL)
