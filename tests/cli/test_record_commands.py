"""The record on the command line, with real draws: hand in, run, certificate, verify offline."""

from __future__ import annotations

import hashlib
import json
import re
import sys
from contextlib import contextmanager

import numpy as np
import pytest
import xarray as xr
from typer.testing import CliRunner

import posterase as pe
from posterase.cli import requests
from posterase.cli.exit_status import BUSY
from posterase.cli.main import app
from posterase.cli.record_options import DEFAULT_RECORD
from posterase.cli.requests import CHANGE_OF_KEYS, opened_record
from posterase.errors import (
    KeyFileError,
    LedgerError,
    MissingExtraError,
    PosteraseError,
    ProjectError,
    RequestError,
)
from posterase.projects.spec import Project
from posterase.record.runs import Ran

PEOPLE, VISITS = 25, 4
NOISE = 1.0


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A project with real draws: a mean of visits of people, from its conjugate posterior."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("POSTERASE_RECORD", raising=False)
    monkeypatch.setenv("POSTERASE_KEYS", str(tmp_path / "keys"))
    (tmp_path / "visits").mkdir()
    rng = np.random.default_rng(0)
    person = np.array([f"person-{number:02d}" for number in range(PEOPLE)]).repeat(VISITS)
    values = rng.normal(1.0, NOISE, person.size)
    values[:VISITS] = 17.25, 0.5, 0.5, -14.25  # planted, and of no influence
    np.savez(tmp_path / "visits" / "visits.npz", person=person, values=values)
    write_draws(tmp_path / "visits" / "draws.nc", person, values)
    (tmp_path / "visits" / "project.toml").write_text(
        'name = "visits"\ndraws = "draws.nc"\nbridge = "arviz"\nsubject = "person"\npreprocessing = "none"\n'
    )
    return tmp_path


def exact(values):
    """Mean and standard deviation of the posterior, by its closed form (prior N(0, 10))."""
    precision = values.size / NOISE**2 + 1 / 100
    return values.sum() / NOISE**2 / precision, precision**-0.5


def write_draws(path, person, values, draws=1000, name="person"):
    mean, sd = exact(values)
    mu = mean + sd * np.random.default_rng(1).normal(size=(4, draws))
    likelihood = -0.5 * ((values - mu[..., None]) / NOISE) ** 2 - np.log(NOISE) - 0.5 * np.log(2 * np.pi)
    coords = {"visit": np.arange(person.size)}
    groups = {
        "posterior": xr.Dataset({"mu": (("chain", "draw"), mu)}),
        "log_likelihood": xr.Dataset({"y": (("chain", "draw", "visit"), likelihood)}, coords=coords),
        "observed_data": xr.Dataset({"y": ("visit", values)}, coords=coords),
        "constant_data": xr.Dataset({name: ("visit", person)}, coords=coords),
    }
    xr.DataTree.from_dict(groups).to_netcdf(path, engine="h5netcdf")


def call(*words, status=0, given=None):
    """Run a command; its output."""
    result = CliRunner().invoke(app, [str(word) for word in words], input=given)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == status, result.output
    return result.output


def begin():
    call("keys", "new", "example.org/erasures")
    return call("requests", "register", "visits/project.toml")


def hand_in(subject, *more):
    return json.loads(call("requests", "add", "visits", subject, "--regulation", "gdpr", "--json", *more))


