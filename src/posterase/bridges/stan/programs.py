"""Stan programs: what is asked of them, and the two libraries that answer.

A `StanProgram` makes a `StanPosterior` of data; that one gives densities, gradients and transforms of unconstrained
parameters, all as Stan itself computes them, on the host and in float64, many draws in a call. Behind it are

- PyStan 3, whose wheels carry Stan and its compiler. Its own functions go through a local server, ten milliseconds a
  call, and read the data anew each time; so the program is compiled here into a library of our own
  (`library.cpp`), with what PyStan brings and without a network. It takes microseconds a draw. `headers`
  picks the headers that the program needs, since reading all of Stan's takes longest. The first request that samples
  compiles the sampler, too (`sampler.cpp`).
- BridgeStan, given the library that it has compiled. It does not sample.

Draws that are asked for are counted.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import ctypes
import functools
import hashlib
import json
import os
import shlex
import shutil
import subprocess
import tempfile
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Shaped

from posterase.bridges.stan import headers
from posterase.errors import StanProgramError
from posterase.runtime.files import cache_folder, make_folder
from posterase.runtime.optional import import_in_background, need
from posterase.runtime.progress import shown

Data = dict[str, Shaped[np.ndarray, "..."]]
Table = Float[np.ndarray, "n _"]
"""One row a draw."""


class Chains(NamedTuple):
    """What a sampler of Stan returns."""

    params: dict[str, Float[np.ndarray, "chain draw ..."]]
    log_density: Float[np.ndarray, "chain draw"]
    divergences: int
    gradients: int
    """Those of the warm-up too."""


class StanPosterior(abc.ABC):
    """A program with its data. Numbers of a draw are in the order declared, arrays columns first, as Stan has them."""

    calls: collections.Counter[str]

    @abc.abstractmethod
    def elements(self, kind: str) -> list[str]:
        """Names, `beta.3.2` and the like, of all "unconstrained" numbers, of "parameters", these with "transformed"
        parameters after them, or with generated quantities too: "everything".
        """

    @abc.abstractmethod
    def log_density(self, thetas: Table, jacobian: bool = True) -> Float[np.ndarray, " n"]:
        """log p(θ, data) up to a constant, at unconstrained parameters; −infinity where Stan has none."""

    @abc.abstractmethod
    def log_density_and_gradient(self, thetas: Table) -> tuple[Float[np.ndarray, " n"], Table]:
        """The same with its gradient, Jacobian included; the gradient is not a number where Stan has none."""

    @abc.abstractmethod
    def constrain(self, thetas: Table, kind: str = "parameters", seed: int = 1) -> Table:
        """Parameters on their own scale, and what follows them, by `kind` as for `elements`.

        `seed` is that of the random numbers in generated quantities.
        """

    @abc.abstractmethod
    def unconstrain(self, params: Table) -> tuple[Table, str]:
        """Unconstrained parameters, not a number where Stan refuses them; and what it says then."""

    @functools.cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of everything that the program computes."""
        return _shapes_of(self.elements("everything"))

    def names(self, kind: str) -> list[str]:
        """As `elements`, by variable."""
        return list(_shapes_of(self.elements(kind)))


def is_odd(element: str) -> bool:
    """Whether an element is part of a complex number or of a tuple."""
    return ":" in element or element.endswith((".real", ".imag"))


def _shapes_of(elements: Sequence[str]) -> dict[str, tuple[int, ...]]:
    """Shapes from the names of elements: the last of each has the largest places."""
    last = {name.split(".")[0]: name.split(".")[1:] for name in elements if not is_odd(name)}
    return {name: tuple(map(int, places)) for name, places in last.items()}


class StanProgram(abc.ABC):
    """A compiled program."""

    samples: ClassVar[bool]
    """Whether `sample` can be called."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()
        """Draws that each function was asked for."""

    @abc.abstractmethod
    def with_data(self, data: Data) -> StanPosterior:
        """The program with data; `StanProgramError` where Stan refuses them."""

    def sample(
        self,
        data: Data,
        seed: int,
        initial: Sequence[Mapping[str, Any]],
        draws: int,
        warmup: int,
        inverse_mass: Float[np.ndarray, "d d"] | None = None,
        target_acceptance: float = 0.8,
    ) -> Chains:
        """Stan's NUTS, a chain from every initial point; with an inverse mass matrix, or with one that it adapts."""
        raise NotImplementedError


