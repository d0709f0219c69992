"""The record: requests with deadlines, a ledger that nobody can quietly change, certificates that anyone can verify.

    record = Record.open("sqlite:///record.db", load_keys(Path("keys")))
    record.add(project="radon", subject="person-17", regulation="gdpr")
    record.run(project, build_and_erase)

It knows requests, files and databases, and nothing of statistics: what erases is a function that it is handed.
"""
