"""Samplers by name: an unknown one is an error wherever it is named."""

import dataclasses
import json

import pytest

import posterase as pe
from posterase.errors import InputFileError, InvalidOptionError
from posterase.experiments import bnn, bnn_files, gmm
from posterase.experiments.recipes import SAMPLERS, named_samplers, sampler_of


def test_samplers_by_name():
    steps = pe.PolynomialSteps(1e-3)
    assert {name: type(sampler_of(name, steps, batch=4, friction=0.5)) for name in SAMPLERS} == {
        "sgld": pe.SGLD,
        "sghmc": pe.SGHMC,
    }
    assert sampler_of("sghmc", steps, batch=4, friction=0.5).friction == 0.5
    assert named_samplers("both") == SAMPLERS
    assert named_samplers("sghmc") == ("sghmc",)


def test_unknown_names():
    for experiment in (gmm, bnn):
        settings = dataclasses.replace(experiment.Settings(), sampler="sgdl")
        with pytest.raises(InvalidOptionError, match=r"sampler is 'sgdl'\.(.|\n)*sgld, sghmc"):
            experiment.make_sampler(settings, 100)
    with pytest.raises(InvalidOptionError, match="--sampler is 'sgdl'"):
        named_samplers("sgdl")


def test_results_of_an_unknown_sampler(tmp_path):
    settings = {"dataset": "digits", "sampler": "sgdl", "removed": 60, "chains": 2}
    block = {"name": "x", "variant": "", "methods": {}, "settings": settings}
    (tmp_path / "x.json").write_text(json.dumps(block))
    with pytest.raises(InputFileError, match="unknown sampler, 'sgdl'"):
        bnn_files.read(tmp_path)
