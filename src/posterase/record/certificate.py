"""Certificates: what was done for one request, signed; and the same on a page for people.

A certificate says what was done and that the policy accepted it. It carries no diagnostics, since they are functions of
the removed rows, and it never says that all trace is gone: nobody could know that. A certificate of an erasure outside
a record answers no request and is in no ledger; its signature is all that stands for it.
"""

from __future__ import annotations

import html
import importlib.resources
import json
from collections.abc import Collection, Sequence
from typing import Any

from posterase.draws.notes import NoteKind
from posterase.draws.origins import ORIGINS
from posterase.errors import LedgerError
from posterase.record.ledger.canonical import canonical, parsed
from posterase.record.ledger.keyring import Keys
from posterase.record.ledger.merkle import Tree
from posterase.record.ledger.signed_note import PublicKey

SCHEMA = "posterase-certificate-1"

NOTHING_HELD = "no rows of the subject were found"

CAUTIONS = (
    "Whoever holds the draws before and the draws after can reconstruct much of what was removed. No method can "
    "prevent that: delete the draws before and all their copies.",
    "Certificates and reports still depend on the removed rows through the methods that were tried, which of them "
    "passed and why others did not; the margin, wide or narrow; how many draws came out, in coarse steps; the budget "
    "spent, rounded up to 0.05; the time; and the number of rows.",
)
"""What every certificate carries, whatever was erased and how."""

KINDS = {
    "measured": "How far the draws are from those of a new fit was measured, and the policy allows as much.",
    "moved": "The method's own checks passed. How far the draws are from those of a new fit was not measured.",
    "refitted": "The chains of the new fit agree with each other.",
    "matched empirically": "Predictions match those of new fits as well as these match each other.",
}
"""What the verdict rests on, by `verdict["kind"]`."""

VERIFIED = {
    True: "yes: the draws do not drift along the new posterior",
    False: "no: the draws were not tested against the new posterior",
}
"""Whether the draws were verified, by `verdict["verified"]`; nothing where that is null."""


def issue(keys: Keys, tree: Tree, now: str, request: Any, answer: dict[str, Any], document: dict[str, Any]) -> bytes:
    """Make the signed certificate of a request, as the bytes of its file.

    Parameters
    ----------
    keys
        The keys to sign with.
    tree
        The ledger before the entry of this certificate.
    now
        The time.
    request
        The request's row in the record.
    answer
        The number of the request's rows, and their keyed hash.
    document
        Fields that all requests of a run share.
    """
    shared = dict(document)
    if not answer["rows"]:
        prints = {name: {**each, "after": each["before"]} for name, each in document["fingerprints"].items()}
        shared |= {"erasure": None, "purged": [], "fingerprints": prints}
    unsigned = {
        "schema": SCHEMA,
        "issued_at": now,
        "outcome": "erased" if answer["rows"] else NOTHING_HELD,
        "request": {
            "subject_request_id": request.id,
            "regulation": request.regulation,
            "received_at": request.received_at,
            "due_at": request.due_at,
            "extended_because": request.extended_because,
        },
        "subject": request.subject,
        "rows": {"count": answer["rows"], "selector": answer["selector"]},
        "cautions": list(CAUTIONS),
        "ledger": {"origin": keys.public.name, "size": tree.size, "root": tree.root.hex()},
        **shared,
    }
    return _signed(keys, unsigned)


def notes_about(erasure: dict[str, Any] | None, kinds: Collection[NoteKind]) -> list[str]:
    """Select the texts of a certified erasure's notes by their kinds."""
    notes = [] if erasure is None else erasure["verdict"]["notes"]
    return [note["text"] for note in notes if note["kind"] in kinds]