def by_name(flat: Any, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Any]:
    """Numbers along the last axis, in the order declared and arrays columns first, as Stan has them: by name."""
    xp: Any = np if isinstance(flat, np.ndarray) else jnp
    found: dict[str, Any] = {}
    at, lead = 0, flat.ndim - 1
    for name, shape in shapes.items():
        size = int(np.prod(shape, dtype=int))
        part = flat[..., at : at + size].reshape((*flat.shape[:-1], *shape[::-1]))
        found[name] = xp.moveaxis(part, range(lead, part.ndim), range(part.ndim - 1, lead - 1, -1))
        at += size
    return found


# --- PyStan

KINDS = ("unconstrained", "parameters", "transformed", "everything")
ROOM = 4000
"""Bytes for a message."""

OF_SAMPLER = ("lp__", "accept_stat__", "stepsize__", "treedepth__", "n_leapfrog__", "divergent__", "energy__")
FLAGS = (
    *("-std=c++17", "-O3", "-fPIC", "-w", "-DSTAN_THREADS", "-D_REENTRANT", "-DBOOST_DISABLE_ASSERTS"),
    *("-DBOOST_PHOENIX_NO_VARIADIC_EXPRESSION", "-D_GLIBCXX_USE_CXX11_ABI=0"),
)
"""As the libraries in the wheel were compiled."""
LIBRARIES = ("-lsundials_kinsol", "-lsundials_cvodes", "-lsundials_idas", "-lsundials_nvecserial", "-ltbb")


class PyStanProgram(StanProgram):
    """A program compiled with what PyStan 3 brings; compiled once, and kept in the user's cache."""

    samples = True

    def __init__(self, code: str):
        super().__init__()
        need("httpstan", "from_stan", "stan")
        self.code = code
        self.library = _loaded(str(_compiled(code)))

    def with_data(self, data: Data) -> PyStanPosterior:
        return PyStanPosterior(self.library, data, self.calls)

    def sample(
        self,
        data: Data,
        seed: int,
        initial: Sequence[Mapping[str, Any]],
        draws: int,
        warmup: int,
        inverse_mass: Float[np.ndarray, "d d"] | None = None,
        target_acceptance: float = 0.8,
    ) -> Chains:
        library = _loaded(str(_compiled(self.code, with_sampler=True)), with_sampler=True)
        posterior = PyStanPosterior(library, data, self.calls)
        with ThreadPoolExecutor(min(len(initial), os.cpu_count() or 1)) as pool:
            running = [
                pool.submit(posterior.sample, seed, number, start, draws, warmup, inverse_mass, target_acceptance)
                for number, start in enumerate(initial, 1)
            ]
            try:
                found = np.stack([chain.result() for chain in running])
            except BaseException:  # Ctrl-C too: chains that run are told to stop
                library.pe_stop(1)
                pool.shutdown(cancel_futures=True)
                library.pe_stop(0)
                raise
        self.calls["sample"] += len(initial) * (draws + warmup)
        gradients = int(found[..., OF_SAMPLER.index("n_leapfrog__")].sum())
        found = found[:, warmup:]
        numbers = dict(zip(OF_SAMPLER, np.moveaxis(found[..., : len(OF_SAMPLER)], -1, 0), strict=True))
        shapes = {name: posterior.shapes[name] for name in posterior.names("parameters")}
        params = by_name(found[..., len(OF_SAMPLER) :], shapes)
        return Chains(params, numbers["lp__"], int(numbers["divergent__"].sum()), gradients)