def test_from_the_request_to_the_verified_certificate(here):
    assert "100 rows, subjects in 'person'" in begin()
    before = np.load(here / "visits" / "visits.npz")
    first = hand_in("person-03")["subject_request_id"]
    second = json.loads(
        call("requests", "add", "visits", "-", "--regulation", "ccpa", "--json", given="person-11\r\n")
    )["subject_request_id"]
    assert [line.split()[0] for line in call("requests", "list").splitlines()] == ["request", first, second]
    assert "2 requests: 2 completed" in call("requests", "run", "visits", "--due-within", "60d")
    kept = ~np.isin(before["person"], ["person-03", "person-11"])
    mean, sd = exact(before["values"][kept])
    after = pe.Draws.load(here / "visits" / "draws.nc")
    assert after.log_weights is None
    mu = np.asarray(after.params["mu"])
    assert mu.mean() == pytest.approx(mean, abs=5 * sd / mu.size**0.5)  # chance exceeds it once in a million
    tree = xr.open_datatree(here / "visits" / "draws.nc", engine="h5netcdf")
    assert "person-03" not in tree["constant_data"]["person"].values
    assert tree["observed_data"].sizes["visit"] == kept.sum()
    tree.close()

    assert "completed" in call("requests", "show", first, "--certificate", "certificate.json", "--page", "page.html")
    said = call("requests", "export", "ledger.jsonl", "--checkpoint", "checkpoint.txt")
    assert "whole and unchanged" in said
    words = ("--key", "keys/public.key", "--certificate", "certificate.json")
    verified = call("verify", "ledger.jsonl", *words, "--checkpoint", "checkpoint.txt")
    entry = int(re.search(r"certificate.json is entry (\d+)", verified)[1])
    certificate = json.loads((here / "certificate.json").read_text())
    told = {"certificate": "certificate.json", "origin": "example.org/erasures", "outside_a_record": False}
    told |= {"key": certificate["signature"]["key"]}
    assert json.loads(call("verify", "ledger.jsonl", *words, "--json"))["certificates"] == [told | {"entry": entry}]
    assert json.loads(call("verify", *words, "--json"))["certificates"] == [told | {"entry": None}]
    assert certificate["rows"]["count"] == VISITS
    assert certificate["erasure"]["verdict"]["draws"] == "subset"
    assert "other files in the project's folder, which may hold the rows: 1 .npz file" in certificate["not_erased"]
    assert "4 rows of the person who asked" in (here / "page.html").read_text()


def test_one_request_after_another_from_what_the_last_one_left(here):
    begin()
    for number in range(3):
        hand_in(f"person-{number + 5:02d}")
        call("requests", "run", "visits")
    hand_in("person-05")
    assert "0 rows: no rows of the subject were found" in call("requests", "run", "visits")
    tree = xr.open_datatree(here / "visits" / "draws.nc", engine="h5netcdf")
    assert tree["observed_data"].sizes["visit"] == (PEOPLE - 3) * VISITS
    tree.close()


MODEL = """
import jax.numpy as jnp
import numpy as np

import posterase as pe


def build(draws, {parameters}):
    data = np.load(draws.parent / "visits.npz")
    number = np.array([float(each[-2:]) for each in data["person"]])
    left = ~np.array(erased(number)) if {leave_out} else np.ones(number.size, bool)
    rows = {{"person": jnp.asarray(number[left]), "y": jnp.asarray(data["values"][left])}}
    model = pe.Model(lambda p: -0.5 * (p["mu"] / 10) ** 2, lambda p, rows: -0.5 * (rows["y"] - p["mu"]) ** 2, rows)
    return model, pe.Draws.load(draws)
"""
PROJECT = 'name = "visits"\ndraws = "draws.nc"\nmodel = "visits_model:build"\nsubject = "person"\n[policy]\ness = 300\n'


def write_model(here, parameters="erased", leave_out=True):
    text = MODEL.format(parameters=parameters, leave_out=leave_out)
    (here / "visits" / "visits_model.py").write_text(text)
    (here / "visits" / "project.toml").write_text(PROJECT)


def test_a_model_built_by_a_function(here):
    """The data are where they were: who was erased before is left out when they are read."""
    write_model(here)
    begin()
    identity = hand_in("3")["subject_request_id"]  # the data have 3.0
    assert "1 completed" in call("requests", "run", "visits")
    call("requests", "show", identity, "--certificate", "certificate.json")
    found = json.loads((here / "certificate.json").read_text())
    source = (here / "visits" / "visits_model.py").read_bytes()
    assert found["fingerprints"]["code"]["after"] == f"sha256:{hashlib.sha256(source).hexdigest()}"
    assert found["erasure"]["policy"]["ess"] == 300
    assert found["erasure"]["removed_rows"] == VISITS
    hand_in("3")
    assert "0 rows" in call("requests", "run", "visits")
    (here / "visits" / "project.toml").write_text(PROJECT.replace("300", "200"))
    assert "96 rows" in call("requests", "register", "visits/project.toml")


def test_people_who_were_erased_do_not_come_back_by_themselves(here):
    """A model that forgets to leave them out, or was fitted anew from a source that still has them."""
    write_model(here)
    begin()
    hand_in("3")
    call("requests", "run", "visits")
    write_model(here, parameters="*, erased", leave_out=False)  # and the module is read again
    hand_in("4")
    with pytest.raises(ProjectError, match="1 of the subjects in the data were erased before"):
        call("requests", "run", "visits")
    with pytest.raises(ProjectError, match="erased before"):
        call("requests", "register", "visits/project.toml", "--refitted")
    write_draws(here / "visits" / "draws.nc", **np.load(here / "visits" / "visits.npz"))
    assert "100 rows" in call("requests", "register", "visits/project.toml", "--refitted", "--returned")
    assert "1 completed" in call("requests", "run", "visits")


