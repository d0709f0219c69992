"""The ledger: entries that can be added and never changed, and a file of them that anyone can verify.

An entry is canonical JSON: its number, when, who, what. Entries are the leaves of a Merkle tree (RFC 6962); after each
one the log's key signs a checkpoint of the tree. So an edited, removed, inserted or moved entry shows at the checkpoint
after it, and a log that was cut or rewritten shows against any checkpoint or certificate that somebody kept.

An exported file has a line for everything: a header, then each entry as it was hashed and the checkpoint after it, then
a signed end, without which a file is not whole. The first entry names the first key; a change of keys is an entry, and
the checkpoint after it is signed by both keys. So a reader who trusts one of the keys can trust all.
"""

from __future__ import annotations

import collections
import dataclasses
import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, get_args

from posterase.errors import KeyFileError, LedgerError, LedgerFormatError, RequestError
from posterase.record.deadlines import text_of, time_of
from posterase.record.ledger.canonical import canonical, parsed
from posterase.record.ledger.merkle import Tree
from posterase.record.ledger.signed_note import Checkpoint, PublicKey, Signer, opened, signed

FORMAT, VERSION = "posterase-ledger", 1

END = "end of export"

Kind = Literal[
    "ledger.created",
    "key.rotated",
    "token.made",
    "token.revoked",
    "project.registered",
    "project.changed",
    "run.completed",
    "request.received",
    "request.extended",
    "request.started",
    "request.released",
    "request.completed",
    "request.refused",
    "request.cancelled",
]
"""What an entry tells; a released request is one that a run could not answer and that is pending again."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Something that happened."""

    index: int
    time: str
    kind: Kind
    actor: str
    """Who did it."""
    project: str | None = None
    request: str | None = None
    body: dict[str, Any] = dataclasses.field(default_factory=dict)

    def to_bytes(self) -> bytes:
        """The leaf."""
        return canonical(dataclasses.asdict(self))

    @classmethod
    def parse(cls, data: bytes) -> Entry:
        """From the leaf."""
        value = parsed(data)
        if not isinstance(value, dict) or value.keys() != {field.name for field in dataclasses.fields(cls)}:
            raise LedgerFormatError("this is not an entry of a ledger.", "give the file as it was exported.")
        entry = cls(**value)
        texts = entry.time, entry.kind, entry.actor, entry.project or "", entry.request or ""
        if type(entry.index) is not int or not isinstance(entry.body, dict) or not all(type(t) is str for t in texts):
            raise LedgerFormatError("a part of this entry is of another type.", "give the file as it was exported.")
        if entry.kind not in get_args(Kind):
            raise LedgerFormatError("there is no such kind of entry.", "verify it with a newer posterase.")
        return entry


def checkpoint(origin: str, tree: Tree, *signers: Signer) -> str:
    """The signed checkpoint of a tree."""
    return signed(Checkpoint(origin, tree.size, tree.root).text(), *signers)


def exported(origin: str, pairs: Iterable[tuple[bytes, str]], signer: Signer, when: str) -> Iterator[bytes]:
    """The lines of an exported file, from all entries and the checkpoint after each."""
    yield canonical({"format": FORMAT, "version": VERSION, "origin": origin}) + b"\n"
    tree = Tree()
    for leaf, note in pairs:
        tree = tree.appended(leaf)
        yield leaf + b"\n"
        yield canonical({"checkpoint": note}) + b"\n"
    end = Checkpoint(origin, tree.size, tree.root, (END, when))
    yield canonical({"end": signed(end.text(), signer)}) + b"\n"


@dataclasses.dataclass(frozen=True)
class Verified:
    """What a whole and unchanged ledger says of itself."""

    origin: str
    size: int
    root: bytes
    exported_at: str
    keys: tuple[PublicKey, ...]
    """All that signed it, one after the other."""
    kinds: dict[str, int]
    """How many entries there are of each kind."""
    certificates: tuple[int, ...]
    """The entries of the certificates that were asked for."""

    def __str__(self) -> str:
        return (
            f"{self.origin}: {self.size} entries, whole and unchanged, as of {self.exported_at}; "
            f"signed by {' → '.join(key.id for key in self.keys)}; root {self.root.hex()}."
        )


