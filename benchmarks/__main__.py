"""Run benchmarks by name, or all of them; `--json FILE` keeps what they print, `--sizes` says how large some are."""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import Ratio, write_whole
from posterase.experiments.machine import machine

ALL = [
    *("reweight", "influence_shift", "gmm", "memory", "evidence", "ladder", "networks", "first_step", "record"),
    *("service", "stream", "passes", "rows", "removed", "parameters", "draws", "devices", "compilation", "peers"),
    *("sides", "parameters_profile", "low_precision", "first_answers", "warm_refit", "compile_options"),
]
SIZED = ("rows", "removed", "parameters", "draws")
"""Those that take sizes: of rows, of removed rows, of parameters, of draws and chains."""


def main(names: list[str], target: Path | None, sizes: Sequence[int] = ()) -> None:
    # Several processes share a GPU here: none may take its memory in advance.
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    print(machine())
    ratios = []
    for name in names:
        run = importlib.import_module(f"benchmarks.{name}").run
        for ratio in run(sizes) if name in SIZED else run():
            print(ratio, flush=True)
            ratios.append(ratio._asdict() if isinstance(ratio, Ratio) else ratio)
            if target is not None:
                write_whole(target, json.dumps({"machine": machine(), "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", default=ALL, metavar="name", help=", ".join(ALL))
    parser.add_argument("--json", type=Path, metavar="FILE")
    parser.add_argument("--sizes", type=int, nargs="+", default=(), metavar="N", help=f"of {', '.join(SIZED)}")
    given = parser.parse_args()
    if unknown := set(given.names) - set(ALL):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; there are {', '.join(ALL)}")
    if given.sizes and not set(given.names) <= set(SIZED):
        parser.error(f"--sizes is for {', '.join(SIZED)}")
    main(given.names, given.json, given.sizes)