class PyStanPosterior(StanPosterior):
    """A program in our own library, with data."""

    def __init__(self, library: ctypes.CDLL, data: Data, calls: collections.Counter[str]):
        message = ctypes.create_string_buffer(ROOM)
        program = library.pe_load(*_as_numbers(data), message, ROOM)
        if not program:
            raise refused(message.value.decode(errors="replace"))
        self.library, self.calls, self.program = library, calls, ctypes.c_void_p(program)
        weakref.finalize(self, library.pe_free, self.program)
        self.dimension = len(self.elements("unconstrained"))
        self.widths = {kind: len(self.elements(kind)) for kind in KINDS}

    def elements(self, kind: str) -> list[str]:
        length = self.library.pe_names(self.program, KINDS.index(kind), None, 0)
        text = ctypes.create_string_buffer(length)
        self.library.pe_names(self.program, KINDS.index(kind), text, length)
        return text.value.decode().split()

    def log_density(self, thetas: Table, jacobian: bool = True) -> Float[np.ndarray, " n"]:
        self.calls["log_density"] += len(thetas)
        values = np.empty(len(thetas))
        self.library.pe_density(self.program, thetas, len(thetas), int(jacobian), values)
        return values

    def log_density_and_gradient(self, thetas: Table) -> tuple[Float[np.ndarray, " n"], Table]:
        self.calls["gradient"] += len(thetas)
        values, slopes = np.empty(len(thetas)), np.empty((len(thetas), self.dimension))
        self.library.pe_gradient(self.program, thetas, len(thetas), values, slopes)
        return values, slopes

    def constrain(self, thetas: Table, kind: str = "parameters", seed: int = 1) -> Table:
        self.calls["constrain"] += len(thetas)
        width = self.widths[kind]
        values = np.empty((len(thetas), width))
        self.library.pe_constrain(self.program, thetas, len(thetas), KINDS.index(kind), seed, width, values)
        return values

    def unconstrain(self, params: Table) -> tuple[Table, str]:
        self.calls["unconstrain"] += len(params)
        thetas, message = np.empty((len(params), self.dimension)), ctypes.create_string_buffer(ROOM)
        given = params, len(params), self.widths["parameters"]
        self.library.pe_unconstrain(self.program, *given, thetas, message, ROOM)
        return thetas, message.value.decode(errors="replace")

    def sample(
        self,
        seed: int,
        chain: int,
        start: Mapping[str, Any],
        draws: int,
        warmup: int,
        inverse_mass: Float[np.ndarray, "d d"] | None,
        target_acceptance: float,
    ) -> Table:
        """One chain, its warm-up first."""
        width = len(OF_SAMPLER) + self.widths["everything"]
        values, message = np.empty((warmup + draws, width)), ctypes.create_string_buffer(ROOM)
        initial = as_json({name: np.asarray(each) for name, each in start.items()})
        metric = None if inverse_mass is None else inverse_mass.ctypes.data_as(ctypes.c_void_p)
        step = 1.0 if inverse_mass is None else len(inverse_mass) ** -0.25
        settings = (ctypes.c_double(step), seed, chain, warmup, draws, ctypes.c_double(target_acceptance), 10)
        if self.library.pe_sample(self.program, initial, metric, *settings, values, message, ROOM):
            raise refused(message.value.decode(errors="replace"))
        return values


def as_json(arrays: Mapping[str, Shaped[np.ndarray, "..."]]) -> bytes:
    """Arrays as Stan reads them."""
    return json.dumps({name: values.tolist() for name, values in arrays.items()}).encode()


def _as_numbers(data: Data) -> tuple[bytes, Any, Any, Any]:
    """Arrays as our library reads them: names, kinds with shapes, real and whole numbers, columns first."""
    whole = {name: values.dtype.kind == "i" for name, values in data.items()}
    shapes = [each for name, values in data.items() for each in (whole[name], values.ndim, *values.shape)]
    parts: list[list[Any]] = [[np.empty(0)], [np.empty(0)]]
    for name, values in data.items():
        parts[whole[name]].append(values.ravel(order="F"))
    reals, wholes = (np.concatenate(part) for part in parts)
    return "\n".join(data).encode(), np.array(shapes, np.intc), reals, wholes.astype(np.intc)


INTS = np.ctypeslib.ndpointer(np.intc, flags="C_CONTIGUOUS")
DOUBLES = np.ctypeslib.ndpointer(np.float64, flags="C_CONTIGUOUS")


