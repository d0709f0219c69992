"""The tutorials: pages whose code is run, and whose outputs and figures are what it made.

    python -m tests.tutorials                      # every page anew
    python -m tests.tutorials forget-one-person    # one of them

A page, `docs/tutorials/NAME.md`, is its own source. Its blocks are run in their order, in a folder that holds the data
files of the tutorials and nothing else:

    ```python                    is run; all of them in one process
    ```sh                        is run; all of them in one shell, which ends at the first command that fails
    ```toml title="job.toml"     is written to a file of that name, whatever the language
    ```text title="prints"       is what the block before printed: written here
    ![…](figures/NAME.png)       is what the code saved as NAME.png: copied here
    *Made by …*                  says where and when: written here

A block without any of these is shown and not run.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from posterase.experiments.machine import machine

FOLDER = Path(__file__).parent.parent / "docs" / "tutorials"
NAMES = tuple(sorted(page.stem for page in FOLDER.glob("*.md")))

BLOCK = re.compile(
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```\n'
    r'(?:\n```text title="prints"\n(?P<shown>.*?)^```\n)?',
    re.DOTALL | re.MULTILINE,
)
FIGURE = re.compile(r"!\[[^\]]*\]\(figures/([\w-]+\.png)\)")
MADE_BY = re.compile(r"^\*Made by .*\*\n\Z", re.MULTILINE | re.DOTALL)

MARK = "--- the end of a block ---"
PATIENCE = 600
"""Seconds after which a page that goes on is ended, on however busy a machine."""

MOST_SECONDS = 120
"""That a page may have taken where it was written."""

PYTHON = f"""
import sys
names = {{"__name__": "__main__"}}
for path in map(str.strip, sys.stdin):
    with open(path) as file:
        exec(compile(file.read(), path, "exec"), names)
    print({MARK!r}, flush=True)
"""


class TutorialError(AssertionError):
    """A block of a page does not run."""


@dataclasses.dataclass(frozen=True)
class Block:
    """A block that was run."""

    code: str
    shown: str
    """What the page says that it prints."""
    printed: str
    """What it printed."""


@dataclasses.dataclass(frozen=True)
class Ran:
    """A page that was run."""

    blocks: list[Block]
    figures: dict[str, Path]
    """Those that the page shows, by their names: what was made."""
    page: str
    """With what was printed."""


class Session:
    """A process that runs one block after the other."""

    def __init__(self, words: list[str], call: str, folder: Path, environment: dict[str, str], errors: Path) -> None:
        self._call, self._errors = call, errors
        with errors.open("w") as stderr:
            self._process = subprocess.Popen(
                words,
                cwd=folder,
                env=environment,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
                start_new_session=True,
            )

    def run(self, path: Path) -> str:
        """What a block prints."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        printed = []
        try:
            self._process.stdin.write(self._call.format(path) + "\n")
            self._process.stdin.flush()
            for line in self._process.stdout:
                if line.endswith(MARK + "\n"):
                    return "".join(printed) + line.removesuffix(MARK + "\n")
                printed.append(line)
        except BrokenPipeError:
            pass
        raise TutorialError(f"{path.read_text()}\n{''.join(printed)}\n{self._errors.read_text()[-4000:]}")

    def kill(self) -> None:
        """With all that it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """End it and leave nothing behind."""
        self.kill()
        self._process.wait()
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdout.close()
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()


def run(page: str, folder: Path) -> Ran:
    """Run a page in a folder."""
    for data in FOLDER.glob("*.csv"):
        shutil.copy(data, folder)
    blocks, text, at = [], "", 0
    with tempfile.TemporaryDirectory(prefix="tutorial-") as home, sessions(folder, Path(home)) as running:
        for number, found in enumerate(BLOCK.finditer(page)):
            title, language, code = found["title"], found["language"], found["text"]
            text += page[at : found.end("text")] + "```\n"
            at = found.end()
            if title == "prints":
                raise TutorialError(f"the output follows no code that is run:\n{code}")
            if title:
                (folder / title).write_text(code)
            elif language in running:
                path = Path(home) / f"block-{number}"
                path.write_text(code)
                printed = tidy(running[language].run(path))
                blocks.append(Block(code, found["shown"] or "", printed))
                text += f'\n```text title="prints"\n{printed}```\n' if printed else ""
    figures = {name: folder / name for name in FIGURE.findall(page)}
    missing = [name for name, made in figures.items() if not made.exists()]
    if missing:
        raise TutorialError(f"the page shows figures that its code does not make: {missing}")
    return Ran(blocks, figures, text + page[at:])


@contextlib.contextmanager
def sessions(folder: Path, home: Path) -> Iterator[dict[str, Session]]:
    """A process for each language; what they started ends with them."""
    own = environment(home)
    made = {
        "python": Session([sys.executable, "-c", PYTHON], "{}", folder, own, home / "python-errors"),
        "sh": Session(["bash", "-e"], f". {{}}\necho '{MARK}'", folder, own, home / "sh-errors"),
    }
    late = threading.Timer(PATIENCE, lambda: [session.kill() for session in made.values()])
    late.start()
    try:
        yield made
    finally:
        late.cancel()
        for session in made.values():
            session.close()


def environment(home: Path) -> dict[str, str]:
    """A new user's: nothing of theirs is set, and nothing of ours is touched."""
    own = {
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(home),
        "LOGNAME": "reader",
        "XDG_CONFIG_HOME": str(home / "config"),
        "POSTERASE_COMPILATION_CACHE": str(home / "programs"),
        "COLUMNS": "110",
        "JAX_PLATFORMS": "cpu",
    }
    return {name: value for name, value in os.environ.items() if not name.startswith("POSTERASE_")} | own


