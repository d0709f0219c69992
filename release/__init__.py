"""What a release is held to, one file a check. `python -m release` runs them and keeps what they found."""