@functools.cache
def _loaded(path: str, with_sampler: bool = False) -> ctypes.CDLL:
    """The library's functions, and what they take.

    What it is linked with is loaded first, from where PyStan is now: another environment may have compiled it.
    """
    import httpstan

    for name in ("libtbb.so.2", "libtbb.dylib"):
        needed = Path(httpstan.__file__).parent / "lib" / name
        if needed.is_file():
            ctypes.CDLL(str(needed), mode=ctypes.RTLD_GLOBAL)
    library = ctypes.CDLL(path)
    pointer, text, number = ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int
    library.pe_load.argtypes, library.pe_load.restype = [text, INTS, DOUBLES, INTS, text, number], pointer
    library.pe_free.argtypes, library.pe_free.restype = [pointer], None
    library.pe_names.argtypes = [pointer, number, text, number]
    library.pe_density.argtypes, library.pe_density.restype = [pointer, DOUBLES, number, number, DOUBLES], None
    library.pe_gradient.argtypes, library.pe_gradient.restype = [pointer, DOUBLES, number, DOUBLES, DOUBLES], None
    library.pe_constrain.argtypes = [pointer, DOUBLES, number, number, ctypes.c_uint, number, DOUBLES]
    library.pe_unconstrain.argtypes = [pointer, DOUBLES, number, number, DOUBLES, text, number]
    for function in (library.pe_constrain, library.pe_unconstrain):
        function.restype = None
    if not with_sampler:
        return library
    unsigned = ctypes.c_uint
    library.pe_stop.argtypes, library.pe_stop.restype = [number], None
    library.pe_sample.argtypes = [
        *(pointer, text, pointer, ctypes.c_double, unsigned, unsigned, number, number, ctypes.c_double, number),
        *(DOUBLES, text, number),
    ]
    return library


# --- compiling


def _compiled(code: str, with_sampler: bool = False) -> Path:
    """The program's library, with Stan's sampler or without; compiled where it is not in the cache."""
    import httpstan

    functions, sampler = (Path(__file__).with_name(f"{name}.cpp") for name in ("library", "sampler"))
    settings = httpstan.__version__, shlex.join(compiler()), *FLAGS
    includes = Path(headers.__file__), headers.BASE_CLASS
    own, common = (
        _digest(text, *(path.read_text(encoding="utf-8") for path in (source, *includes)), *settings)
        for text, source in ((code, functions), ("", sampler))
    )
    folder = make_folder(cache_folder() / "stan")
    objects = [folder / f"{own}.o", *([folder / f"{common}.o"] if with_sampler else [])]
    library = folder / f"{_digest(own, *([common] if with_sampler else []))}.so"
    if library.is_file():
        return library
    import_in_background("posterase.ladder.erase")  # which comes next, while the compiler runs in a process of its own
    what = "Stan's sampler" if with_sampler else "the Stan program"
    with shown(f"compiling {what}", 2), tempfile.TemporaryDirectory(dir=folder) as scratch:
        here = Path(scratch)
        makers = functools.partial(_compile_program, code, functions), functools.partial(_compile_needed, "", sampler)
        missing = [job for job in zip(makers, objects, strict=False) if not job[1].is_file()]

        def compile_one(job: tuple[Callable[[Path], None], Path]) -> None:
            compile_to, target = job
            made = here / target.name
            compile_to(made)
            made.replace(target)

        with ThreadPoolExecutor(2) as pool:
            list(pool.map(compile_one, missing))
        inside = Path(httpstan.__file__).parent / "lib"
        linked = ("-shared", *map(str, objects), "-o", str(here / "program.so"))
        _run(*linked, f"-L{inside}", f"-Wl,-rpath,{inside}", *LIBRARIES)
        (here / "program.so").replace(library)
    return library


def _compile_program(code: str, functions: Path, made: Path) -> None:
    _compile_needed(_translated(code, made.parent), functions, made)


def _compile_needed(program: str, functions: Path, made: Path) -> None:
    """Compile C++ with the headers that it needs; if that fails, with all of Stan's math library."""
    import httpstan

    source, whole = made.with_suffix(".cpp"), f'{program}\n#include "{functions}"\n'
    try:
        needed = headers.include_needed(program, functions, Path(httpstan.__file__).parent / "include")
        source.write_text(needed + whole, encoding="utf-8")
        _compile_file(source, made)
    except (StanProgramError, OSError):
        source.write_text(whole, encoding="utf-8")
        _compile_file(source, made)


def _compile_file(source: Path, made: Path) -> None:
    _run("-c", str(source), "-o", str(made))


def _translated(code: str, folder: Path) -> str:
    """The program in C++, by the compiler in PyStan's wheel."""
    import httpstan

    source = folder / "program.stan"
    source.write_text(code, encoding="utf-8")
    stanc = str(Path(httpstan.__file__).with_name("stanc"))
    command = [stanc, "--name", "program", "--filename-in-msg", "the program", "--print-cpp", source.name]
    ran = subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder)
    if ran.returncode:
        raise StanProgramError(f"the Stan program does not compile:\n{ran.stderr.strip()}", "correct it.")
    return ran.stdout


