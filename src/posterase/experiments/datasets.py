"""Images with labels: MNIST, Fashion-MNIST, CIFAR-10, CIFAR-100 and scikit-learn's digits.

Only the official files are read (IDX, gzipped or not, and CIFAR's binary version; never a pickle), and the SHA-256 of
each one's content is compared with the one that stands here, so that two runs on two machines have the same images.
A data folder holds

    mnist/, fashion-mnist/      train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-…, each perhaps with .gz
    cifar-10-batches-bin/       data_batch_1.bin … data_batch_5.bin, test_batch.bin
    cifar-100-binary/           train.bin, test.bin

and is looked for where the caller says, in $POSTERASE_DATA, and in the user's cache; Fashion-MNIST also where Debian's
package dataset-fashion-mnist puts it. What is in none of them is fetched from its official address.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import os
import struct
import tarfile
import tempfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import IO, NamedTuple

import numpy as np
from jaxtyping import Int, UInt8

from posterase.errors import DatasetError, InvalidOptionError, MissingExtraError
from posterase.runtime.files import cache_folder, make_folder, written_whole
from posterase.runtime.optional import need
from posterase.runtime.progress import shown

CHUNK = 2**20
"""Bytes read at once."""
BLOCK = 1024
"""Images resized at once."""
TIMEOUT = 30.0
"""Seconds to wait for a server that says nothing."""
BROKEN = (EOFError, zlib.error, gzip.BadGzipFile)
"""What unpacking a damaged gzip file raises."""


class Images(NamedTuple):
    """Images and their classes, in the official order."""

    x: UInt8[np.ndarray, "n height width channels"]
    y: Int[np.ndarray, " n"]


class Dataset(NamedTuple):
    """A data set; `test` is None where it was not asked for."""

    name: str
    train: Images
    test: Images | None
    classes: tuple[str, ...]


class File(NamedTuple):
    """An official file: its path in the data folder, the shape of its bytes, and its content's SHA-256."""

    path: str
    shape: tuple[int, ...]
    sha256: str | None
    """None where it is not known; size and labels are looked at alone then."""
    idx: bool = False
    """Whether a header of the IDX format stands before the bytes."""

    @property
    def header(self) -> bytes:
        """What the file begins with."""
        return struct.pack(f">I{len(self.shape)}I", 0x0800 + len(self.shape), *self.shape) if self.idx else b""

    @property
    def size(self) -> int:
        """Bytes, unpacked."""
        return len(self.header) + math.prod(self.shape)


class Source(NamedTuple):
    """Where a data set comes from."""

    classes: tuple[str, ...]
    image: tuple[int, int, int]
    """Height, width, channels."""
    train: tuple[File, ...]
    test: tuple[File, ...]
    address: str
    """An archive, or, ending in a slash, where the gzipped files are."""
    system: tuple[Path, ...] = ()
    """Data folders of the operating system's packages."""
    hint: str = ""
    """Another way to get the files."""

    def count(self, files: tuple[File, ...]) -> int:
        """How many images there are in files."""
        return sum(file.shape[0] for file in files if len(file.shape) > 1)


def _idx(folder: str, part: str, images: str, labels: str, n: int) -> tuple[File, ...]:
    return (
        File(f"{folder}/{part}-images-idx3-ubyte", (n, 28, 28), images, idx=True),
        File(f"{folder}/{part}-labels-idx1-ubyte", (n,), labels, idx=True),
    )


