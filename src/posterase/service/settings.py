"""What the service allows: sizes, rates, how long a sign-in lasts."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Settings:
    """Limits, for whoever has a token and whoever has none."""

    largest: int = 64 * 1024
    """Bytes of a request's body."""
    patience_s: float = 10.0
    """How long a body may take to arrive."""
    rate: float = 50.0
    """Requests a second of one token, over time."""
    burst: int = 200
    """Requests of one token at once."""
    strangers_rate: float = 1.0
    """The same for an address that shows no valid token: failures a second, over time."""
    strangers_burst: int = 30
    session_s: int = 8 * 3600
    """How long a sign-in to the dashboard lasts."""
    https: bool = False
    """Whether browsers reach it by HTTPS: then cookies travel by nothing else."""
    page: int = 50
    """Requests on one page of the dashboard."""
