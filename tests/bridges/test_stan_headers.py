"""Stan programs with a part of Stan's math library: which part, that numbers stay the same, what if it fails."""

import collections
import functools
import shutil
from pathlib import Path

import numpy as np
import pytest

from posterase.bridges.stan import headers, programs
from posterase.errors import StanProgramError

httpstan = pytest.importorskip("httpstan")

INCLUDE = Path(httpstan.__file__).parent / "include"
FUNCTIONS = Path(programs.__file__).with_name("library.cpp")

PROGRAM = """
data { int<lower=0> N; vector[N] x; array[N] int<lower=0> y; }
parameters { real a; vector[2] b; real<lower=0> phi; simplex[3] p; cholesky_factor_corr[2] L; }
model {
  y ~ neg_binomial_2_log(a + b[1] * x + log_sum_exp(b), phi);
  phi ~ gamma(2, 1); a ~ student_t(4, 0, 1); p ~ dirichlet([2, 3, 4]'); L ~ lkj_corr_cholesky(2);
  b ~ multi_normal_cholesky([0, 0]', L);
}
generated quantities { array[N] int again = neg_binomial_2_log_rng(a + b[1] * x, phi); }
"""


@pytest.fixture(scope="module")
def translated(tmp_path_factory):
    return programs._translated(PROGRAM, tmp_path_factory.mktemp("stan"))


def test_what_a_program_needs(translated):
    """Its distributions, the functions that these call, and all their overloads for derivatives; little else."""
    needed = headers.include_needed(translated, FUNCTIONS, INCLUDE)
    for header in (
        "prim/prob/neg_binomial_2_log_lpmf",
        "prim/prob/neg_binomial_2_log_rng",
        "rev/fun/log_sum_exp",
        "rev/fun/lgamma",
        "rev/fun/cholesky_corr_constrain",
        "rev/fun/grad",
    ):
        assert f"#include <stan/math/{header}.hpp>" in needed
    for other in ("cauchy_lpdf", "ode_bdf", "unit_vector_constrain.hpp", "/opencl/"):
        assert other not in needed
    assert "#define STAN_MATH_HPP" in needed
    assert "void unit_vector_constrain(" in needed  # so that Stan's reader of parameters, which names it, compiles
    assert "void simplex_constrain(" not in needed


def test_headers_are_in_an_order_that_compiles():
    """Overloads for derivatives before the templates that use them, specialisations of functors after the templates."""
    names = [f"stan/math/{name}.hpp" for name in ("prim/prob/a", "prim/fun/b", "rev/fun/b", "rev/functor/c")]
    ordered = headers._ordered([*names, "stan/math/prim/functor/c.hpp"])
    assert [name[10:-4] for name in ordered] == [
        "rev/fun/b",
        "prim/fun/b",
        "prim/functor/c",
        "rev/functor/c",
        "prim/prob/a",
    ]


def test_what_does_not_compile_is_compiled_with_everything(monkeypatch, tmp_path):
    compiled = []

    def compile_file(source, made):
        compiled.append(source.read_text())
        if len(compiled) == 1:
            raise StanProgramError("not declared in this scope", "see what it says.")

    monkeypatch.setattr(programs, "_compile_file", compile_file)
    programs._compile_program(PROGRAM, FUNCTIONS, tmp_path / "program.o")
    needed, whole = compiled
    assert "#define STAN_MATH_HPP" in needed
    assert "#define" not in whole
    assert needed.endswith(whole)


def test_a_library_laid_out_in_another_way_is_compiled_with_everything(monkeypatch, tmp_path):
    compiled = []

    def refuse(_):
        raise FileNotFoundError("stan/math.hpp")

    monkeypatch.setattr(headers, "_guard", refuse)
    monkeypatch.setattr(programs, "_compile_file", lambda source, made: compiled.append(source.read_text()))
    programs._compile_program(PROGRAM, FUNCTIONS, tmp_path / "program.o")
    assert ["#define" in text for text in compiled] == [False]


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler here")
def test_a_part_gives_the_numbers_of_the_whole(translated, tmp_path):
    """Densities, gradients and all that the program computes, to the last bit."""
    rng = np.random.default_rng(0)
    data = {"N": np.array(20), "x": rng.normal(size=20), "y": rng.poisson(3, 20)}
    inside = INCLUDE.parent / "lib"
    needed = headers.include_needed(translated, FUNCTIONS, INCLUDE)
    found = []
    for name, before in (("part", needed), ("whole", "")):
        source, library = tmp_path / f"{name}.cpp", tmp_path / f"{name}.so"
        source.write_text(f'{before}{translated}\n#include "{FUNCTIONS}"\n')
        linked = ("-shared", str(source), "-o", str(library), f"-L{inside}", f"-Wl,-rpath,{inside}")
        programs._run(*linked, *programs.LIBRARIES)
        loaded = programs._loaded(str(library))
        posterior = programs.PyStanPosterior(loaded, data, collections.Counter())
        thetas = np.random.default_rng(1).normal(size=(50, posterior.dimension))
        density = functools.partial(posterior.log_density, thetas)
        params = posterior.constrain(thetas)
        every = posterior.constrain(thetas, "everything", seed=2)
        found.append([*posterior.log_density_and_gradient(thetas), density(), density(False), params, every])
        found[-1].append(posterior.unconstrain(params)[0])
    for part, whole in zip(*found, strict=True):
        assert np.isfinite(whole).all()
        np.testing.assert_array_equal(part, whole)
