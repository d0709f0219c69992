"""Job and project files: one schema for what they share."""

import dataclasses

import numpy as np
import pytest
import xarray as xr

from posterase.errors import InvalidOptionError, ProjectError
from posterase.projects.builders import open_fit, policy_of
from posterase.projects.jobs import Job
from posterase.projects.spec import FitFile, Project

SHARED = {each.name for each in dataclasses.fields(FitFile)}

FILES = {Job: {}, Project: {"name": "radon"}}


@pytest.mark.parametrize("kind", FILES)
@pytest.mark.parametrize(
    ("values", "error", "problem", "advice"),
    [
        ({"draws": ""}, ProjectError, "draws is ''.", "use text."),
        ({"modle": "a:b"}, ProjectError, "a KIND has no 'modle'.", "did you mean 'model'?"),
        ({"model": "os.system"}, ProjectError, "'os.system' names no function.", 'write it as "module:function".'),
        ({"model": "a:b", "bridge": "arviz"}, ProjectError, "a KIND has a model or a bridge", "leave one of them out."),
        ({"model": "a:b", "row_dim": "day"}, ProjectError, "row_dim is for stored", "leave one of them out."),
        ({"bridge": "pickle"}, ProjectError, "there is no bridge 'pickle'", "use arviz; for others"),
        ({"row_dim": [3]}, ProjectError, "row_dim is [3].", "use text, or a list of texts."),
        ({"preprocessing": 3}, ProjectError, "preprocessing is 3.", "use text."),
        ({"seed": True}, ProjectError, "seed is True.", "use a whole number, not negative."),
        ({"policy": "tight"}, ProjectError, "policy is 'tight'.", "write it as a table: [policy]."),
        ({"policy": {"epsilom": 1}}, ProjectError, "a policy has no 'epsilom'.", "did you mean 'epsilon'?"),
        ({"policy": {"epsilon": -1}}, InvalidOptionError, "Policy: epsilon is -1.0", ""),
    ],
)
def test_both_refuse_alike(kind, values, error, problem, advice):
    with pytest.raises(error) as raised:
        policy_of(kind.from_dict({"draws": "fit.nc", **FILES[kind], **values}))
    assert raised.value.problem.startswith(problem.replace("KIND", kind.kind))
    assert raised.value.advice.startswith(advice)


@pytest.mark.parametrize("kind", FILES)
def test_both_say_what_is_missing(kind):
    for name in kind.required:
        with pytest.raises(ProjectError, match=f"the {kind.kind} has no '{name}'"):
            kind.from_dict({each: "x" for each in kind.required if each != name})


def test_neither_declares_a_shared_field_again():
    for kind in FILES:
        assert not SHARED & set(vars(kind)["__annotations__"])


@pytest.mark.parametrize("kind", FILES)
def test_both_open_draws_by_a_bridge_of_another_package(kind, tmp_path, monkeypatch):
    """As if it were installed: it is found by its name, and is called with the path of the draws."""
    from posterase.bridges.arviz import from_arviz
    from posterase.bridges.registry import BRIDGES

    rng = np.random.default_rng(0)
    groups = {
        "posterior": xr.Dataset({"mu": (("chain", "draw"), rng.normal(size=(2, 50)))}),
        "log_likelihood": xr.Dataset({"y": (("chain", "draw", "row"), rng.normal(size=(2, 50, 5)))}),
    }
    xr.DataTree.from_dict(groups).to_netcdf(tmp_path / "fit.nc", engine="h5netcdf")
    opened = []
    monkeypatch.setitem(BRIDGES.own, "strange", "tests.projects.test_spec:strange")
    monkeypatch.setattr("tests.projects.test_spec.strange", lambda path: opened.append(path) or from_arviz(path))
    file = kind.from_dict({"draws": "fit.nc", "bridge": "strange", "folder": str(tmp_path), **FILES[kind]})
    fit = open_fit(file, None, lambda subjects: [])
    assert opened == [tmp_path / "fit.nc"]
    assert fit.model.n_rows == 5
    assert fit.code.endswith("bridge strange")


def strange(path):
    """Is replaced."""