def issue_alone(keys: Keys, now: str, rows: dict[str, Any], document: dict[str, Any]) -> bytes:
    """Make the signed certificate of an erasure outside a record, as the bytes of its file.

    Parameters
    ----------
    keys
        The keys to sign with.
    now
        The time.
    rows
        The number of removed rows, and their keyed hash.
    document
        All other fields, except those that only a record has.
    """
    unsigned = {
        "schema": SCHEMA,
        "issued_at": now,
        "outcome": "erased",
        **dict.fromkeys(("request", "subject", "project", "ledger")),
        "rows": rows,
        "cautions": list(CAUTIONS),
        **document,
    }
    return _signed(keys, unsigned)


def _signed(keys: Keys, unsigned: dict[str, Any]) -> bytes:
    signature = keys.signer.sign(canonical(unsigned)).hex()
    signed = {"algorithm": "Ed25519", "key": keys.public.id, "value": signature}
    return canonical({**unsigned, "signature": signed})


def read(data: bytes) -> dict[str, Any]:
    """Parse a certificate. `signed_by` checks its signature."""
    value = parsed(data)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise LedgerError("this is not a certificate.", "give the JSON file as it was made.")
    return value


def signed_by(data: bytes, keys: Sequence[PublicKey]) -> PublicKey:
    """Find which of these keys signed a certificate. Its place in a ledger is not checked."""
    value = read(data)
    unsigned = {name: part for name, part in value.items() if name != "signature"}
    try:
        identity, signature = value["signature"]["key"], bytes.fromhex(value["signature"]["value"])
    except (KeyError, TypeError, ValueError):
        raise LedgerError("the certificate has no signature.", "give the JSON file as it was made.") from None
    named = [key for key in keys if key.id == identity]
    if not named:
        raise LedgerError(
            f"the certificate is signed by key {identity!r}, which you have not given.",
            "give the public key of whoever issued it: --key public.key.",
        )
    for key in named:
        if key.verifies(canonical(unsigned), signature):
            return key
    raise LedgerError("the certificate's signature is wrong.", "it was changed: ask whoever issued it for another.")


def schema() -> dict[str, Any]:
    """The JSON Schema of certificates."""
    return json.loads(importlib.resources.files(__package__).joinpath("certificate.schema.json").read_text())


def page(data: bytes) -> str:
    """Render a certificate as one page of HTML, which prints on one sheet."""
    value = read(data)
    try:
        return _page(value)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise LedgerError("this certificate is not as its schema says.", "give the JSON file as it was made.") from None