def tidy(printed: str) -> str:
    """Without empty lines at its ends, and blanks at the ends of lines."""
    lines = [line.rstrip() for line in printed.splitlines()]
    return "\n".join(lines).strip("\n") + "\n" if any(lines) else ""


# --- do two outputs say the same?

UNLIKE = re.compile(
    r"[0-9a-f]{8}-[0-9a-f-]{27}|[\w+/]{32,}=*|\b[0-9a-f]{8}\b|posterase_[\w-]+|(?<=sha256:)\w+"
    r"|\d{4}-\d\d-\d\d(?:[T ][\d:.]+(?:Z|\+[\d:]+| UTC)?)?"
    r"|(?<=effective draws of )[\w\[\]]+"
)
"""What differs from run to run by its nature: ids, hashes, signatures, tokens, dates; which parameter is the worst."""
NUMBER = re.compile(r"[-−]?\d[\d,]*(?:\.\d+)?(?:e[-+]?\d+)?")
NOISY = re.compile(r"(?<=k̂ )-?\d[\d.]*\d|(?<=ESS )\d[\d,]*")
ABSOLUTE, RELATIVE = 0.02, 0.35
MOST_COUNTED = 10


def differences(shown: str, printed: str) -> list[str]:
    """Where what a page shows is not what its code printed.

    Words must be the same, line by line, and whole numbers up to ten. Other numbers may differ by 0.02 and 35 %: chains
    of another machine are other draws of the same law. Ids, hashes, tokens, dates, seconds and evaluations may be any,
    and the worst parameter another. So may k̂ and ESS, whose own errors are large: what they led to, the verdict, is in
    words.
    """
    old, new = (_steady(text) for text in (shown, printed))
    if len(old) != len(new):
        return [f"{len(old)} lines are shown, {len(new)} were printed:\n{printed}"]
    return [f"shown: {a}\nprinted: {b}" for a, b in zip(old, new, strict=True) if not _agree(a, b)]


def _agree(shown: str, printed: str) -> bool:
    words = [" ".join(NUMBER.sub("#", line).split()) for line in (shown, printed)]
    numbers = zip(NUMBER.findall(shown), NUMBER.findall(printed), strict=False)
    return words[0] == words[1] and all(_near(*pair) for pair in numbers)


def _near(shown: str, printed: str) -> bool:
    a, b = (float(number.replace(",", "").replace("−", "-")) for number in (shown, printed))
    counted = "." not in shown and abs(a) <= MOST_COUNTED
    return a == b if counted else abs(a - b) <= ABSOLUTE + RELATIVE * max(abs(a), abs(b))


def _steady(text: str) -> list[str]:
    """The lines, without what may be any: in columns of a table too."""
    lines: list[str] = []
    columns: list[int] = []
    for line in text.splitlines():
        if line.startswith("method "):
            columns = [line.index(name) for name in ("seconds", "evaluations", "ESS", "k̂")]  # the last first
        elif not line.strip():
            columns = []
        for column in columns:
            line = line[:column] + re.sub(r"^-?\d[\d.,]*", "…", line[column:])
        lines.append(NOISY.sub("…", UNLIKE.sub("…", line)))
    return lines


# --- pages anew


def code_digest(page: str) -> str:
    """Of all code and files of a page: whether its outputs and figures are of this very code."""
    code = "\0".join(f"{found['language']} {found['title']}\0{found['text']}" for found in BLOCK.finditer(page))
    return hashlib.sha256(code.encode()).hexdigest()[:12]


def write(name: str) -> None:
    """A page with what its code prints and draws now."""
    path = FOLDER / f"{name}.md"
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        ran = run(path.read_text(), Path(folder))
        for figure, made in ran.figures.items():
            shutil.copy(made, FOLDER / "figures" / figure)
    seconds = 10 * math.ceil((time.monotonic() - started) / 10)
    made_by = (
        f"*Made by `python -m tests.tutorials {name}` in less than {seconds} s: {machine()}, {os.cpu_count()} cores, "
        f"code {code_digest(ran.page)}. Outputs and figures are what the code on this page printed and drew there; "
        "seconds are of that machine.*\n"
    )
    path.write_text(MADE_BY.sub("", ran.page).rstrip("\n") + f"\n\n{made_by}")
    print(f"{name}: {len(ran.blocks)} blocks, {seconds} s")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Run tutorials and write their outputs and figures.")
    parser.add_argument("names", nargs="*", help=f"of {', '.join(NAMES)}; none: all")
    for each in parser.parse_args().names or NAMES:
        write(each)
