"""Keys: one pair that signs the ledger, and a secret that turns subjects into pseudonyms.

Both are files that only their owner can read, in one folder; or environment variables with what the files would hold.

- `signing.key`: an Ed25519 key. Whoever has it can write this ledger. `POSTERASE_SIGNING_KEY`.
- `pseudonyms.key`: 32 bytes. HMACs of subjects and rows are made with it, and subjects of open requests are encrypted
  with it. Whoever has it can test whether a person is in the record. `POSTERASE_PSEUDONYMS_KEY`.
- `public.key`: one line to hand to whoever verifies.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import hmac
import os
import secrets
import stat
from contextlib import suppress
from pathlib import Path

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from posterase.errors import KeyFileError
from posterase.record.ledger.signed_note import NAME, PublicKey, Signer
from posterase.runtime.files import make_folder

SIGNING, PSEUDONYMS, PUBLIC = "signing.key", "pseudonyms.key", "public.key"
STAGED = "signing.key.next"
FROM_ENVIRONMENT = {SIGNING: "POSTERASE_SIGNING_KEY", PSEUDONYMS: "POSTERASE_PSEUDONYMS_KEY"}
NONCE = 12


@dataclasses.dataclass(frozen=True)
class Keys:
    """What a record is kept with."""

    signer: Signer
    secret: bytes = dataclasses.field(repr=False)

    @property
    def public(self) -> PublicKey:
        """For whoever verifies."""
        return self.signer.public

    def pseudonym(self, kind: str, value: bytes) -> str:
        """A keyed hash: the same for the same value, and nothing to anyone without the key."""
        inner = hmac.new(self.secret, kind.encode() + b"\0" + value, hashlib.sha256)
        return f"hmac-sha256:{inner.hexdigest()}"

    @property
    def check(self) -> str:
        """The same for the same secret: kept with a record, so that another secret is noticed."""
        return self.pseudonym("check", b"")

    def sealed(self, value: str, about: str) -> bytes:
        """Encrypted, and bound to what it is about."""
        nonce = secrets.token_bytes(NONCE)
        return nonce + self._cipher.encrypt(nonce, value.encode(), about.encode())

    def unsealed(self, data: bytes, about: str) -> str:
        """What `sealed` encrypted."""
        try:
            return self._cipher.decrypt(data[:NONCE], data[NONCE:], about.encode()).decode()
        except InvalidTag:
            raise KeyFileError(
                f"what is kept of {about} cannot be decrypted.", "use the pseudonyms.key that it was sealed with."
            ) from None

    @property
    def _cipher(self) -> ChaCha20Poly1305:
        return ChaCha20Poly1305(hmac.new(self.secret, b"encrypts subjects", hashlib.sha256).digest())


def new_keys(folder: Path, name: str) -> Keys:
    """Make a folder of keys for the ledger of this name; what is there already is not overwritten."""
    if not NAME.fullmatch(name):
        raise KeyFileError(f"{name!r} cannot name a ledger.", "use a name without blanks and plus signs.")
    keys = Keys(Signer(name, Ed25519PrivateKey.generate()), secrets.token_bytes(32))
    taken = [each for each in (SIGNING, PSEUDONYMS, PUBLIC) if (folder / each).exists()]
    if taken:
        raise KeyFileError(f"there is a {taken[0]} in {str(folder)!r} already.", "choose another folder, or rotate it.")
    if not folder.exists():
        make_folder(folder).chmod(0o700)
    _write_secret(folder / PSEUDONYMS, base64.b64encode(keys.secret).decode())
    _write_signer(folder / SIGNING, keys.signer)
    (folder / PUBLIC).write_text(f"{keys.public}\n")
    return keys


def load_keys(folder: Path) -> Keys:
    """The keys of a folder, or of the environment."""
    secret = _decoded(_read_secret(folder, PSEUDONYMS), PSEUDONYMS)
    return Keys(_signer(_read_secret(folder, SIGNING)), secret)


def load_public_key(path: Path) -> PublicKey:
    """A public key from its file."""
    try:
        return PublicKey.parse(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{str(path)!r} cannot be read: {_why(error)}.", "give the file public.key.") from None


def stage_signer(folder: Path, signer: Signer) -> None:
    """Write a new signing key beside the one in use, before the ledger hears of it."""
    if os.environ.get(FROM_ENVIRONMENT[SIGNING]):
        raise KeyFileError(
            f"the signing key comes from {FROM_ENVIRONMENT[SIGNING]}.", "keep it in a file to change it."
        )
    _write_signer(folder / STAGED, signer)


def staged_keys(folder: Path, keys: Keys) -> Keys | None:
    """Keys with the signing key that was staged, where there is one."""
    try:
        return dataclasses.replace(keys, signer=_signer(_read_secret(folder, STAGED)))
    except KeyFileError:
        if (folder / STAGED).exists():
            raise
        return None


def promote_staged(folder: Path, keys: Keys) -> None:
    """The staged key takes the place of the one in use, unless another process was quicker to put these keys there."""
    staged = staged_keys(folder, keys)
    if staged is None or staged.public != keys.public:
        return
    with suppress(FileNotFoundError):
        (folder / STAGED).replace(folder / SIGNING)
    (folder / PUBLIC).write_text(f"{keys.public}\n")


def rotated(keys: Keys) -> Keys:
    """The same with another pair of signing keys."""
    return dataclasses.replace(keys, signer=Signer(keys.signer.name, Ed25519PrivateKey.generate()))


def _write_secret(path: Path, text: str) -> None:
    """Whole or not at all, and readable by its owner only from its first byte on."""
    beside = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise KeyFileError(f"{str(path)!r} cannot be written: {_why(error)}.", "choose another folder.") from None


def _read_secret(folder: Path, name: str) -> str:
    variable = FROM_ENVIRONMENT.get(name, "")
    given = os.environ.get(variable)
    if given:
        return given.strip()
    path = folder / name
    advice = f"make keys: posterase keys new NAME --keys {folder}; or set {variable}."
    try:
        mode = path.stat().st_mode
        if stat.S_IMODE(mode) & 0o077:
            raise KeyFileError(
                f"{str(path)!r} can be read by others (mode {stat.S_IMODE(mode):o}).",
                f"take it from them: chmod 600 {path}; and make another key if somebody may have read it.",
            )
        return path.read_text().strip()
    except FileNotFoundError:
        raise KeyFileError(f"there is no key {str(path)!r}.", advice) from None
    except (OSError, UnicodeDecodeError) as error:
        raise KeyFileError(f"{str(path)!r} cannot be read: {_why(error)}.", advice) from None


def _signer(text: str) -> Signer:
    name, _, encoded = text.partition(" ")
    return Signer(name, Ed25519PrivateKey.from_private_bytes(_decoded(encoded, SIGNING)))


def _write_signer(path: Path, signer: Signer) -> None:
    raw = signer.private.private_bytes(Encoding.Raw, PrivateFormat.Raw, NoEncryption())
    _write_secret(path, f"{signer.name} {base64.b64encode(raw).decode()}")


def _decoded(text: str, name: str) -> bytes:
    try:
        found = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        found = b""
    if len(found) != 32:
        raise KeyFileError(f"{name} does not hold a key.", "restore it from where you keep copies of keys.")
    return found


def _why(error: Exception) -> str:
    return getattr(error, "strerror", None) or type(error).__name__