def _page(value: dict[str, Any]) -> str:
    erasure, run = value["erasure"], value["run"]
    facts = [*_request(value), ("Rows removed", str(value["rows"]["count"]))]
    if run["requests"] > 1 and value["rows"]["count"]:
        others = run["requests"] - 1
        said = f"{others} other request{'s' if others > 1 else ''}, {run['rows']} rows in all"
        facts.append(("Run together with", said))
    alone = value["ledger"] is None
    parts = [
        _HEAD,
        f"<h1>{_title(value)}</h1>",
        f"<p class=verdict>{html.escape(_sentence(value))}</p>",
        _table("What was asked", facts),
        _table("How it was accepted", _accepted(erasure)) if erasure else "",
        _list("What was deleted besides the draws before", value["purged"]),
        _list("What was not erased", value["not_erased"]),
        _list("What can still be learned", value["cautions"]),
        _list("What this rests on", value["assumptions"]),
        _table(
            "How to verify it",
            [
                ("Ledger", "none: the erasure was made outside a record" if alone else value["ledger"]["origin"]),
                ("Signed by key", value["signature"]["key"]),
                ("Draws now", value["fingerprints"]["draws"]["after"]),
                ("With", _to_verify(value)),
            ],
        ),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _to_verify(value: dict[str, Any]) -> str:
    """The command that verifies a certificate."""
    ledger = "" if value["ledger"] is None else "LEDGER "
    return f"posterase verify {ledger}--key PUBLIC.key --certificate CERTIFICATE.json"


def _request(value: dict[str, Any]) -> list[tuple[str, str]]:
    request, project = value["request"], value["project"]
    if request is None:
        return [("Done", value["issued_at"])]
    return [
        ("Request", request["subject_request_id"]),
        ("Under", request["regulation"].upper()),
        ("Received", request["received_at"]),
        ("Due", request["due_at"]),
        ("Answered", value["issued_at"]),
        ("Project", f"{project['name']} (version {project['version']})"),
    ]


def _title(value: dict[str, Any]) -> str:
    return "Certificate of erasure" if value["rows"]["count"] else "Certificate: nothing held"


def _sentence(value: dict[str, Any]) -> str:
    """Summarise the certificate in plain words."""
    count = value["rows"]["count"]
    if not count:
        name = value["project"]["name"]
        return f"No rows of the person who asked were found in {name}. For this request nothing was changed."
    verdict = value["erasure"]["verdict"]
    were = "were" if count != 1 else "was"
    rows = f"{count} row{'s' if count != 1 else ''}"
    if value["project"] is None:
        removed = f"{rows} {were} removed from the posterior."
    else:
        removed = f"{rows} of the person who asked {were} removed from {value['project']['name']}."
    return f"{removed} {ORIGINS[verdict['draws']]} {KINDS[verdict['kind']]}"


def _accepted(erasure: dict[str, Any]) -> list[tuple[str, str]]:
    verdict = erasure["verdict"]
    margin = f", passed with a {verdict['margin']} margin" if verdict["margin"] else ""
    found = [("Method", f"{verdict['method']}{margin}")]
    failed = [each for each in erasure["methods"] if not each["passed"]]
    if failed:
        found.append(("Tried before", "; ".join(f"{each['name']}: {', '.join(each['objections'])}" for each in failed)))
    returned, budget = erasure["returned"], erasure["policy"]["budget"]
    verified = [] if verdict["verified"] is None else [("Verified", VERIFIED[verdict["verified"]])]
    return [
        *found,
        *verified,
        ("Draws", f"{returned['chains']} chain{'s' if returned['chains'] != 1 else ''} of {returned['draws']:,}"),
        ("Budget spent", f"{erasure['spent']:g} of {budget:g}"),
    ]


def _table(title: str, rows: list[tuple[str, str]]) -> str:
    lines = "".join(
        f"<tr><th scope=row>{html.escape(name)}</th><td>{html.escape(text)}</td></tr>" for name, text in rows
    )
    return f"<h2>{html.escape(title)}</h2><table>{lines}</table>"


def _list(title: str, items: list[str]) -> str:
    if not items:
        return ""
    shown = [f"<li>{html.escape(each)}</li>" for each in items[:_MOST]]
    if len(items) > _MOST:
        shown.append(f"<li>and {len(items) - _MOST} more, in the JSON file</li>")
    return f"<h2>{html.escape(title)}</h2><ul>{''.join(shown)}</ul>"


_MOST = 6
"""Lines of a list, so that everything is on one page."""

_HEAD = """<!doctype html>
<html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width,initial-scale=1">
<title>Certificate of erasure</title>
<style>
@page{size:A4;margin:14mm}
:root{color-scheme:light dark;--ink:#1a1a1a;--paper:#fff;--line:#bbb}
@media (prefers-color-scheme:dark){:root{--ink:#eee;--paper:#161616;--line:#555}}
@media print{:root{--ink:#1a1a1a;--paper:#fff;--line:#bbb}}
body{font:15px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);margin:0}
a{color:inherit}
main{max-width:46rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0 0 .6rem}
h2{font-size:1rem;margin:1.1rem 0 .3rem;border-bottom:1px solid var(--line)}
.verdict{font-size:1.1rem;margin:0 0 .5rem}
table{border-collapse:collapse;width:100%}
th{text-align:left;font-weight:600;width:11rem;vertical-align:top;padding:.1rem .6rem .1rem 0}
td{padding:.1rem 0;overflow-wrap:anywhere}
ul{margin:.2rem 0;padding-left:1.2rem}
@media print{body{font-size:11px}main{margin:0;max-width:none;padding:0}h2{margin:.7rem 0 .2rem}}
</style></head><body><main>"""