DIGITS = tuple("0123456789")
CLOTHES = (
    *("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat"),
    *("Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
)
CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR100 = """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel can castle
caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate
poppy porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider
squirrel streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle
wardrobe whale willow_tree wolf woman worm
"""
CIFAR100 = tuple(_CIFAR100.split())

SOURCES = {
    "mnist": Source(
        DIGITS,
        (28, 28, 1),
        _idx(
            "mnist",
            "train",
            "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            60_000,
        ),
        _idx(
            "mnist",
            "t10k",
            "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            10_000,
        ),
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
    ),
    "fashion-mnist": Source(
        CLOTHES,
        (28, 28, 1),
        _idx(
            "fashion-mnist",
            "train",
            "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            60_000,
        ),
        _idx(
            "fashion-mnist",
            "t10k",
            "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
            10_000,
        ),
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (Path("/usr/share/datasets"),),
        "install Debian's package dataset-fashion-mnist",
    ),
    "cifar10": Source(
        CIFAR10,
        (32, 32, 3),
        tuple(
            File(f"cifar-10-batches-bin/data_batch_{number}.bin", (10_000, 3073), sha256)
            for number, sha256 in enumerate(
                (
                    "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                ),
                start=1,
            )
        ),
        (
            File(
                "cifar-10-batches-bin/test_batch.bin",
                (10_000, 3073),
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
        ),
        "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    ),
    "cifar100": Source(
        CIFAR100,
        (32, 32, 3),
        (
            File(
                "cifar-100-binary/train.bin",
                (50_000, 3074),
                "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
            ),
        ),
        (File("cifar-100-binary/test.bin", (10_000, 3074), None),),
        "https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
    ),
}
"""The data sets that are files; the records of CIFAR-100 begin with two labels, of which the second is the class."""


def names() -> list[str]:
    """What `load` knows."""
    return [*SOURCES, "digits"]


def load(name: str, folder: Path | None = None, *, test: bool = True) -> Dataset:
    """Read a data set, and fetch what is not here.

    Parameters
    ----------
    name
        mnist, fashion-mnist, cifar10, cifar100 or digits.
    folder
        A data folder to look in first.
    test
        Whether the test images are wanted too.
    """
    check_name(name)
    if name == "digits":
        return _digits(test)
    source = SOURCES[name]
    paths = _present(name, source.train + (source.test if test else ()), folder)
    train = _images(source, source.train, paths)
    return Dataset(name, train, _images(source, source.test, paths) if test else None, source.classes)


def check_name(name: str) -> None:
    """Refuse a name that no data set has."""
    if name not in names():
        raise InvalidOptionError(f"there is no data set {name!r}.", f"use one of {', '.join(names())}.")


# --- where files are


def data_folders(folder: Path | None = None, name: str | None = None) -> list[Path]:
    """The data folders, in the order in which they are looked in; files are fetched into the first."""
    named = os.environ.get("POSTERASE_DATA", "")
    system = SOURCES[name].system if name in SOURCES else ()
    asked = [folder] if folder is not None else []
    return list(dict.fromkeys([*asked, *([Path(named)] if named else []), cache_folder(), *system]))


def copies(file: File, folders: Sequence[Path]) -> list[Path]:
    """The copies of a file that are here, gzipped or not, the one that is read first."""
    wanted = [folder / (file.path + suffix) for folder in folders for suffix in ("", ".gz")]
    return [path for path in wanted if _is_file(path)]


def _is_file(path: Path) -> bool:
    """Whether it is there to be read; not, in a folder that may not be looked into."""
    try:
        return path.is_file()
    except PermissionError:
        return False


def _present(name: str, files: tuple[File, ...], folder: Path | None) -> dict[File, Path]:
    """A path for each file; those that are not here are fetched."""
    folders = data_folders(folder, name)
    missing = [file for file in files if not copies(file, folders)]
    if missing:
        _fetch(name, missing, folders)
    paths = {file: copies(file, folders) for file in files}
    return {file: found[0] for file, found in paths.items()}


# --- reading


def read(path: Path, file: File) -> UInt8[np.ndarray, "..."]:
    """The bytes of a file after its header, once it is known to be the official one."""
    try:
        with path.open("rb") as stream:
            content = _content(stream, file, repr(str(path)))
    except OSError as error:
        if isinstance(error, DatasetError):
            raise
        advice = "check its permissions and its disk."
        raise DatasetError(f"{str(path)!r} cannot be read: {error.strerror or error}.", advice) from error
    return np.frombuffer(content, np.uint8, offset=len(file.header)).reshape(file.shape)


def _content(stream: IO[bytes], file: File, what: str) -> bytearray:
    """All of a stream, unpacked and compared with the official file; `what` names it in errors."""
    packed = stream.read(2) == b"\x1f\x8b"
    stream.seek(0)
    content, digest, size = bytearray(), hashlib.sha256(), 0
    try:
        unpacked = gzip.GzipFile(fileobj=stream) if packed else stream
        while chunk := unpacked.read(CHUNK):
            digest.update(chunk)
            size += len(chunk)
            content += chunk[: file.size - len(content)]  # no more than is wanted is held, whatever comes
    except BROKEN as error:
        raise _wrong(what, f"it cannot be unpacked: {error}") from error
    faults = []
    if size != file.size:
        faults.append(f"{size:,} bytes where {file.size:,} are wanted")
    if not content.startswith(file.header):
        faults.append(f"it does not begin as an IDX file of shape {file.shape} does")
    if file.sha256 not in (None, digest.hexdigest()):
        faults.append(f"SHA-256 {digest.hexdigest()} where {file.sha256} is expected")
    if faults:
        raise _wrong(what, "; ".join(faults))
    return content


def _wrong(what: str, fault: str) -> DatasetError:
    advice = "remove it, so that the official one is fetched, or put that in its place."
    return DatasetError(f"{what} is not the official file: {fault}.", advice)


def _images(source: Source, files: tuple[File, ...], paths: dict[File, Path]) -> Images:
    height, width, channels = source.image
    n = source.count(files)
    x, y = np.empty((n, height, width, channels), np.uint8), np.empty(n, np.int32)
    if files[0].idx:
        images, labels = (read(paths[file], file) for file in files)
        x[:], y[:] = images[..., None], labels
    else:
        start = 0
        for file in files:
            records = read(paths[file], file)
            part = slice(start, start + len(records))
            planes = records[:, -channels * height * width :].reshape(-1, channels, height, width)
            x[part], y[part] = planes.transpose(0, 2, 3, 1), records[:, -channels * height * width - 1]
            start = part.stop
    if n and y.max() >= len(source.classes):
        label = f"a label is {y.max()}, of {len(source.classes)} classes"
        raise _wrong(", ".join(repr(str(paths[file])) for file in files), label)
    return Images(x, y)


def _digits(test: bool) -> Dataset:
    """scikit-learn's 1,797 digits of 8×8 pixels; every fifth image of each class is a test image."""
    need("sklearn", "the data set digits", "data")
    from sklearn.datasets import load_digits

    bunch = load_digits()
    x = np.rint(bunch.images * (255 / 16)).astype(np.uint8)[..., None]
    y = bunch.target.astype(np.int32)
    rank = np.empty_like(y)
    for label in range(len(DIGITS)):  # every fifth of all would favour some classes: the order is not a random one
        rank[y == label] = np.arange(np.sum(y == label))
    held = rank % 5 == 4
    return Dataset("digits", Images(x[~held], y[~held]), Images(x[held], y[held]) if test else None, DIGITS)


# --- fetching


def _fetch(name: str, files: list[File], folders: list[Path]) -> None:
    """Put files into the first data folder: each one whole and the official one, or not there."""
    source, folder = SOURCES[name], folders[0]
    try:
        need("pooch", f"fetching {name}", "data")
    except MissingExtraError as error:
        reason = "pooch, which would fetch them, is not installed"
        raise _missing(name, files, folders, reason, f"let them be fetched: {error.advice}") from error
    make_folder(folder)
    try:
        if not source.address.endswith("/"):
            _fetch_archive(source.address, files, folder)
            return
        for file in files:
            address = source.address + Path(file.path).name + ".gz"
            with tempfile.TemporaryDirectory(prefix=".fetched-", dir=folder) as beside:
                fetched = Path(beside) / "file"
                _download(address, fetched)
                with fetched.open("rb") as stream:
                    _content(stream, file, f"what {address} sent")
                fetched.replace(make_folder((folder / file.path).parent) / f"{Path(file.path).name}.gz")
    except DatasetError as error:  # the server's answer is at fault, and was not kept
        raise _missing(name, files, folders, error.problem.rstrip(".")) from error
    except OSError as error:
        raise _missing(name, files, folders, f"fetching them failed: {' '.join(str(error).split())}") from error


def _fetch_archive(address: str, files: list[File], folder: Path) -> None:
    """Take the wanted members out of an archive, by name; whatever else is in it, and wherever it would go, stays."""
    wanted = {file.path: file for file in files}
    with tempfile.TemporaryDirectory(prefix=".fetched-", dir=folder) as beside:
        archive = Path(beside) / "archive"
        _download(address, archive)
        try:
            with tarfile.open(archive, "r:gz") as tar:
                for member in tar:
                    file = wanted.pop(member.name, None) if member.isfile() else None
                    stream = tar.extractfile(member) if file else None
                    if file is None or stream is None:
                        continue
                    content = _content(stream, file, f"{member.name!r} of {address}")
                    make_folder((folder / file.path).parent)
                    with written_whole(folder / file.path) as target:
                        target.write_bytes(content)
        except (tarfile.TarError, *BROKEN) as error:
            raise _wrong(f"what {address} sent", f"it cannot be unpacked: {error}") from error
    if wanted:
        raise _wrong(f"what {address} sent", f"{', '.join(wanted)} is not in it")


def _download(address: str, target: Path) -> None:
    import pooch

    with shown(f"fetching {address}", total=1):
        pooch.HTTPDownloader(timeout=TIMEOUT, chunk_size=CHUNK)(address, str(target), None)


def _missing(name: str, files: list[File], folders: list[Path], reason: str, *ways: str) -> DatasetError:
    source = SOURCES[name]
    absent = ", ".join(file.path for file in files if not copies(file, folders))
    looked = ", ".join(repr(str(folder)) for folder in folders)
    form = "gzipped or not, " if files[0].idx else "unpacked, "
    place = str((folders[0] / files[0].path).parent)
    put = f"get them from {source.address} and put them, {form}into {place!r}"
    return DatasetError(
        f"files of {name} are not here: {absent} (looked in {looked}); {reason}.",
        "; or ".join([put, *ways, *([source.hint] if source.hint else [])]) + ".",
    )


# --- sizes


def resized(x: UInt8[np.ndarray, "n height width channels"], size: int) -> UInt8[np.ndarray, "n size size channels"]:
    """Images of size×size pixels, by bilinear interpolation between the centres of pixels; edges go on unchanged.

    For enlarging: in smaller images, pixels between the centres would not count.
    """
    if size < 1:
        raise InvalidOptionError(f"size is {size}.", "use a whole number from 1.")
    n, height, width, channels = x.shape
    if (height, width) == (size, size):
        return x
    out = np.empty((n, size, size, channels), np.uint8)
    for start in range(0, n, BLOCK):
        block = x[start : start + BLOCK].astype(np.float32)
        for axis, old in ((1, height), (2, width)):
            centres = np.clip((np.arange(size) + 0.5) * (old / size) - 0.5, 0, old - 1)
            low = np.floor(centres).astype(int)
            part = (centres - low).astype(np.float32).reshape((1, size, 1, 1) if axis == 1 else (1, 1, size, 1))
            below, above = np.take(block, low, axis), np.take(block, np.minimum(low + 1, old - 1), axis)
            block = below + part * (above - below)
        out[start : start + BLOCK] = np.rint(block)
    return out
