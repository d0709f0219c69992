"""`posterase doctor`: what it finds, and what it says is wrong."""

import importlib.metadata
import json
import tomllib
from pathlib import Path

from typer.testing import CliRunner

from posterase.bridges.stan.programs import compiler
from posterase.cli import doctor
from posterase.cli.main import app
from posterase.record.ledger.keyring import new_keys


def examined(*words, status=0):
    result = CliRunner().invoke(app, ["doctor", "--json", *map(str, words)])
    assert result.exit_code == status, result.output
    return {each["what"]: each for each in json.loads(result.output)}


def test_it_knows_every_extra():
    stated = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    assert doctor.EXTRAS.keys() == stated.keys()
    for extra, names in doctor.EXTRAS.items():
        for name in names:
            assert any(each.startswith(name) for each in stated[extra]), (extra, name)


def test_what_is_there(tmp_path):
    found = examined("--keys", tmp_path / "keys", "--record", tmp_path / "record.db")
    assert found["jax"]["state"] == found["[record]"]["state"] == "ok"
    assert found["keys"]["state"] == found["record"]["state"] == "missing"
    new_keys(tmp_path / "keys", "example.org/erasures")
    found = examined("--keys", tmp_path / "keys", "--record", tmp_path / "record.db")
    assert "example.org/erasures" in found["keys"]["said"]


def test_what_is_wrong(tmp_path):
    new_keys(tmp_path / "keys", "example.org/erasures")
    (tmp_path / "keys" / "signing.key").chmod(0o644)
    (tmp_path / "record.db").write_text("hello " * 1000)
    found = examined("--keys", tmp_path / "keys", "--record", tmp_path / "record.db", status=1)
    assert found["keys"]["state"] == found["record"]["state"] == "wrong"
    assert "chmod 600" in found["keys"]["advice"]


def test_what_is_missing_is_told_with_its_command(tmp_path, monkeypatch):
    version = importlib.metadata.version

    def without_pymc(name):
        if name == "pymc":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    monkeypatch.setattr(importlib.metadata, "version", without_pymc)
    result = CliRunner().invoke(app, ["doctor", "--keys", str(tmp_path), "--record", str(tmp_path / "r.db")])
    assert "pip install 'posterase[pymc]'" in result.output


def test_looking_for_a_record_makes_none(tmp_path):
    for record in (tmp_path / "none.db", f"sqlite:///{tmp_path}/none.db"):
        assert "there is no" in examined("--keys", tmp_path, "--record", record, status=1)["record"]["said"]
    assert list(tmp_path.iterdir()) == []


def test_the_compiler_is_the_one_that_compiles(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    assert doctor._compiler().state == "missing"
    for name in ("clang++", "ccache"):
        (tmp_path / name).touch(0o755)
    assert compiler() == ["clang++"]
    assert doctor._compiler().said == str(tmp_path / "clang++")
    monkeypatch.setenv("CXX", "ccache 'my g++'")
    assert compiler() == ["ccache", "my g++"]
    assert doctor._compiler().state == "ok"
    for wrong in ("nowhere++", "'"):
        monkeypatch.setenv("CXX", wrong)
        assert doctor._compiler().state == "wrong"
