"""Data sets: official files or a clear error; the tests write tiny ones of their own."""

import ast
import functools
import gzip
import hashlib
import http.server
import importlib.util
import io
import os
import pickle
import re
import struct
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from posterase import errors
from posterase.cli import data as commands
from posterase.cli.main import app
from posterase.experiments import datasets
from posterase.experiments.datasets import File, Source

RNG = np.random.default_rng(0)
GREY = {part: RNG.integers(0, 256, (n, 4, 5), dtype=np.uint8) for part, n in (("train", 3), ("t10k", 2))}
LABELS = {"train": np.array([2, 0, 1], np.uint8), "t10k": np.array([1, 2], np.uint8)}
RECORDS = [np.column_stack([[5, 6], [0, 1], RNG.integers(0, 256, (2, 12))]).astype(np.uint8) for _ in range(3)]
"""Two labels, of which the second counts, and 2×2 pixels in three colours."""


def idx(values):
    return struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape) + values.tobytes()


CONTENT = {
    f"grey/{part}-{kind}": idx(values) for kind, parts in (("x", GREY), ("y", LABELS)) for part, values in parts.items()
}
CONTENT |= {f"colour/{name}.bin": values.tobytes() for name, values in zip(("a", "b", "test"), RECORDS, strict=True)}


def file(path, shape, **changes):
    return File(path, shape, **{"sha256": hashlib.sha256(CONTENT[path]).hexdigest(), **changes})


