"""The record: requests with deadlines, a ledger that nobody can quietly change, certificates that anyone can verify.

    record = open_record("sqlite:///record.db", Path("keys"))
    record.add(project="radon", subject="person-17", regulation="gdpr")
    run(record, "radon", open_project)

It knows requests, files and databases, and nothing of statistics: what erases is a function that it is handed.
"""

from posterase.runtime.optional import need

need("sqlalchemy", "the record", "record")
need("cryptography", "the record", "record")

from posterase.projects.spec import Project as Project  # noqa: E402
from posterase.record.ledger.keyring import Keys as Keys  # noqa: E402 (after the check that they can be imported)
from posterase.record.ledger.keyring import load_keys as load_keys  # noqa: E402
from posterase.record.ledger.keyring import load_public_key as load_public_key  # noqa: E402
from posterase.record.ledger.keyring import new_keys as new_keys  # noqa: E402
from posterase.record.ledger.ledger import Entry as Entry  # noqa: E402
from posterase.record.ledger.ledger import Verified as Verified  # noqa: E402
from posterase.record.ledger.ledger import verify as verify  # noqa: E402
from posterase.record.opening import open_record as open_record  # noqa: E402
from posterase.record.record import Record as Record  # noqa: E402
from posterase.record.requests import Added as Added  # noqa: E402
from posterase.record.requests import Request as Request  # noqa: E402
from posterase.record.runs import Ran as Ran  # noqa: E402
from posterase.record.runs import recover as recover  # noqa: E402
from posterase.record.runs import run as run  # noqa: E402
