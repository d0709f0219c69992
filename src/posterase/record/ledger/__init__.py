"""The ledger: canonical JSON, a Merkle tree, signed notes, and the checks that anyone can run."""
