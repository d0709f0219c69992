"""On what figures were measured: machine, versions, date."""

from __future__ import annotations

import datetime
import platform

import jax

from posterase.version import __version__


def machine() -> str:
    """One line, for the record."""
    device = jax.devices()[0]
    return (
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} · {platform.machine()}, {device.platform} "
        f"({device.device_kind}) · Python {platform.python_version()} · jax {jax.__version__} · posterase {__version__}"
    )
