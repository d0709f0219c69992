"""What is published does not depend on the values of removed rows.

Two worlds differ in one value of one removed row. Everything that erasing writes by default is compared byte by byte:
terminal output, certificate, report, verdict, the ledger and the whole database. Only the declared fields may differ:
times, keyed pseudonyms, signatures, and the digest of the draws after with what is hashed over it.
"""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest
import sqlalchemy as sa

from posterase.record.store import schema
from tests.cli.test_record_commands import call, write_draws

PERSON = np.array([f"person-{number:02d}" for number in range(25)]).repeat(4)
VALUES = np.random.default_rng(0).normal(1.0, 1.0, PERSON.size)
WORLDS = (0.5, 1.2)
"""The value of row 0, which is removed. Both pass by the same method with the same margin, and the weights select 70 %
and 67 % of the draws, between the same two of the coarse steps that are published (5/8 and 6/8)."""

MODEL = """
import numpy as np, jax.numpy as jnp, posterase as pe

def build(draws):
    model = pe.Model(
        lambda p: -0.5 * (p["mu"] / 10) ** 2,
        lambda p, rows: -0.5 * (rows["y"] - p["mu"]) ** 2,
        {"y": jnp.asarray(np.load("values.npy"))},
    )
    return model, pe.Draws.load(draws)
"""
PROJECT = 'name = "visits"\ndraws = "draws.nc"\nbridge = "arviz"\nsubject = "person"\npreprocessing = "none"\n'
REQUEST = "7c9e6679-7425-40de-944b-e07fc1f90ae7"

DECLARED = {
    "time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ",
    "seconds": r'(?<="seconds":)\s*[\d.e-]+|(?<=about )[\d.e-]+(?= s\b)',
    "pseudonym": r'(?<="before":")hmac-sha256:[0-9a-f]{64}',  # of data and draws before; that of the kept data is none
    "digest": r"(?<!hmac-)sha256:[0-9a-f]{64}",
    "root": r'(?<="root":")[0-9a-f]{64}',
    "signature": r'(?<="value":")[0-9a-f]{128}',
}


def masked(text):
    """A text with its declared fields taken out."""
    for name, pattern in DECLARED.items():
        text = re.sub(pattern, f"<{name}>", text)
    return text


@pytest.fixture
def keys(tmp_path, monkeypatch):
    monkeypatch.setenv("POSTERASE_KEYS", str(tmp_path / "keys"))
    call("keys", "new", "example.org/erasures")


@pytest.fixture
def worlds(tmp_path, monkeypatch, keys):
    """Does something in each world, in a folder of one name, and returns what it found there."""

    def compared(do):
        found = []
        for value in WORLDS:
            here = tmp_path / "here"
            here.mkdir()
            monkeypatch.chdir(here)
            values = np.concatenate([[value], VALUES[1:]])
            np.save(here / "values.npy", values)
            write_draws(here / "draws.nc", PERSON, values, draws=2000)
            (here / "visits.py").write_text(MODEL)
            (here / "project.toml").write_text(PROJECT)
            found.append(do(here))
            monkeypatch.chdir(tmp_path)
            shutil.rmtree(here)
        return found

    return compared


PUBLIC = {"certificate": "certificate.json", "report": "report.html", "verdict": "verdict.json"}


@pytest.mark.parametrize("model", [(), ("--model", "visits:build")], ids=["stored log-likelihoods", "model"])
def test_what_a_job_publishes(worlds, model):
    def erase(here):
        options = {"certificate": "--certificate", "report": "--report", "verdict": "--report"}
        outputs = [word for name, file in PUBLIC.items() for word in (options[name], file)]
        job = ("erase", "draws.nc", "--rows", "0-3", "--out", "kept.nc", "--preprocessing", "none", "--seed", 0)
        job = tuple(word for word in job if word not in ("--preprocessing", "none")) if model else job
        terminal = call(*job, *model, *outputs, "--diagnostics", "diagnostics.json")
        machine = call(*job, *model, *outputs, "--json", "--force")
        files = {name: (here / file).read_text() for name, file in PUBLIC.items()}
        names = str(sorted(path.name for path in here.iterdir()))
        public = files | {"terminal": terminal, "json": machine, "names": names}
        return public, (here / "diagnostics.json").read_text()

    (public, private), (other, otherwise) = worlds(erase)
    assert json.loads(public["verdict"])["verdict"]["draws"] == ("moved" if model else "subset")
    for name in public:
        assert masked(public[name]) == masked(other[name]), name
    assert masked(private) != masked(otherwise)  # the twin that must fail


def test_what_a_refused_job_publishes(worlds):
    def refuse(here):
        files = ("--report", "report.html", "--report", "verdict.json")
        job = (
            "erase",
            "draws.nc",
            "--rows",
            "0-3",
            "--out",
            "kept.nc",
            "--policy",
            "ess=7999",
            "--preprocessing",
            "none",
        )
        terminal = call(*job, *files, status=2)
        return [terminal, (here / "report.html").read_text(), (here / "verdict.json").read_text()]

    found, other = worlds(refuse)
    assert [masked(each) for each in found] == [masked(each) for each in other]


def test_what_a_record_publishes_and_keeps(worlds):
    def run(here):
        call("requests", "register", "project.toml")
        call("requests", "add", "visits", "person-00", "--regulation", "gdpr", "--id", REQUEST)
        said = [call("requests", "run", "visits")]
        said.append(call("requests", "show", REQUEST, "--certificate", "certificate.json", "--page", "page.html"))
        said.append(call("requests", "show", REQUEST, "--json"))
        call("requests", "export", "ledger.jsonl")
        files = [(here / name).read_text() for name in ("certificate.json", "page.html")]
        entries = [line for line in (here / "ledger.jsonl").read_text().splitlines() if '"kind"' in line]
        assert any('"request.completed"' in line for line in entries)
        names = sorted(path.name for path in here.iterdir())
        return said, files, entries, names, database(here / "posterase-record.db")

    first, second = worlds(run)
    for found, other in zip(first, second, strict=True):
        assert [masked(each) for each in found] == [masked(each) for each in other]


def database(path):
    """Every row of every table, but for what is signed or hashed over declared fields."""
    hashed = {"peaks", "checkpoint"}
    found = []
    engine = sa.create_engine(f"sqlite:///{path}")
    with engine.connect() as connection:
        for table in schema.metadata.sorted_tables:
            for row in connection.execute(sa.select(table)):
                values = {name: value for name, value in row._mapping.items() if name not in hashed}
                found.append(f"{table.name} {values!r}")
    engine.dispose()
    return found