def verify(
    lines: Iterable[bytes],
    keys: Sequence[PublicKey],
    *,
    certificates: Sequence[bytes] = (),
    checkpoints: Sequence[str] = (),
) -> Verified:
    """Verify an exported ledger with public keys alone, of which one at least must have signed it.

    Parameters
    ----------
    lines
        The lines of the file.
    keys
        Keys that you trust.
    certificates
        Certificates, as bytes of their files, that must be in it.
    checkpoints
        Signed checkpoints that were kept from earlier, which it must agree with.
    """
    if not keys:
        raise KeyFileError("there is no public key to verify with.", "give the one of this ledger: --key public.key.")
    reader = _Reader(keys, [_unopened(note) for note in checkpoints], [_Certificate(data) for data in certificates])
    for line in lines:
        reader.take(line)
    return reader.verified(checkpoints)


class _Certificate:
    """A certificate that is looked for."""

    def __init__(self, data: bytes):
        self.digest = hashlib.sha256(data).hexdigest()
        self.value = parsed(data)
        try:
            self.size, self.root = self.value["ledger"]["size"], self.value["ledger"]["root"]
            self.signature = bytes.fromhex(self.value["signature"]["value"])
            self.key = self.value["signature"]["key"]
            if type(self.size) is not int or not all(isinstance(each, str) for each in (self.root, self.key)):
                raise TypeError
            unsigned = {name: part for name, part in self.value.items() if name != "signature"}
        except (KeyError, TypeError, ValueError):
            raise LedgerError("this is not a certificate.", "give the JSON file as it was made.") from None
        self.signed = canonical(unsigned)
        self.found: int | None = None


