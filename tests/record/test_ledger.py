"""Canonical JSON, the Merkle tree, signed notes, and the ledger: whatever is changed in it is found."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import struct

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st

from posterase.errors import KeyFileError, LedgerError, LedgerFormatError
from posterase.record.ledger.canonical import canonical, parsed
from posterase.record.ledger.ledger import Entry, checkpoint, exported, verify
from posterase.record.ledger.merkle import Tree, leaf_hash, node_hash
from posterase.record.ledger.signed_note import Checkpoint, PublicKey, Signer, opened, signed

# --- canonical JSON


@pytest.mark.parametrize(
    ("bits", "text"),
    [  # RFC 8785, Appendix B
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_numbers_are_those_of_the_standard(bits, text):
    value = struct.unpack(">d", bytes.fromhex(bits))[0]
    assert canonical(value) == text.encode()


def test_names_are_sorted_as_the_standard_sorts_them():
    """RFC 8785, Section 3.2.3: by UTF-16 units, not by code points."""
    names = ["\u20ac", "\r", "\ufb33", "1", "\U0001f600", "\u0080", "\u00f6"]
    found = canonical(dict.fromkeys(names, 0)).decode()
    order = [
        found.index(json.dumps(name, ensure_ascii=False))
        for name in ["\r", "1", "\u0080", "\u00f6", "\u20ac", "\U0001f600", "\ufb33"]
    ]
    assert order == sorted(order)


def test_texts_are_written_as_the_standard_writes_them():
    assert canonical('€$\u000f\nA\'B"\\\\"/') == '"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"'.encode()


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), inner, max_size=4)
    ),
    max_leaves=12,
)


@settings(max_examples=500, deadline=None)
@given(JSON)
def test_what_is_written_reads_back_and_is_written_the_same_again(value):
    data = canonical(value)
    assert parsed(data) == value
    assert canonical(parsed(data)) == data


@settings(max_examples=500, deadline=None)
@given(st.floats(allow_nan=False, allow_infinity=False))
def test_numbers_read_back_exactly(value):
    assert float(canonical(value)) == value


@pytest.mark.parametrize("value", [math.nan, math.inf, 2**53, {1: 2}, {"a": object()}, "\ud800", {"\ud800": 1}, b"a"])
def test_what_json_has_no_bytes_for_is_refused(value):
    with pytest.raises(LedgerFormatError):
        canonical(value)


@pytest.mark.parametrize(
    "data", [b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1,"a":1}', b"1.0", b"NaN", b"\xff", b'"\\u0041"', b"", b"[" * 9999]
)
def test_bytes_that_are_not_canonical_are_refused(data):
    with pytest.raises(LedgerFormatError):
        parsed(data)


# --- the tree


def reference_root(leaves):
    """RFC 6962, Section 2.1, word for word."""
    if not leaves:
        return hashlib.sha256().digest()
    if len(leaves) == 1:
        return leaf_hash(leaves[0])
    split = 1
    while split * 2 < len(leaves):
        split *= 2
    return node_hash(reference_root(leaves[:split]), reference_root(leaves[split:]))


def test_roots_are_those_of_the_definition():
    leaves, tree = [], Tree()
    assert tree.root == reference_root([])
    for i in range(70):
        leaves.append(b"leaf %d" % i)
        tree = tree.appended(leaves[-1])
        assert tree.root == reference_root(leaves)
        assert Tree.from_bytes(tree.size, tree.to_bytes()) == tree


def test_roots_of_the_known_tree():
    """The eight leaves that implementations of RFC 6962 test with."""
    leaves = ["", "00", "10", "2021", "3031", "40414243", "5051525354555657", "606162636465666768696a6b6c6d6e6f"]
    tree = Tree()
    for leaf in leaves:
        tree = tree.appended(bytes.fromhex(leaf))
    assert tree.root.hex() == "5dc9da79a70659a9ad559cb701ded9a2ab9d823aad2f4960cfe370eff4604328"


# --- notes


def test_a_note_of_another_program_opens():
    """The example of golang.org/x/mod/sumdb/note."""
    key = PublicKey.parse("PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")
    text = "If you think cryptography is the answer to your problem,\nthen you don't know what your problem is.\n"
    note = (
        f"{text}\n"
        "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
    )
    assert opened(note, [key]) == (text, [key])
    with pytest.raises(LedgerFormatError, match="wrong"):
        opened(note.replace("answer", "Answer"), [key])


def signer(seed=0, name="example.org/erasures"):
    return Signer(name, Ed25519PrivateKey.from_private_bytes(bytes([seed]) * 32))


def test_only_known_keys_open_a_note():
    note = signed("hello\n", signer(1), signer(2))
    assert opened(note, [signer(1).public, signer(3).public]) == ("hello\n", [signer(1).public])
    with pytest.raises(LedgerFormatError, match="trust"):
        opened(note, [signer(3).public])


@pytest.mark.parametrize("text", ["", "a+b", "a+00000000+AA==", "a b+c74f20a3+AQ==", str(signer().public)[:-4]])
def test_what_is_no_public_key_is_refused(text):
    with pytest.raises(KeyFileError):
        PublicKey.parse(text)


def test_public_keys_and_checkpoints_read_back():
    assert PublicKey.parse(str(signer().public)) == signer().public
    found = Checkpoint("a", 3, b"\1" * 32)
    assert Checkpoint.parse(found.text()) == found
    with pytest.raises(LedgerFormatError):
        Checkpoint.parse("a\n03\n" + base64.b64encode(b"\1" * 32).decode() + "\n")


# --- the ledger


def ledger(size=12, rotations=(5,), certificate=None, origin="example.org/erasures"):
    """The lines of a ledger, with changes of keys at some entries."""
    keys = [signer(seed) for seed in range(1, len(rotations) + 2)]
    tree, pairs, current = Tree(), [], keys[0]
    for i in range(size):
        also = ()
        kind, body = "request.received", {"n": i}
        if i == 0:
            kind, body = "ledger.created", {"key": str(current.public)}
        elif i in rotations:
            old, current = current, keys[keys.index(current) + 1]
            kind, body, also = "key.rotated", {"old": str(old.public), "new": str(current.public)}, (old,)
        elif certificate is not None and i == size - 1:
            kind, body = "request.completed", {"certificate": f"sha256:{hashlib.sha256(certificate).hexdigest()}"}
        entry = Entry(i, f"2026-01-01T00:00:{i:02d}Z", kind, "somebody", body=body)
        tree = tree.appended(entry.to_bytes())
        pairs.append((entry.to_bytes(), checkpoint(origin, tree, current, *also)))
    return list(exported(origin, pairs, current, "2026-01-02T00:00:00Z")), keys


LINES, KEYS = ledger()
FIRST, LAST = KEYS[0].public, KEYS[-1].public


@pytest.mark.parametrize("key", [FIRST, LAST])
def test_a_whole_ledger_is_verified_with_any_of_its_keys(key):
    found = verify(LINES, [key])
    assert (found.size, found.exported_at, found.keys) == (12, "2026-01-02T00:00:00Z", (FIRST, LAST))
    assert found.kinds["request.received"] == 10


def test_keys_that_did_not_sign_it_are_not_enough():
    with pytest.raises(LedgerError, match="none of which you trust"):
        verify(LINES, [signer(9).public])
    with pytest.raises(KeyFileError):
        verify(LINES, [])


SMALL, _ = ledger(5, (3,))
"""Enough of one to change in every way."""


@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_any_change_of_any_byte_is_found(data):
    """In entries, checkpoints, header and end alike; and of an entry, which one it was."""
    number = data.draw(st.integers(0, len(SMALL) - 1))
    line = bytearray(SMALL[number])
    at = data.draw(st.integers(0, len(line) - 2))  # but for the newline, which is not part of it
    line[at] ^= data.draw(st.integers(1, 255))
    changed = b"".join([*SMALL[:number], bytes(line), *SMALL[number + 1 :]])
    with pytest.raises(LedgerError) as error:
        verify(changed.splitlines(keepends=True), [FIRST, LAST])
    if number in range(1, len(SMALL) - 1, 2) and b"\n" not in line[:-1] and b"\r" not in line[:-1]:
        assert f"entry {number // 2} " in str(error.value)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_removed_inserted_moved_and_cut_lines_are_found(data):
    lines = list(SMALL)
    number = data.draw(st.integers(0, len(lines) - 1))
    other = data.draw(st.integers(0, len(lines) - 1).filter(lambda each: each != number))
    how = data.draw(st.sampled_from(["remove", "remove both", "insert", "swap", "cut", "bytes cut"]))
    if how == "remove":
        del lines[number]
    elif how == "remove both":  # an entry with its checkpoint
        at = number // 2 * 2 + 1
        del lines[at : at + 2]
    elif how == "insert":
        lines.insert(number, lines[other])
    elif how == "swap":
        lines[number], lines[other] = lines[other], lines[number]
    elif how == "cut":
        lines = lines[:number]
    else:
        lines = b"".join(lines)[: -(number + 2)].splitlines(keepends=True)
    with pytest.raises(LedgerError):
        verify(lines, [FIRST, LAST])


@pytest.mark.parametrize("index", range(12))
def test_a_rewritten_entry_with_everything_after_it_hashed_anew_is_found(index):
    """Whoever edits the database and has no key: all hashes are right, and the signature is not."""
    lines = list(LINES)
    entry = json.loads(lines[1 + 2 * index])
    entry["actor"] = "nobody"
    lines[1 + 2 * index] = canonical(entry) + b"\n"
    with pytest.raises(LedgerError, match=f"entry {index} "):
        verify(lines, [FIRST, LAST])


def test_a_fork_signed_by_a_key_that_was_replaced_is_found():
    """The old key goes on signing after it was replaced."""
    whole, _ = ledger(8, ())
    forked = [*LINES[:11], *whole[11:]]  # entry 5 is not the change of keys
    with pytest.raises(LedgerError):
        verify(forked, [LAST])
    assert verify(whole, [FIRST]).size == 8  # a log of its own to whoever knows the old key only …
    kept = json.loads(LINES[-2])["checkpoint"]
    with pytest.raises(LedgerError, match=r"cut|trust"):  # … but not to whoever kept a checkpoint
        verify(whole, [FIRST], checkpoints=[kept])


def test_a_change_of_keys_needs_both():
    lines, keys = ledger(6, (5,))
    tree = Tree()
    for line in lines[1:-1:2]:
        tree = tree.appended(line[:-1])
    lines[-2] = canonical({"checkpoint": checkpoint("example.org/erasures", tree, keys[1])}) + b"\n"
    with pytest.raises(LedgerError, match="both"):
        verify(lines, [keys[0].public, keys[1].public])


def test_an_earlier_export_is_found_by_a_checkpoint_kept_from_later():
    shorter, _ = ledger(9)
    assert verify(shorter, [FIRST]).size == 9
    kept = json.loads(LINES[-2])["checkpoint"]
    assert verify(LINES, [FIRST], checkpoints=[kept]).size == 12
    with pytest.raises(LedgerError, match="it was cut"):
        verify(shorter, [FIRST], checkpoints=[kept])


def test_a_rewritten_ledger_is_found_by_a_checkpoint():
    kept = json.loads(LINES[8])["checkpoint"]
    tree, pairs = Tree(), []
    for i in range(12):  # the same key, another history
        body = {"key": str(KEYS[0].public)} if i == 0 else {"n": -i}
        entry = Entry(i, "2026-01-01T00:00:00Z", "request.received" if i else "ledger.created", "somebody", body=body)
        tree = tree.appended(entry.to_bytes())
        pairs.append((entry.to_bytes(), checkpoint("example.org/erasures", tree, KEYS[0])))
    other = list(exported("example.org/erasures", pairs, KEYS[0], "2026-01-02T00:00:00Z"))
    assert verify(other, [FIRST]).size == 12
    with pytest.raises(LedgerError, match="rewritten"):
        verify(other, [FIRST], checkpoints=[kept])


def certificate(size, root, key=KEYS[-1], **more):
    unsigned = {"ledger": {"origin": "example.org/erasures", "size": size, "root": root}, **more}
    signature = {"algorithm": "Ed25519", "key": key.public.id, "value": key.sign(canonical(unsigned)).hex()}
    return canonical({**unsigned, "signature": signature})


def root_at(lines, size):
    tree = Tree()
    for line in lines[1 : 1 + 2 * size : 2]:
        tree = tree.appended(line[:-1])
    return tree.root.hex()


def test_certificates_are_found_in_the_ledger_and_forgeries_are_not():
    made = certificate(11, root_at(LINES, 11))
    lines, _ = ledger(certificate=made)
    assert verify(lines, [LAST], certificates=[made]).certificates == (11,)
    with pytest.raises(LedgerError, match="not in this ledger"):
        verify(LINES, [LAST], certificates=[made])
    for changed, says in [
        (certificate(11, "00" * 32), "not in this ledger"),
        (certificate(11, root_at(LINES, 11), key=signer(9)), "signature"),
        (made.replace(b'"size":11', b'"size":10'), "signature"),
        (made[:-1], "not JSON"),
        (b"{}", "not a certificate"),
    ]:
        with pytest.raises(LedgerError, match=says):
            verify(lines, [LAST], certificates=[changed])
    moved = certificate(10, root_at(LINES, 11))
    lines, _ = ledger(certificate=moved)
    with pytest.raises(LedgerError, match="another ledger"):
        verify(lines, [LAST], certificates=[moved])


def test_odd_lines_end_in_an_error_of_ours():
    deep = b'{"a":' * 600 + b"1" + b"}" * 600
    header = LINES[0]
    for lines in (
        [header, deep],
        [header.replace(b'"version":1', b'"version":true')],
        [*LINES[:3], b"\n", *LINES[3:]],
        [line.replace(b"\n", b"\r\n") for line in LINES],
        [header, LINES[1], LINES[2].replace(b'\\n"}', b'\\n\xe2\x80\x94 x AAAAAAAA\\n"}'), *LINES[3:]],
        [header, *LINES],
    ):
        with pytest.raises(LedgerError):
            verify(lines, [FIRST, LAST])
    for wrong in ({"size": [1], "root": ""}, {"size": 1, "root": None}):
        made = certificate(1, "")
        value = json.loads(made)
        value["ledger"] |= wrong
        with pytest.raises(LedgerError, match="not a certificate"):
            verify(LINES, [FIRST], certificates=[canonical(value)])


def test_what_is_no_ledger_is_told_so():
    for lines in ([b"hello\n"], [b"{}\n"], [canonical({"format": "posterase-ledger", "version": 2, "origin": "a"})]):
        with pytest.raises(LedgerError):
            verify(lines, [FIRST])
    with pytest.raises(LedgerError, match="cut"):
        verify([], [FIRST])
