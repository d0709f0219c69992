"""Run checks by name, or all of them, and keep what each found in `release/last_check.json`."""

from __future__ import annotations

import argparse
import datetime
import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any

from posterase.runtime.files import written_whole
from posterase.version import __version__
from release.environments import ROOT, CheckError, ran

CHECKS = ["build", "citation", "core", "extras", "locked", "lowest"]
"""What they take: seconds, seconds, minutes, a quarter of an hour, half of one, ten minutes."""
RECORD = Path(__file__).with_name("last_check.json")


def main(names: list[str]) -> int:
    """How many did not pass; those are not kept."""
    failed = 0
    for name in names:
        print(f"{name} …", flush=True)
        start = time.monotonic()
        try:
            found = importlib.import_module(f"release.{name}").run()
        except CheckError as error:
            failed += 1
            print(f"{name} did not pass: {error}", flush=True)
            continue
        keep(name, found)
        print(f"{name} passed in {time.monotonic() - start:.0f} s", flush=True)
    return failed


def keep(name: str, found: dict[str, Any]) -> None:
    """Write it down, with what it was found for."""
    record = json.loads(RECORD.read_text()) if RECORD.exists() else {}
    record[name] = {
        "posterase": __version__,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "commit": ran("git", "rev-parse", "HEAD").strip(),
        "uncommitted_changes": bool(ran("git", "status", "--porcelain", "--", ".", f":!{RECORD.relative_to(ROOT)}")),
        "found": found,
    }
    ordered = {each: record[each] for each in CHECKS if each in record}
    with written_whole(RECORD) as beside:
        beside.write_text(json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m release", description=__doc__)
    parser.add_argument("names", nargs="*", default=CHECKS, metavar="check", help=", ".join(CHECKS))
    given = parser.parse_args()
    if unknown := set(given.names) - set(CHECKS):
        parser.error(f"there is no check {', '.join(sorted(unknown))}; there are {', '.join(CHECKS)}")
    sys.exit(main(given.names))
