"""The certificate of an erasure outside a record: signed, and in no ledger."""

from __future__ import annotations

import datetime as dt
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from posterase.draws.notes import NOT_ERASED, RESTS_ON
from posterase.ladder.result import Result
from posterase.projects.builders import Fit
from posterase.projects.loading import assumptions, data_digest, hardware, versions
from posterase.record.certificate import issue_alone, notes_about
from posterase.record.deadlines import now, text_of
from posterase.record.ledger.canonical import canonical
from posterase.record.ledger.keyring import Keys
from posterase.record.owned_files import digest_of
from posterase.record.redaction import certified
from posterase.record.runs import NOT_REACHED

OLD_DRAWS = "the draws before, which are still in their file"


def attest(
    keys: Keys,
    fit: Fit,
    result: Result,
    *,
    before: Path,
    after: Path,
    stays: bool,
    started: dt.datetime,
    named: Sequence[str] = (),
) -> bytes:
    """Make the certificate, as the bytes of its file.

    Parameters
    ----------
    keys
        The keys to sign with.
    fit
        The model and draws before the erasure.
    result
        What `pe.erase` returned.
    before, after
        The files of draws.
    stays
        Whether the file of the draws before still exists.
    started
        When the erasure began.
    named
        Values that the rows were named by: a text that mentions one is withheld.
    """
    subjects = list(named)
    present, left = np.asarray(fit.model.present), np.asarray(result.model.present)
    rows = np.flatnonzero(present & ~left).tolist()
    erasure = certified(result.to_dict(), subjects)
    run = {"id": None, "requests": 0, "rows": len(rows), "started_at": text_of(started), "actor": None}
    document: dict[str, Any] = {
        "run": run,
        "erasure": erasure,
        "fingerprints": {
            "data": {
                "before": keys.pseudonym("data", data_digest(fit.model, fit.draws)),
                "after": keys.pseudonym("data", data_digest(result.model, result.draws)),
            },
            "draws": {"before": keys.pseudonym("draws", _digest(before).encode()), "after": _digest(after)},
            "code": {"before": fit.code, "after": fit.code},
        },
        "versions": versions(),
        "hardware": hardware(),
        "assumptions": [*assumptions("named rows"), *notes_about(erasure, RESTS_ON)],
        "purged": [],
        "not_erased": [*([OLD_DRAWS] if stays else []), *notes_about(erasure, NOT_ERASED), *NOT_REACHED],
    }
    selector = {"count": len(rows), "selector": keys.pseudonym("rows", canonical(rows))}
    return issue_alone(keys, text_of(now()), selector, document)


def _digest(path: Path) -> str:
    """SHA-256 of a file; of a folder, over the names and digests of its files."""
    if not path.is_dir():
        return digest_of(path)
    files = sorted(each for each in path.rglob("*") if each.is_file())
    listed = [f"{each.relative_to(path).as_posix()} {digest_of(each)}\n" for each in files]
    return f"sha256:{hashlib.sha256(''.join(listed).encode()).hexdigest()}"
