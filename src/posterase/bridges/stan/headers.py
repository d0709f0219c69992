"""The headers of Stan's math library that a Stan program needs.

The C++ that Stan's compiler writes includes the whole library, and reading it is most of the time that a small program
takes to compile. Functions have headers of their own, named after them, so the names in a
program tell which ones it needs. `include_needed` puts these before the program, and keeps the rest out by defining the
include guards of the headers that would include everything.

A function f that the program calls needs `prim/…/f.hpp` and `rev/…/f.hpp`, its overloads for derivatives. The same
holds for every header that these include, and for every function that they call: a template finds its overloads when it
is instantiated, without including them. A program that misses a header all the same does not compile, and is then
compiled with the whole library.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path

LAYERS = ("rev", "prim")
PARTS = ("fun", "constraint", "functor", "prob")
"""The folders of functions; `constraint` is in newer versions of Stan."""

WHOLE = (
    "stan/math.hpp",
    *(f"stan/math/{layer}.hpp" for layer in (*LAYERS, "fwd", "mix")),
    *(f"stan/math/{layer}/{part}.hpp" for layer in LAYERS for part in PARTS),
)
"""Headers that include everything in a folder."""

BASE = (
    "stan/math/prim/fun/Eigen.hpp",
    *(f"stan/math/rev/{part}.hpp" for part in ("core", "meta")),
    *(f"stan/math/prim/{part}.hpp" for part in ("core", "meta", "err")),
)
"""What every program needs, in the order in which the library includes it."""

OPENCL = "stan/math/opencl/"
"""Included by some headers, and empty unless OpenCL is asked for."""

MODEL = "stan/model/model_header.hpp"
"""What the compiled program includes."""

BASE_CLASS = Path(__file__).with_name("model_base.hpp")
"""What the program's class derives from, in place of Stan's own."""

TRANSFORM = r"\w+_(?:constrain|free)"
"""Functions that transform constrained parameters. Stan's reader of parameters names all of them, a program few."""

Named = Mapping[str, list[str]]
"""Headers by the function that they are named after."""


def include_needed(program: str, functions: Path, include: Path) -> str:
    """Write the C++ to put before a program, so that it compiles with the part of the math library that it needs.

    Parameters
    ----------
    program
        The program in C++, by Stan's compiler; empty for what no program is in.
    functions
        The C++ file that will be compiled with it.
    include
        The folder that holds the headers.
    """
    texts = [_code(functions), *_texts_outside_math([MODEL, *_includes(_code(functions))], include)]
    called = {name for text in texts for name in _called(text)}
    transforms = {name for name in called if re.fullmatch(TRANSFORM, name)}
    used = {name for name in transforms if _is_used(name, program)}
    named = _headers_by_name(include)
    direct = {header for text in texts for header in _includes(text)}
    names = _called(program) | (called - transforms) | used
    headers = _needed({*BASE, *direct, *(header for name in names for header in named.get(name, ()))}, named, include)
    missing = sorted(name for name in transforms if not any(header in headers for header in named.get(name, ())))
    return "\n".join(
        [
            *(f"#define {_guard(include / name)}" for name in WHOLE if (include / name).is_file()),
            *(f"#include <{name}>" for name in (*BASE, *_ordered(headers))),
            "namespace stan { namespace math {",
            *(f"template <bool = false, typename... T> void {name}(const T &...) = delete;" for name in missing),
            "} }",
            f'#include "{BASE_CLASS}"\n',
        ]
    )


def _headers_by_name(include: Path) -> Named:
    found = defaultdict(list)
    for folder in (f"stan/math/{layer}/{part}" for layer in LAYERS for part in PARTS):
        for path in (include / folder).glob("*.hpp"):
            found[path.stem].append(f"{folder}/{path.name}")
    return found


def _texts_outside_math(headers: Iterable[str], include: Path) -> list[str]:
    """Headers and all that they include, but for the math library."""
    found: dict[str, str] = {}
    waiting = list(headers)
    while waiting:
        name = waiting.pop()
        if name not in found and not name.startswith("stan/math") and (include / name).is_file():
            found[name] = _code(include / name)
            waiting += _includes(found[name])
    return list(found.values())


def _needed(headers: Iterable[str], named: Named, include: Path) -> set[str]:
    """Headers of functions: all that these include and call, with the overloads for derivatives."""
    found: set[str] = set()
    waiting = list(headers)
    while waiting:
        name = waiting.pop()
        skipped = name in found or name in WHOLE or name.startswith(OPENCL) or not name.startswith("stan/math/")
        if skipped or not (include / name).is_file():
            continue
        found.add(name)
        text = _code(include / name)
        waiting += [*_includes(text), *(header for each in _called(text) for header in named.get(each, ()))]
        waiting += named.get(Path(name).stem, ())
    return found & {header for each in named.values() for header in each}


def _code(path: Path) -> str:
    """C++ without its comments."""
    return re.sub(r"/\*.*?\*/|//[^\n]*", "", path.read_text(encoding="utf-8"), flags=re.DOTALL)


def _includes(text: str) -> list[str]:
    return re.findall(r"#include <(stan/[^>]+)>", text)


def _called(text: str) -> set[str]:
    """Functions that are called, methods and those of other namespaces aside."""
    plain = re.findall(r"(?<![\w.>:])(\w+)(?:<[^<>()]*>)?\s*\(", text)
    return {*plain, *re.findall(r"\bmath::(\w+)", text)}


def _is_used(transform: str, program: str) -> bool:
    """Whether a program reads or writes parameters by a transform.

    The names are close, not the same: `read_constrain_cholesky_factor_corr` calls `cholesky_corr_constrain`.
    """
    words = set(transform.split("_")[:-1])
    return any(words <= set(kind.split("_")) for kind in re.findall(r"\b(?:read_constrain|write_free)_(\w+)", program))


def _guard(header: Path) -> str:
    """The macro that says that a header was included."""
    found = re.search(r"#ifndef (\w+)", header.read_text(encoding="utf-8"))
    return found[1] if found else "NO_GUARD"


def _ordered(headers: Iterable[str]) -> list[str]:
    """Overloads for derivatives come before what calls them; of functors they are specialisations, which come after."""

    def place(name: str) -> tuple[int, bool, str]:
        layer, part = name.split("/")[2:4]
        return PARTS.index(part), (layer == "prim") != (part == "functor"), name

    return sorted(headers, key=place)