def sources(address="http://127.0.0.1:9/"):
    """Nobody listens there."""
    classes = ("a", "b", "c")
    grey = {
        part: tuple(file(f"grey/{part}-{kind}", v[part].shape, idx=True) for kind, v in (("x", GREY), ("y", LABELS)))
        for part in GREY
    }
    colour = [file(f"colour/{name}.bin", (2, 14)) for name in ("a", "b", "test")]
    unknown = colour[2]._replace(sha256=None)
    return {
        "grey": Source(classes, (4, 5, 1), grey["train"], grey["t10k"], address, hint="install a package"),
        "colour": Source(classes, (2, 2, 3), tuple(colour[:2]), (unknown,), address + "colour.tar.gz"),
    }


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """A data folder, and no other one: neither the user's nor the system's."""
    monkeypatch.setattr(datasets, "SOURCES", sources())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("POSTERASE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def lay_out(folder, *names, gz=False):
    for name in names or CONTENT:
        path = folder / (f"{name}.gz" if gz else name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(gzip.compress(CONTENT[name]) if gz else CONTENT[name])
    return folder


# --- reading


@pytest.mark.parametrize("gz", [False, True])
def test_files_are_read(folder, gz):
    lay_out(folder, gz=gz)
    grey, colour = datasets.load("grey"), datasets.load("colour")
    np.testing.assert_array_equal(grey.train.x, GREY["train"][..., None])
    np.testing.assert_array_equal(grey.test.x, GREY["t10k"][..., None])
    np.testing.assert_array_equal(grey.test.y, LABELS["t10k"])
    np.testing.assert_array_equal(colour.train.y, [0, 1, 0, 1])
    for image, record in zip(colour.train.x, np.concatenate(RECORDS[:2]), strict=True):
        for channel in range(3):  # a plane a colour, row by row
            np.testing.assert_array_equal(image[..., channel].ravel(), record[2 + 4 * channel : 6 + 4 * channel])
    for images in (grey.train, grey.test, colour.train, colour.test):
        assert (images.x.dtype, images.y.dtype) == (np.uint8, np.int32)
        assert images.x.flags.writeable
    assert grey.classes == ("a", "b", "c")


def test_test_images_are_read_only_where_asked_for(folder):
    lay_out(folder, "colour/a.bin", "colour/b.bin")
    assert datasets.load("colour", test=False).test is None
    with pytest.raises(errors.DatasetError, match=r"colour/test\.bin"):
        datasets.load("colour")


def test_where_files_are_looked_for(folder, tmp_path, monkeypatch):
    lay_out(tmp_path / "cache" / "posterase")
    path = functools.partial(datasets.copies, datasets.SOURCES["grey"].train[0])
    assert datasets.load("grey").name == "grey"
    lay_out(folder)
    lay_out(tmp_path / "mine", gz=True)
    found = path(datasets.data_folders(tmp_path / "mine"))
    assert [each.relative_to(tmp_path).parts[0] for each in found] == ["mine", "data", "cache"]
    monkeypatch.setitem(datasets.SOURCES, "grey", sources()["grey"]._replace(system=(tmp_path / "system",)))
    assert datasets.data_folders(None, "grey")[-1] == tmp_path / "system"
    monkeypatch.setenv("POSTERASE_DATA", "")
    assert datasets.data_folders() == [tmp_path / "cache" / "posterase"]


@pytest.mark.skipif(sys.platform != "linux", reason="pooch follows other rules elsewhere")
@pytest.mark.parametrize("cache", ["/somewhere", "", None])
def test_the_cache_is_where_pooch_would_have_it(cache, monkeypatch):
    pooch = pytest.importorskip("pooch")
    monkeypatch.delenv("XDG_CACHE_HOME")
    if cache is not None:
        monkeypatch.setenv("XDG_CACHE_HOME", cache)
    assert datasets.cache_folder() == Path(pooch.os_cache("posterase"))


GOOD = CONTENT["grey/train-x"]
BROKEN = {
    "another pixel": (GOOD[:-1] + bytes([GOOD[-1] ^ 1]), "SHA-256"),
    "cut short": (GOOD[:-1], "75 bytes where 76 are wanted"),
    "too long": (GOOD + b"\0", "77 bytes where 76 are wanted"),
    "empty": (b"", "0 bytes where 76"),
    "bad magic": (b"\0\0\x09\x03" + GOOD[4:], "does not begin as an IDX file of shape"),
    "another shape": (struct.pack(">IIII", 2051, 3, 5, 4) + GOOD[16:], "does not begin as an IDX file of shape"),
    "a pickle": (pickle.dumps({"data": GREY["train"]}), "SHA-256"),
    "text": (b"<html>sorry</html>", "SHA-256"),
}


@pytest.mark.parametrize("gz", [False, True])
@pytest.mark.parametrize(("content", "words"), BROKEN.values(), ids=BROKEN)
def test_wrong_content_is_refused(folder, content, words, gz):
    lay_out(folder)
    path = folder / "grey" / "train-x"
    path.unlink()
    path = path.with_name("train-x.gz") if gz else path
    path.write_bytes(gzip.compress(content) if gz else content)
    with pytest.raises(errors.DatasetError, match=words) as caught:
        datasets.load("grey")
    for said in (str(path), hashlib.sha256(GOOD).hexdigest(), hashlib.sha256(content).hexdigest(), "What to do"):
        assert said in str(caught.value)


@pytest.mark.parametrize("damage", [lambda b: b[:-12], lambda b: b[:30], lambda b: b[:20] + b"\xff" * 9 + b[29:]])
def test_broken_gzip_is_refused(folder, damage):
    lay_out(folder, gz=True)
    path = folder / "grey" / "train-x.gz"
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(errors.DatasetError, match=r"train-x\.gz' is not the official file: it cannot be unpacked"):
        datasets.load("grey")


def test_a_file_that_cannot_be_read(folder, monkeypatch):
    lay_out(folder)

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(errors.DatasetError, match="Permission denied"):
        datasets.load("grey")


def test_without_a_checksum_size_and_labels_are_looked_at(folder):
    lay_out(folder)
    path = folder / "colour" / "test.bin"
    path.write_bytes(CONTENT["colour/test.bin"][:-1] + b"\0")
    assert datasets.load("colour").test is not None
    path.write_bytes(b"\0\7" + CONTENT["colour/test.bin"][2:])
    with pytest.raises(errors.DatasetError, match="a label is 7, of 3 classes"):
        datasets.load("colour")
    path.write_bytes(CONTENT["colour/test.bin"][:-1])
    with pytest.raises(errors.DatasetError, match="27 bytes where 28"):
        datasets.load("colour")


def test_unknown_names():
    with pytest.raises(errors.InvalidOptionError, match="grey, colour, digits"):
        datasets.load("gray")


def test_nothing_unpickles():
    text = Path(datasets.__file__).read_text()
    assert "import pickle" not in text
    assert "np.load" not in text


# --- fetching


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder that is served, by http, as the official address."""
    shared = tmp_path / "served"
    shared.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    served = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(shared)))
    thread = threading.Thread(target=served.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    monkeypatch.setattr(datasets, "SOURCES", sources(f"http://127.0.0.1:{served.server_port}/"))
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    yield shared
    served.shutdown()
    served.server_close()
    thread.join()


def archive(path, members, links=()):
    with tarfile.open(path, "w:gz") as tar:
        for name, content in members:
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for name, target in links:
            member = tarfile.TarInfo(name)
            member.type, member.linkname = tarfile.SYMTYPE, target
            tar.addfile(member)


COLOUR = [(name, content) for name, content in CONTENT.items() if name.startswith("colour/")]


def all_files(folder):
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_files_are_fetched(server, folder):
    pytest.importorskip("pooch")
    for name, content in CONTENT.items():
        (server / f"{Path(name).name}.gz").write_bytes(gzip.compress(content))
    lay_out(folder, "grey/train-y")
    np.testing.assert_array_equal(datasets.load("grey").train.x[..., 0], GREY["train"])
    assert all_files(folder) == ["grey/t10k-x.gz", "grey/t10k-y.gz", "grey/train-x.gz", "grey/train-y"]
    for path in server.iterdir():
        path.unlink()
    assert datasets.load("grey").test is not None  # from the folder


def test_an_archive_is_fetched_and_only_the_named_members_are_taken(server, folder, tmp_path):
    pytest.importorskip("pooch")
    evil = [("../evil", b"x"), (str(tmp_path / "evil"), b"x"), ("colour/../../evil", b"x"), ("colour/other.bin", b"x")]
    archive(server / "colour.tar.gz", [*evil, *COLOUR], [("colour/link", "/etc/passwd")])
    data = datasets.load("colour")
    np.testing.assert_array_equal(data.test.y, [0, 1])
    assert all_files(folder) == [name for name, _ in COLOUR]
    assert not list(tmp_path.rglob("evil"))


BAD_ARCHIVES = {
    "a link in place of a file": (lambda p: archive(p, COLOUR[:2], [(COLOUR[2][0], "a.bin")]), "test.bin is not in it"),
    "a member missing": (lambda p: archive(p, COLOUR[:2]), "colour/test.bin is not in it"),
    "another content": (lambda p: archive(p, [(n, c[::-1]) for n, c in COLOUR]), "SHA-256"),
    "no archive": (lambda p: p.write_bytes(b"<html>sorry</html>"), "cannot be unpacked"),
    "half of it": (lambda p: (archive(p, COLOUR), p.write_bytes(p.read_bytes()[:60])), "cannot be unpacked"),
    "nothing": (lambda p: None, "404"),
}


@pytest.mark.parametrize(("make", "words"), BAD_ARCHIVES.values(), ids=BAD_ARCHIVES)
def test_bad_archives_are_refused(server, folder, make, words):
    pytest.importorskip("pooch")
    make(server / "colour.tar.gz")
    with pytest.raises(errors.DatasetError, match=words):
        datasets.load("colour")
    for path in folder.rglob("*"):  # nothing but whole and official files stays
        assert path.is_dir() or path.read_bytes() == CONTENT[str(path.relative_to(folder))]


def test_a_fetched_file_that_is_wrong_is_not_kept(server, folder):
    pytest.importorskip("pooch")
    (server / "train-x.gz").write_bytes(b"<html>sorry</html>")
    with pytest.raises(errors.DatasetError, match=r"train-x\.gz sent is not the official file: 18 bytes") as caught:
        datasets.load("grey")
    assert hashlib.sha256(GOOD).hexdigest() in str(caught.value)
    assert not all_files(folder)


def test_without_a_network(folder, tmp_path, monkeypatch):
    pooch = pytest.importorskip("pooch")

    def fail(*_, **__):
        raise ConnectionError("no route\nto host")

    monkeypatch.setattr(pooch.HTTPDownloader, "__call__", fail)
    for name, form in (("grey", "gzipped or not"), ("colour", "unpacked")):
        with pytest.raises(errors.DatasetError, match="no route to host") as caught:
            datasets.load(name)
        source = datasets.SOURCES[name]
        for said in (str(folder / name), str(tmp_path / "cache" / "posterase"), source.address, source.hint, form):
            assert said in str(caught.value)
        for each in source.train + source.test:
            assert each.path in caught.value.problem
    assert not all_files(folder)


def test_without_pooch(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "pooch", None)
    lay_out(folder, "grey/train-x")
    with pytest.raises(errors.DatasetError, match="pooch, which would fetch them, is not installed") as caught:
        datasets.load("grey", test=False)
    assert "grey/train-y (looked in" in caught.value.problem
    assert "train-x" not in str(caught.value)
    assert "pip install 'posterase[data]'" in caught.value.advice


# --- digits and sizes


def test_digits():
    name, train, test, classes = datasets.load("digits")
    assert (name, classes) == ("digits", tuple("0123456789"))
    assert train.x.shape == (1442, 8, 8, 1)
    assert test.x.shape == (355, 8, 8, 1)
    assert (train.x.min(), train.x.max()) == (0, 255)
    assert len(np.unique(train.x)) == 17
    np.testing.assert_allclose(np.bincount(test.y) / (np.bincount(train.y) + np.bincount(test.y)), 0.2, atol=0.01)
    assert datasets.load("digits", test=False).test is None
    from sklearn.datasets import load_digits

    first = np.flatnonzero(load_digits().target == 0)[:5]
    np.testing.assert_array_equal(test.x[test.y == 0][0, ..., 0], np.rint(load_digits().images[first[4]] * 255 / 16))


def test_optional_libraries_are_imported_where_they_are_used():
    for module in (datasets, commands):
        top = [ast.unparse(node) for node in ast.parse(Path(module.__file__).read_text()).body]
        assert not [line for line in top if re.match(r"(import|from) (pooch|sklearn|requests)", line)]


@pytest.mark.parametrize(("old", "new"), [(28, 32), (8, 16), (8, 32), (8, 11)])
def test_a_ramp_stays_a_ramp(old, new):
    """Between the centres of the outer pixels the closed form is the line itself; outside, the edge goes on."""
    slope = 255 // (2 * old)
    ramp = slope * (np.arange(old)[:, None] + np.arange(old)[None])
    x = np.stack([ramp, ramp.T, ramp[::-1]]).astype(np.uint8)[..., None]
    at = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    line = slope * (at[:, None] + at[None])
    found = datasets.resized(x, new)[..., 0]
    assert found.dtype == np.uint8
    np.testing.assert_allclose(found, np.stack([line, line.T, line[::-1]]), atol=0.501)


def test_sizes(monkeypatch):
    x = RNG.integers(0, 256, (5, 6, 6, 3), dtype=np.uint8)
    assert datasets.resized(x, 6) is x
    for value in (0, 3, 255):
        assert np.all(datasets.resized(np.full_like(x, value), 9) == value)
    np.testing.assert_array_equal(datasets.resized(x, 12)[:, 0, 0], x[:, 0, 0])  # corners
    whole = datasets.resized(x, 13)
    monkeypatch.setattr(datasets, "BLOCK", 2)
    np.testing.assert_array_equal(datasets.resized(x, 13), whole)
    assert datasets.resized(x[:0], 13).shape == (0, 13, 13, 3)
    assert datasets.resized(x[:, :4], 6).shape == (5, 6, 6, 3)
    with pytest.raises(errors.InvalidOptionError, match="size is 0"):
        datasets.resized(x, 0)


# --- the command line


def said(*arguments, status=0):
    result = CliRunner().invoke(app, ["data", *map(str, arguments)])
    assert result.exit_code == status, result.output
    return result.output


def test_list(folder):
    lay_out(folder, "colour/a.bin", "colour/b.bin", "grey/train-x")
    rows = {line.split()[0]: line.split()[1:] for line in said("list").split("\n\n")[0].splitlines()}
    assert rows["colour"] == ["4", "2", "2×2×3", "3", "train", "only"]
    assert rows["grey"] == ["3", "2", "4×5×1", "3", "partly"]
    assert rows["digits"] == ["1,442", "355", "8×8×1", "10", "yes"]
    assert str(folder) in said("list")


def test_where(folder, tmp_path):
    lay_out(tmp_path / "mine", "grey/train-x", gz=True)
    text = said("where", "grey", "--data", tmp_path / "mine")
    assert f"{tmp_path / 'mine'}: 1 file\n    grey/train-x.gz\n" in text
    assert f"{folder}: no files" in text
    assert "colour" not in text
    assert "colour" in said("where")


def test_check(folder):
    assert said("check").count("not here") == 2
    assert "not here   grey" in said("check", "grey", status=1)
    lay_out(folder)
    text = said("check")
    assert text.count("\nok ") + text.startswith("ok ") == 7
    assert f"not known  {folder / 'colour' / 'test.bin'}" in text
    (folder / "colour" / "test.bin").unlink()
    assert "not here   colour/test.bin" in said("check", "colour")
    (folder / "colour" / "a.bin").unlink()
    assert "wrong      colour/a.bin" in said("check", status=1)
    (folder / "grey" / "t10k-x").write_bytes(b"")
    text = said("check", "grey", status=1)
    assert f"wrong      '{folder / 'grey' / 't10k-x'}' is not the official file: 0 bytes" in text
    assert text.count("ok ") == 3


def test_check_without_scikit_learn(monkeypatch):
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None if name == "sklearn" else find(name))
    assert "digits: scikit-learn is not installed" in said("check")
    said("check", "digits", status=1)
    assert "digits: in scikit-learn, which is not installed" in said("where", "digits")


def test_an_unknown_name_on_the_command_line():
    result = CliRunner().invoke(app, ["data", "check", "gray"])
    assert isinstance(result.exception, errors.InvalidOptionError)


# --- the real files, where they are

REAL = dict(datasets.SOURCES)
DATA = os.environ.get("POSTERASE_DATA")
FIRST = {
    "mnist": [5, 0, 4, 1, 9],
    "fashion-mnist": [9, 0, 0, 3, 0],
    "cifar10": [6, 9, 9, 4, 1],
    "cifar100": [19, 29, 0],
}


@pytest.mark.parametrize("name", REAL)
def test_the_official_files(name, monkeypatch):
    source = REAL[name]
    folders = [Path(DATA)] if DATA else []
    if not all(datasets.copies(each, [*folders, *source.system]) for each in source.train):
        pytest.skip("the official files are not here")
    monkeypatch.setattr(datasets, "SOURCES", REAL)
    train = datasets.load(name, folders[0] if folders else None, test=False).train
    assert train.x.shape == (source.count(source.train), *source.image)
    assert train.y[: len(FIRST[name])].tolist() == FIRST[name]
    assert set(np.bincount(train.y)) == {len(train.y) // len(source.classes)} or name == "mnist"
    assert train.x[::500].std(axis=(1, 2, 3)).min() > 0


def test_what_is_known_of_the_official_files():
    assert [len(source.classes) for source in REAL.values()] == [10, 10, 10, 100]
    assert [source.count(source.train) for source in REAL.values()] == [60_000, 60_000, 50_000, 50_000]
    sums = [each.sha256 for source in REAL.values() for each in source.train + source.test if each.sha256]
    assert len(set(sums)) == len(sums)
    assert {len(each) for each in sums} == {64}
    assert [each.size for each in REAL["mnist"].train] == [47_040_016, 60_008]