def test_an_error_of_the_model_is_told_by_its_kind_and_line(here):
    write_model(here)
    file = here / "visits" / "visits_model.py"
    good = file.read_text()
    for text, says in [
        (
            good.replace("    rows = ", '    raise ValueError("person-03 has 17.25")\n    rows = '),
            r"ValueError \(visits_",
        ),
        (good.replace("return model, pe.Draws.load(draws)", "return 1, 2"), "return"),
        ("syntax error", "SyntaxError"),
    ]:
        file.write_text(text)
        with pytest.raises(ProjectError, match=says) as raised:
            begin() if not (here / "keys").exists() else call("requests", "register", "visits/project.toml")
        assert "17.25" not in repr([raised.value, raised.value.__cause__, raised.value.__context__])


def test_a_request_that_is_refused(here):
    """Stored log-likelihoods cannot move draws: the person whose rows decide everything cannot be reweighted away."""
    data = dict(np.load(here / "visits" / "visits.npz"))
    data["values"][:VISITS] = 12.0
    write_draws(here / "visits" / "draws.nc", **data, draws=8000)
    begin()
    bad, good = hand_in("person-00")["subject_request_id"], hand_in("person-03")["subject_request_id"]
    said = call("requests", "run", "visits", status=2)
    assert re.search(f"{bad} refused, 4 rows: .*k̂", said)
    assert f"{good} completed, 4 rows" in said
    with pytest.raises(RequestError, match="no certificate"):
        call("requests", "show", bad, "--certificate", "certificate.json")


def test_states_and_reasons(here):
    begin()
    identity = hand_in("person-03", "--received-at", "2025-01-01T00:00:00Z")["subject_request_id"]
    assert hand_in("person-03", "--id", identity)["outcome"] == "duplicate"
    assert "LATE" in call("requests", "list")
    second = hand_in("person-04")["subject_request_id"]
    assert "is due" in call("requests", "extend", second, "--reason", "many at once")
    assert "cancelled" in call("requests", "cancel", identity, "--reason", "withdrawn")
    assert identity in call("requests", "list", "--state", "cancelled")
    assert "extended" in call("requests", "show", second)
    assert json.loads(call("requests", "show", second, "--json"))["history"][1]["kind"] == "request.extended"
    conflict = call("requests", "add", "visits", "person-09", "--regulation", "gdpr", "--id", second, status=1)
    assert "was not taken" in conflict
    assert "No requests" in call("requests", "list", "--project", "another")


def test_keys_change_and_old_certificates_stay_verifiable(here):
    begin()
    identity = hand_in("person-03")["subject_request_id"]
    call("requests", "run", "visits")
    call("requests", "show", identity, "--certificate", "certificate.json")
    (here / "old.key").write_text((here / "keys" / "public.key").read_text())
    call("keys", "rotate")
    assert call("keys", "show").strip() == (here / "keys" / "public.key").read_text().strip()
    assert (here / "old.key").read_text() != (here / "keys" / "public.key").read_text()
    hand_in("person-04")
    call("requests", "export", "ledger.jsonl")
    for key in ("old.key", "keys/public.key"):
        assert "is entry" in call("verify", "ledger.jsonl", "--key", key, "--certificate", "certificate.json")
    text = (here / "ledger.jsonl").read_text()
    (here / "ledger.jsonl").write_text(text.replace("request.completed", "request.cancelled"))
    with pytest.raises(LedgerError, match=r"entry 4 "):
        call("verify", "ledger.jsonl", "--key", "old.key")


