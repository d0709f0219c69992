"""`posterase data`: which data sets there are, where their files are, and whether they are the official ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from posterase.cli.exit_status import ERROR
from posterase.cli.output import Commands, Said
from posterase.errors import DatasetError
from posterase.experiments import datasets

data = Commands(
    help="The data sets of the experiments: what there is, where, and whether it is right.", no_args_is_help=True
)

Folder = Annotated[
    Path | None,
    typer.Option("--data", help="A data folder to look in first; then $POSTERASE_DATA and the user's cache."),
]
MARKS = {"ok": "green", "wrong": "bold red", "not known": "yellow", "not here": "dim"}


@data.command("list")
def list_sets(said: Said, folder: Folder = None) -> None:
    """Names, images, where they come from, and whether they are here.

    Example: `posterase data list`
    """
    table = Table(box=None, pad_edge=False)
    for title in ("name", "train", "test", "image", "classes", "here"):
        table.add_column(title, justify="right" if title in ("train", "test", "classes") else "left", no_wrap=True)
    listed = [
        {"name": name, "here": _here(name, folder), "from": source.address} for name, source in datasets.SOURCES.items()
    ]
    for name, source in datasets.SOURCES.items():
        counts = f"{source.count(source.train):,}", f"{source.count(source.test):,}"
        image = "×".join(map(str, source.image))
        table.add_row(name, *counts, image, str(len(source.classes)), _here(name, folder))
    here = "yes" if _has_digits() else "no"
    table.add_row("digits", "1,442", "355", "8×8×1", "10", here)
    Console().print(table)
    _say("\nWhat is not here is fetched when it is first used:")
    for name, source in datasets.SOURCES.items():
        _say(f"  {name} from {source.address}{'; or ' + source.hint if source.hint else ''}")
    _say("  digits come with scikit-learn: pip install 'posterase[data]'")
    folders = [str(each) for each in datasets.data_folders(folder)]
    _say(f"into the first of the folders looked in: {', '.join(folders)}")
    listed.append({"name": "digits", "here": here, "from": "scikit-learn"})
    said.json({"sets": listed, "folders": folders})


@data.command()
def where(
    said: Said,
    name: Annotated[str | None, typer.Argument(help="A data set; without it, all of them.")] = None,
    folder: Folder = None,
) -> None:
    """The folders looked in, in their order, and the files found there.

    Example: `posterase data where fashion-mnist`
    """
    places: dict[str, dict[str, list[str]]] = {}
    for each in _asked([name] if name else []):
        places[each] = {}
        if each == "digits":
            _say("digits: in scikit-learn" + ("" if _has_digits() else ", which is not installed"))
            continue
        _say(f"{each}:")
        source = datasets.SOURCES[each]
        for place in datasets.data_folders(folder, each):
            found = [path for file in source.train + source.test for path in datasets.copies(file, [place])]
            places[each][str(place)] = [str(path.relative_to(place)) for path in found]
            _say(f"  {place}: {len(found) or 'no'} file{'' if len(found) == 1 else 's'}")
            for path in found:
                _say(f"    {path.relative_to(place)}")
    said.json(places)


@data.command()
def check(
    said: Said,
    name: Annotated[list[str] | None, typer.Argument(help="Data sets; without them, all that are here.")] = None,
    folder: Folder = None,
) -> None:
    """Read every file that is here and compare its SHA-256; the exit status is 1 where anything is wrong.

    A set without any file here is wrong only where it is named; test images may be absent.

    Example: `posterase data check`
    """
    right: dict[str, bool] = {}
    for each in _asked(name or []):
        if each == "digits":
            right[each] = _check_digits(named=bool(name))
        elif _here(each, folder) == "no":
            _mark("not here", each)
            right[each] = not name
        else:
            right[each] = _check_files(each, folder)
    said.json(right)
    if not all(right.values()):
        raise typer.Exit(ERROR)


def _check_files(name: str, folder: Path | None) -> bool:
    source, right = datasets.SOURCES[name], True
    for file in source.train + source.test:
        found = datasets.copies(file, datasets.data_folders(folder, name))
        if not found:
            needed = file in source.train
            right &= not needed
            _mark("wrong" if needed else "not here", f"{file.path}{': not here, others are' if needed else ''}")
        for path in found:
            try:
                datasets.read(path, file)
            except DatasetError as error:
                right = False
                _mark("wrong", f"{error.problem}\n             What to do: {error.advice}")
                continue
            known = file.sha256 is not None
            _mark(
                "ok" if known else "not known", f"{path}{'' if known else ': of the right size; no SHA-256 to compare'}"
            )
    return right


def _check_digits(named: bool) -> bool:
    if not _has_digits():
        _mark("not here", "digits: scikit-learn is not installed")
        return not named
    n = len(datasets.load("digits", test=False).train.y)
    _mark("ok", f"digits, from scikit-learn: {n:,} training images")
    return True


def _asked(names: list[str]) -> list[str]:
    for name in names:
        datasets.check_name(name)
    return list(dict.fromkeys(names)) or datasets.names()


def _here(name: str, folder: Path | None) -> str:
    source, folders = datasets.SOURCES[name], datasets.data_folders(folder, name)
    train, test = ([bool(datasets.copies(file, folders)) for file in files] for files in (source.train, source.test))
    if all(train):
        return "yes" if all(test) else "train only"
    return "partly" if any(train + test) else "no"


def _has_digits() -> bool:
    return importlib.util.find_spec("sklearn") is not None


def _mark(mark: str, text: str) -> None:
    console = Console()
    console.print(f"{mark:<11}", style=MARKS[mark], end="", highlight=False)
    _say(text, console)


def _say(text: str, console: Console | None = None) -> None:
    (console or Console()).print(text, markup=False, highlight=False, soft_wrap=True)
