"""Run benchmarks by name, or all of them; `--json FILE` keeps what they print."""

from __future__ import annotations

import argparse
import importlib
import json
from pathlib import Path

from posterase.experiments.machine import machine
from posterase.files import written_whole

ALL = [
    *("reweight", "influence_shift", "gmm", "memory", "evidence", "ladder", "networks", "first_step", "record"),
    *("service", "compilation", "peers"),
]


def main(names: list[str], target: Path | None) -> None:
    print(machine())
    ratios = []
    for name in names:
        for ratio in importlib.import_module(f"benchmarks.{name}").run():
            print(ratio, flush=True)
            ratios.append(ratio._asdict())
            if target is not None:
                with written_whole(target) as beside:
                    beside.write_text(json.dumps({"machine": machine(), "ratios": ratios}, indent=1) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", default=ALL, metavar="name", help=", ".join(ALL))
    parser.add_argument("--json", type=Path, metavar="FILE")
    given = parser.parse_args()
    main(given.names, given.json)