def test_what_is_wrong_is_said_before_anything_is_done(here):
    with pytest.raises(KeyFileError, match="posterase keys new"):
        call("requests", "list")
    assert not (here / "posterase-record.db").exists()
    begin()
    project = here / "visits" / "project.toml"
    good = project.read_text()
    for text, says in [
        (good.replace('"person"', '"persn"'), "did you mean 'person'"),
        (good + "[policy]\nepsilom = 1", "did you mean 'epsilon'"),
        (good.replace('bridge = "arviz"', 'model = "nowhere:build"'), "no module 'nowhere'"),
        (good.replace('bridge = "arviz"', 'model = "json:build"'), "no function 'build'"),
        (good.replace('bridge = "arviz"', 'model = "os.path:basename"'), "return"),
    ]:
        project.write_text(text)
        with pytest.raises(ProjectError, match=says):
            call("requests", "register", project)
    for words in (
        ["list", "--state", "done"],
        ["list", "--due-within", "soon"],
        ["run", "visits", "--due-within", "1y"],
    ):
        with pytest.raises(RequestError):
            call("requests", *words)
    with pytest.raises(LedgerError, match="cannot be read"):
        call("verify", project, "--key", "keys/public.key", "--certificate", "none.json")


def test_nothing_says_whose_rows_they_were(here, capfd):
    """The subject's key and values of its rows are in the draws before, and nowhere after."""
    begin()
    identity = hand_in("person-00")["subject_request_id"]
    said = call("requests", "run", "visits")
    said += call("requests", "show", identity, "--certificate", "certificate.json", "--page", "page.html")
    said += call("requests", "export", "ledger.jsonl", "--checkpoint", "checkpoint.txt") + str(capfd.readouterr())
    content = said.encode()
    for path in here.rglob("*"):
        if path.is_file() and path.name not in ("visits.npz",):
            content += path.read_bytes()
    for planted in (b"person-00", b"17.25", np.float64(17.25).tobytes(), b"-14.25", np.float64(-14.25).tobytes()):
        assert planted not in content


def test_serve_without_its_extra_names_it_first(here, monkeypatch):
    for name in [each for each in sys.modules if each.startswith("posterase.service.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(sys.modules, "posterase.service", raising=False)
    monkeypatch.setitem(sys.modules, "fastapi", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'posterase\[service\]'"):
        call("serve")


def test_keys_are_changed_by_one_process_at_a_time(here):
    begin()
    with opened_record(DEFAULT_RECORD, here / "keys") as late:
        before = (here / "keys" / "signing.key").read_bytes()
        with late.database.locked(CHANGE_OF_KEYS) as held:
            assert held is not None
            assert "Another process" in call("keys", "rotate", status=BUSY)
        assert (here / "keys" / "signing.key").read_bytes() == before
    with pytest.raises(ProjectError, match="cannot name a project"):
        Project(name=CHANGE_OF_KEYS, draws="draws.nc", bridge="arviz")


def test_who_comes_late_to_change_the_keys_changes_nothing(here, monkeypatch):
    begin()

    @contextmanager
    def another_was_faster(url, folder):
        with opened_record(url, folder) as opened:
            monkeypatch.setattr(requests, "opened_record", opened_record)
            call("keys", "rotate")
            yield opened

    monkeypatch.setattr(requests, "opened_record", another_was_faster)
    with pytest.raises(KeyFileError, match="use the keys of this record"):
        call("keys", "rotate")
    hand_in("person-03")
    assert sorted(path.name for path in (here / "keys").iterdir()) == ["pseudonyms.key", "public.key", "signing.key"]


def test_a_request_that_was_given_back_says_why(here, monkeypatch):
    begin()
    identity = hand_in("person-03")["subject_request_id"]

    def given_back(record, *_, **__):
        with record.transaction() as transaction:
            body = {"run": "visits-3", "reason": "together with others it did not pass"}
            transaction.append("request.released", body, project="visits", request=identity)
        return Ran("visits-3", [record.get(identity)])

    monkeypatch.setattr("posterase.record.runs.run", given_back)
    assert f"  {identity} pending: together with others it did not pass\n" in call("requests", "run", "visits")


def test_a_project_says_which_axis_is_the_rows(here):
    with xr.open_datatree(here / "visits" / "draws.nc", engine="h5netcdf") as tree:
        groups = {name: child.to_dataset().load() for name, child in tree.children.items()}
    groups["log_likelihood"] = groups["log_likelihood"].expand_dims(place=2) / 2
    xr.DataTree.from_dict(groups).to_netcdf(here / "visits" / "draws.nc", engine="h5netcdf")
    call("keys", "new", "example.org/erasures")
    project = here / "visits" / "project.toml"
    with pytest.raises(PosteraseError, match="say which of them is the rows"):
        call("requests", "register", project)
    project.write_text(project.read_text() + 'row_dim = "visit"\n')
    assert "100 rows, subjects in 'person'" in call("requests", "register", project)
