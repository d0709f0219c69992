"""Exit statuses, for scripts: what a command's end means."""

from __future__ import annotations

ERROR = 1
"""Something was wrong: the command, a file, a model. Nothing was half done."""
REFUSED = 2
"""The policy did not accept an erasure."""
BUSY = 3
"""Another process is running the project: try again later."""
STOPPED = 130
"""Ctrl-C."""