def _run(*arguments: str) -> None:
    import httpstan

    words = compiler()
    command = [*words, *FLAGS, f"-I{Path(httpstan.__file__).parent / 'include'}", *arguments]
    try:
        ran = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise StanProgramError(
            f"there is no C++ compiler: {words[0]} was not found.", "install one (g++ or clang), or name it: CXX=…"
        ) from error
    if ran.returncode:
        said = "\n".join(line for line in ran.stderr.splitlines() if "error" in line) or ran.stderr
        raise StanProgramError(f"{shlex.join(words)} failed on the Stan program:\n{said[:ROOM]}", "see what it says.")


def compiler() -> list[str]:
    """The C++ compiler that Stan programs are compiled by, as the words of a command: $CXX, g++ or clang++."""
    named = os.environ.get("CXX", "")
    try:
        words = shlex.split(named)
    except ValueError as error:
        raise StanProgramError(f"CXX is {named!r}, no command: {error}.", "name a compiler, or unset it.") from None
    return words or [next(filter(shutil.which, ("g++", "clang++")), "g++")]


def _digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:24]


# --- BridgeStan


class BridgeStanProgram(StanProgram):
    """A library that BridgeStan has compiled."""

    samples = False

    def __init__(self, library: Path):
        super().__init__()
        need("bridgestan", "a library compiled by BridgeStan", "bridgestan")
        self.library = library

    def with_data(self, data: Data) -> BridgeStanPosterior:
        import bridgestan

        try:
            text = as_json(data).decode()
            model = bridgestan.StanModel(str(self.library), text, capture_stan_prints=False, warn=False)
        except RuntimeError as error:
            raise refused(str(error)) from error
        return BridgeStanPosterior(model, self.calls)


class BridgeStanPosterior(StanPosterior):
    """BridgeStan's model with data: one draw a call."""

    def __init__(self, model: Any, calls: collections.Counter[str]):
        self.model, self.calls = model, calls

    def elements(self, kind: str) -> list[str]:
        if kind == "unconstrained":
            names = self.model.param_unc_names()
        else:
            names = self.model.param_names(include_tp=kind != "parameters", include_gq=kind == "everything")
        return [name for name in names if name]

    def log_density(self, thetas: Table, jacobian: bool = True) -> Float[np.ndarray, " n"]:
        def one(theta: Any) -> float:
            try:
                return float(self.model.log_density(theta, propto=False, jacobian=jacobian))
            except RuntimeError:
                return -np.inf

        self.calls["log_density"] += len(thetas)
        return np.array([one(theta) for theta in thetas])

    def log_density_and_gradient(self, thetas: Table) -> tuple[Float[np.ndarray, " n"], Table]:
        values, slopes = np.full(len(thetas), -np.inf), np.full(thetas.shape, np.nan)
        for at, theta in enumerate(thetas):
            with contextlib.suppress(RuntimeError):
                values[at], slopes[at] = self.model.log_density_gradient(theta, propto=False, jacobian=True)
        self.calls["gradient"] += len(thetas)
        return values, slopes

    def constrain(self, thetas: Table, kind: str = "parameters", seed: int = 1) -> Table:
        wanted = {"include_tp": kind != "parameters", "include_gq": kind == "everything"}
        width = self.model.param_num(**wanted)
        random = self.model.new_rng(seed) if kind == "everything" else None

        def one(theta: Any) -> Any:
            try:
                return np.array(self.model.param_constrain(theta, **wanted, rng=random))
            except RuntimeError:
                return np.full(width, np.nan)

        self.calls["constrain"] += len(thetas)
        return np.array([one(theta) for theta in thetas])

    def unconstrain(self, params: Table) -> tuple[Table, str]:
        said = ""
        thetas = np.full((len(params), self.model.param_unc_num()), np.nan)
        for at, one in enumerate(params):
            try:
                thetas[at] = self.model.param_unconstrain(np.ascontiguousarray(one, float))
            except RuntimeError as error:
                said = str(error)
        self.calls["unconstrain"] += len(params)
        return thetas, said


def refused(said: str) -> StanProgramError:
    """What Stan does not take."""
    return StanProgramError(f"Stan refuses: {said.strip()}", "check the program with these data, in Stan itself.")