class _Reader:
    """Lines, one after the other, against everything that they must agree with."""

    def __init__(self, keys: Sequence[PublicKey], kept: list[Checkpoint], certificates: list[_Certificate]):
        self.trusted, self.kept, self.certificates = keys, kept, certificates
        self.origin: str | None = None
        self.tree = Tree()
        self.chain: list[PublicKey] = []
        self.unsigned: Entry | None = None
        """The entry that no checkpoint has covered yet."""
        self.last_time = ""
        self.end: Checkpoint | None = None
        self.kinds: collections.Counter[str] = collections.Counter()
        self.roots = {each.size: "" for each in certificates} | {each.size: "" for each in kept} | {0: ""}
        """Roots at sizes that somebody speaks of."""
        self.roots[0] = self.tree.root.hex()

    def take(self, line: bytes) -> None:
        """The next line."""
        try:
            self._take(line.removesuffix(b"\n"))
        except (LedgerFormatError, RequestError) as error:
            raise self._wrong(error.problem) from None

    def _take(self, line: bytes) -> None:
        if self.end is not None:
            raise self._wrong("something follows the end")
        if self.origin is None:
            self._head(line)
        elif line.startswith(b'{"checkpoint":'):
            self._checkpoint(_only(parsed(line), "checkpoint"))
        elif line.startswith(b'{"end":'):
            self._end(_only(parsed(line), "end"))
        else:
            self._entry(line)

    def _head(self, line: bytes) -> None:
        value = parsed(line)
        known = isinstance(value, dict) and value.get("format") == FORMAT
        if not known or value.keys() != {"format", "version", "origin"}:
            raise LedgerError("this is not an exported ledger.", "export it: posterase requests export FILE.")
        if type(value["version"]) is not int or value["version"] != VERSION or not isinstance(value["origin"], str):
            raise LedgerError(f"this ledger has version {value['version']}.", "verify it with a newer posterase.")
        self.origin = value["origin"]

    def _entry(self, line: bytes) -> None:
        if self.unsigned is not None:
            raise self._wrong("no checkpoint follows it", self.tree.size - 1)
        entry = Entry.parse(line)
        if entry.index != self.tree.size:
            raise self._wrong(f"it says that it is entry {entry.index}: entries are missing, added or moved")
        if entry.time < self.last_time or text_of(time_of(entry.time, "time")) != entry.time:
            raise self._wrong("its time is before that of the entry before it")
        if (entry.kind == "ledger.created") != (entry.index == 0):
            raise self._wrong("a ledger begins with `ledger.created`, and has no other")
        if entry.kind == "ledger.created":
            self.chain.append(self._named(entry, "key"))
        elif entry.kind == "key.rotated":
            if self._named(entry, "old") != self.chain[-1]:
                raise self._wrong("it replaces a key that was not in use")
            self.chain.append(self._named(entry, "new"))
        self.unsigned, self.last_time = entry, entry.time
        self.kinds[entry.kind] += 1
        for each in self.certificates:
            if entry.kind == "request.completed" and entry.body.get("certificate") == f"sha256:{each.digest}":
                each.found = entry.index
        self.tree = self.tree.appended(line)
        if self.tree.size in self.roots:
            self.roots[self.tree.size] = self.tree.root.hex()

    def _checkpoint(self, note: Any) -> None:
        if self.unsigned is None:
            raise self._wrong("a checkpoint stands where an entry should")
        found = self._opened(note, self.chain[-2:] if self.unsigned.kind == "key.rotated" else self.chain[-1:])
        if (found.origin, found.size, found.root, found.extra) != (self.origin, self.tree.size, self.tree.root, ()):
            raise self._wrong("it is not what the checkpoint after it was signed for", self.tree.size - 1)
        self.unsigned = None

    def _end(self, note: Any) -> None:
        if self.unsigned is not None:
            raise self._wrong("no checkpoint follows it", self.tree.size - 1)
        if not self.chain:
            raise self._wrong("there is no entry at all")
        found = self._opened(note, self.chain[-1:])
        if found.extra[:1] != (END,) or len(found.extra) != 2:
            raise self._wrong("this is not the end of an export")
        if (found.origin, found.size, found.root) != (self.origin, self.tree.size, self.tree.root):
            raise self._wrong(f"the end was signed for {found.size} entries, and {self.tree.size} are here")
        self.end = found

    def _opened(self, note: Any, keys: Sequence[PublicKey]) -> Checkpoint:
        """A checkpoint that every one of these keys has signed."""
        text, by = opened(note, keys)
        if set(by) != set(keys):
            raise LedgerFormatError("a change of keys is signed by both.", "")
        if note.count("\n— ") != len(keys):
            raise LedgerFormatError("somebody else has signed its checkpoint as well.", "")
        return Checkpoint.parse(text)

    def _named(self, entry: Entry, name: str) -> PublicKey:
        try:
            key = PublicKey.parse(entry.body[name])
        except (KeyError, AttributeError, KeyFileError):
            raise self._wrong("the key that it names cannot be read") from None
        if key.name != self.origin:
            raise self._wrong("it names the key of another ledger")
        return key

    def _wrong(self, problem: str, index: int | None = None) -> LedgerError:
        where = self.tree.size if index is None else index
        return LedgerError(
            f"entry {where} is wrong: {problem.rstrip('.')}.",
            "this is not the ledger that was signed: ask for another export, and for an explanation.",
        )

    def verified(self, notes: Sequence[str]) -> Verified:
        """When all lines were read."""
        advice = "ask for another export, and for an explanation."
        if self.end is None or self.origin is None:
            raise LedgerError(
                f"the file ends after {self.tree.size} entries without its signed end: it was cut.", advice
            )
        if not set(self.trusted) & set(self.chain):
            raise LedgerError(
                f"it is signed by {', '.join(key.id for key in self.chain)}, none of which you trust.",
                "give the public key of this ledger, from whoever runs it: --key public.key.",
            )
        for note, kept in zip(notes, self.kept, strict=True):
            self._agrees(note, kept, advice)
        for each in self.certificates:
            self._holds(each)
        places = tuple(each.found for each in self.certificates if each.found is not None)
        return Verified(
            self.origin, self.tree.size, self.tree.root, self.end.extra[1], tuple(self.chain), dict(self.kinds), places
        )

    def _agrees(self, note: str, kept: Checkpoint, advice: str) -> None:
        opened(note, self.chain)
        if kept.origin != self.origin:
            raise LedgerError(f"the checkpoint is of another ledger, {kept.origin!r}.", "give the one of this ledger.")
        if kept.size > self.tree.size:
            raise LedgerError(
                f"the checkpoint was signed for {kept.size} entries, and {self.tree.size} are here: it was cut.", advice
            )
        if self.roots[kept.size] != kept.root.hex():
            raise LedgerError(f"the first {kept.size} entries are not those of the checkpoint: rewritten.", advice)

    def _holds(self, certificate: _Certificate) -> None:
        key = next((each for each in self.chain if each.id == certificate.key), None)
        if key is None or not key.verifies(certificate.signed, certificate.signature):
            raise LedgerError("the certificate's signature is wrong.", "it was changed, or is of another ledger.")
        if certificate.found is None:
            raise LedgerError("the certificate is not in this ledger.", "ask for a newer export.")
        if self.roots.get(certificate.size) != certificate.root:
            raise LedgerError("the certificate was issued on another ledger than this.", "ask for an explanation.")


def _unopened(note: str) -> Checkpoint:
    """A checkpoint whose signatures will be checked when the keys are known."""
    return Checkpoint.parse(note.rpartition("\n\n")[0] + "\n")


def _only(value: Any, name: str) -> str:
    if not isinstance(value, dict) or list(value) != [name] or not isinstance(value[name], str):
        raise LedgerFormatError(f"a line is no {name}.", "give the file as it was exported.")
    return value[name]
