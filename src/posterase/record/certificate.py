"""Certificates: what was done for one request and what was measured, signed; and the same on a page for people.

A certificate says what was done and measured. It never says that all trace is gone: nobody could know that.
"""

from __future__ import annotations

import html
import importlib.resources
import json
from typing import Any

from posterase.errors import LedgerError
from posterase.record.canonical import canonical, parsed
from posterase.record.keyring import Keys
from posterase.record.merkle import Tree

SCHEMA = "posterase-certificate-1"

NOTHING_HELD = "no rows of the subject were found"


def issue(keys: Keys, tree: Tree, now: str, request: Any, answer: dict[str, Any], document: dict[str, Any]) -> bytes:
    """The certificate of a request, signed, as the bytes of its file.

    Parameters
    ----------
    keys
        Whose signature it has.
    tree
        The ledger before the entry of this certificate.
    now
        The time.
    request
        The request's row in the record.
    answer
        How many rows it was about, and their keyed hash.
    document
        What is the same for all requests of a run.
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
        "ledger": {"origin": keys.public.name, "size": tree.size, "root": tree.root.hex()},
        **shared,
    }
    signature = keys.signer.sign(canonical(unsigned)).hex()
    signed = {"algorithm": "Ed25519", "key": keys.public.id, "value": signature}
    return canonical({**unsigned, "signature": signed})


def schema() -> dict[str, Any]:
    """The JSON Schema of certificates."""
    return json.loads(importlib.resources.files(__package__).joinpath("certificate.schema.json").read_text())


def page(data: bytes) -> str:
    """A certificate as one page of HTML, for people; it prints on one sheet."""
    value = parsed(data)
    if not isinstance(value, dict) or value.get("schema") != SCHEMA:
        raise LedgerError("this is not a certificate.", "give the JSON file as it was made.")
    try:
        return _page(value)
    except (KeyError, TypeError, AttributeError, ValueError):
        raise LedgerError("this certificate is not as its schema says.", "give the JSON file as it was made.") from None


def _page(value: dict[str, Any]) -> str:
    request, erasure, run = value["request"], value["erasure"], value["run"]
    facts = [
        ("Request", request["subject_request_id"]),
        ("Under", request["regulation"].upper()),
        ("Received", request["received_at"]),
        ("Due", request["due_at"]),
        ("Answered", value["issued_at"]),
        ("Project", f"{value['project']['name']} (version {value['project']['version']})"),
        ("Rows removed", str(value["rows"]["count"])),
    ]
    if run["requests"] > 1 and value["rows"]["count"]:
        facts.append(("Run together with", f"{run['requests'] - 1} other requests, {run['rows']} rows in all"))
    measured = _measured(erasure) if erasure else []
    parts = [
        _HEAD,
        f"<h1>{_title(value)}</h1>",
        f"<p class=verdict>{html.escape(_sentence(value))}</p>",
        _table("What was asked", facts),
        _table("What was measured", measured) if measured else "",
        _list("What was deleted besides the draws before", value["purged"]),
        _list("What was not erased", value["not_erased"]),
        _list("What this rests on", value["assumptions"]),
        _table(
            "How to verify it",
            [
                ("Ledger", value["ledger"]["origin"]),
                ("Signed by key", value["signature"]["key"]),
                ("Draws now", value["fingerprints"]["draws"]["after"]),
                ("With", "posterase verify LEDGER --key PUBLIC.key --certificate CERTIFICATE.json"),
            ],
        ),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _title(value: dict[str, Any]) -> str:
    return "Certificate of erasure" if value["rows"]["count"] else "Certificate: nothing held"


def _sentence(value: dict[str, Any]) -> str:
    """The whole of it in plain words."""
    name, count = value["project"]["name"], value["rows"]["count"]
    if not count:
        return f"No rows of the person who asked were found in {name}. For this request nothing was changed."
    verdict = value["erasure"]["verdict"]
    how = {
        "measured": "and how far they are from those of a new fit was measured",
        "moved": "by a method whose diagnostics passed; how far they are from those of a new fit was not measured",
        "refitted": "by a new fit without these rows",
        "matched empirically": "and their predictions match those of new fits",
    }[verdict["kind"]]
    rows = f"{count} row{'s' if count != 1 else ''}"
    return (
        f"{rows} of the person who asked {'were' if count != 1 else 'was'} removed from {name}: the model's draws were "
        f"replaced by draws for the data without {'them' if count != 1 else 'it'}, {how}."
    )


def _measured(erasure: dict[str, Any]) -> list[tuple[str, str]]:
    verdict = erasure["verdict"]
    found = [("Accepted", f"{verdict['rung']}: {verdict['reason']}")]
    epsilon = verdict["epsilon"]
    if epsilon is not None and epsilon["value"] is not None:
        about = f"about {epsilon['value']:.4f} ± {max(epsilon['error'] or 0, 1e-4):.4f}"
        found.append(("ε", f"{about}: KL divergence from a new fit, in nats; 0 is the same"))
    failed = [each for each in erasure["rungs"] if not each["passed"]]
    if failed:
        found.append(("Tried before", "; ".join(f"{each['name']}: {', '.join(each['objections'])}" for each in failed)))
    return found


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
body{font:15px/1.45 system-ui,sans-serif;color:#1a1a1a;background:#fff;margin:0}
main{max-width:46rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.6rem;margin:0 0 .6rem}
h2{font-size:1rem;margin:1.1rem 0 .3rem;border-bottom:1px solid #bbb}
.verdict{font-size:1.1rem;margin:0 0 .5rem}
table{border-collapse:collapse;width:100%}
th{text-align:left;font-weight:600;width:11rem;vertical-align:top;padding:.1rem .6rem .1rem 0}
td{padding:.1rem 0;overflow-wrap:anywhere}
ul{margin:.2rem 0;padding-left:1.2rem}
@media print{body{font-size:11px}main{margin:0;max-width:none;padding:0}h2{margin:.7rem 0 .2rem}}
</style></head><body><main>"""
