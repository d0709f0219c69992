"""Signed notes and checkpoints: a few lines of text, and under them who signed, as transparency logs write them.

The format is that of the C2SP specifications `signed-note` and `tlog-checkpoint`, so that the tools of other logs read
ours. A checkpoint says: the log of this name has so many entries, and this root.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import re
from collections.abc import Iterable

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from posterase.errors import KeyFileError, LedgerFormatError

ED25519 = b"\x01"
"""The kind of key, in names of keys."""

NAME = re.compile(r"[^\s+]+")
"""A log's name: no blanks, no plus sign."""

SIGNED_BY = "— "


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """A key that checks signatures, with the name of the log that it belongs to."""

    name: str
    raw: bytes

    @property
    def hint(self) -> bytes:
        """Four bytes that tell keys of one name apart."""
        return hashlib.sha256(self.name.encode() + b"\n" + ED25519 + self.raw).digest()[:4]

    @property
    def id(self) -> str:
        """The same, to read."""
        return self.hint.hex()

    def __str__(self) -> str:
        return f"{self.name}+{self.id}+{base64.b64encode(ED25519 + self.raw).decode()}"

    @classmethod
    def parse(cls, text: str) -> PublicKey:
        """From one line, as `str` writes it."""
        wrong = KeyFileError(
            "this is not a public key of a ledger.", "give the line that `posterase keys show` prints."
        )
        try:
            name, hint, encoded = text.strip().split("+", 2)
        except ValueError:
            raise wrong from None
        kind_and_key = _decoded(encoded)
        key = cls(name, kind_and_key[1:])
        if kind_and_key[:1] != ED25519 or len(key.raw) != 32 or key.id != hint or not NAME.fullmatch(name):
            raise wrong
        return key

    def verifies(self, data: bytes, signature: bytes) -> bool:
        """Whether this key made the signature."""
        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, data)
        except InvalidSignature:
            return False
        return True


@dataclasses.dataclass(frozen=True)
class Signer:
    """A key that signs."""

    name: str
    private: Ed25519PrivateKey = dataclasses.field(repr=False)

    @property
    def public(self) -> PublicKey:
        """The key that checks what this one signs."""
        return PublicKey(self.name, self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw))

    def sign(self, data: bytes) -> bytes:
        """A signature."""
        return self.private.sign(data)


def signed(text: str, *signers: Signer) -> str:
    """A note: the text, a blank line, and one line a signature."""
    assert text.endswith("\n"), "a note's text ends with a newline"
    lines = [
        f"{SIGNED_BY}{each.name} {base64.b64encode(each.public.hint + each.sign(text.encode())).decode()}\n"
        for each in signers
    ]
    return f"{text}\n{''.join(lines)}"


def opened(note: str, keys: Iterable[PublicKey]) -> tuple[str, list[PublicKey]]:
    """The text of a note, and which of these keys signed it: one at least, and none of them wrongly."""
    text, blank, signatures = note.rpartition("\n\n")
    text += "\n"
    if not blank or not signatures.endswith("\n"):
        raise LedgerFormatError("this is not a signed note.", "give the checkpoint as it was written.")
    by = []
    known = {(key.name, key.hint): key for key in keys}
    for line in signatures.splitlines():
        mark, name, encoded = line[: len(SIGNED_BY)], *line[len(SIGNED_BY) :].partition(" ")[::2]
        data = _decoded(encoded)
        if mark != SIGNED_BY or len(data) < 5:
            raise LedgerFormatError(
                "a signature under a note cannot be read.", "give the checkpoint as it was written."
            )
        key = known.get((name, data[:4]))
        if key is None:
            continue
        if not key.verifies(text.encode(), data[4:]):
            raise LedgerFormatError(
                f"the signature by key {key.id} is wrong.", "this note was changed, or never signed."
            )
        by.append(key)
    if not by:
        raise LedgerFormatError(
            "no key that you trust has signed this note.", "give the public key of this ledger: --key."
        )
    return text, by


@dataclasses.dataclass(frozen=True)
class Checkpoint:
    """So many entries, and their root."""

    origin: str
    size: int
    root: bytes
    extra: tuple[str, ...] = ()
    """Lines that say more; the end of an export has its time."""

    def text(self) -> str:
        """To sign."""
        return "\n".join([self.origin, str(self.size), base64.b64encode(self.root).decode(), *self.extra]) + "\n"

    @classmethod
    def parse(cls, text: str) -> Checkpoint:
        """From the text of a note that was opened."""
        try:
            origin, size, root, *extra = text.splitlines()
            found = cls(origin, int(size), _decoded(root), tuple(extra))
        except ValueError:
            raise LedgerFormatError(
                "this note is not a checkpoint.", "give the checkpoint as it was written."
            ) from None
        if found.text() != text:
            raise LedgerFormatError(
                "this checkpoint is not as one is written.", "give the checkpoint as it was written."
            )
        return found


def _decoded(text: str) -> bytes:
    """Base 64 as it is written, one text for the same bytes; nothing where it is none."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return b""
    return data if base64.b64encode(data).decode() == text else b""
