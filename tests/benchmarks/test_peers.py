"""The peers that `python -m benchmarks peers` compares with sample the same posterior as we do."""

import numpy as np
import pytest
from benchmarks.peer_models import PEERS, apart
from benchmarks.problems import breast_cancer, radon_hierarchy

import posterase as pe

pytest.importorskip("numpyro")
pytest.importorskip("pymc")

REQUESTS = [(breast_cancer, "57 rows of one class"), (radon_hierarchy, "a county")]


def some_draws(problem):
    """Not of the posterior: densities must agree anywhere."""
    rng = np.random.default_rng(0)
    initial = problem.initial if isinstance(problem.initial, dict) else {"p": problem.initial}
    params = {}
    for name, leaf in initial.items():
        noise = 0.3 * rng.normal(size=(1, 3, *leaf.shape[1:]))
        params[name] = leaf[0] * np.exp(noise) if name.startswith("sigma") else leaf[0] + noise
    return pe.Draws(params if isinstance(problem.initial, dict) else params["p"])


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
@pytest.mark.parametrize(("make", "request_name"), REQUESTS)
def test_densities_of_peers_are_ours_up_to_a_constant(make, request_name):
    problem = make()
    rows = problem.requests[request_name]
    found = apart(problem, PEERS[problem.name](), some_draws(problem), rows)
    assert found.keys() == {"plain density", "NumPyro", "PyMC"}
    assert max(found.values()) < 1e-9, found


@pytest.mark.filterwarnings("ignore:PyTensor could not link to a BLAS")
def test_another_row_would_be_seen():
    """The twin: one row more or less moves the densities apart."""
    problem = breast_cancer()
    rows = problem.requests["57 rows of one class"]
    draws = some_draws(problem)
    one_more = problem._replace(model=problem.model.without(problem.model.change(remove=rows[:1])))
    found = apart(one_more, PEERS[problem.name](), draws, rows[1:])
    assert min(found.values()) > 0.02, found
