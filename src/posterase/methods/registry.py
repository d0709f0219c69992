"""Methods by name: those of posterase, and those that other packages register.

A package registers a method in its pyproject.toml,

    [project.entry-points."posterase.methods"]
    match-moments = "my_package:MatchMoments"

and `posterase erase --method match-moments`, a job's `methods = ["match-moments"]` and
`pe.erase(methods=["match-moments"])` find it. Its class must be callable without arguments.
"""

from __future__ import annotations

from posterase.errors import InvalidOptionError
from posterase.methods.base import Method
from posterase.runtime.registry import Registry

GROUP = "posterase.methods"

METHODS = Registry(
    GROUP,
    {
        "reweight": "posterase.methods.reweight:Reweight",
        "transport": "posterase.methods.transport:Transport",
        "rejuvenate": "posterase.methods.rejuvenate:Rejuvenate",
        "influence-shift": "posterase.methods.influence_shift:InfluenceShift",
        "refit": "posterase.methods.refit:Refit",
    },
)


def method_names() -> list[str]:
    """Return the names of all registered methods."""
    return METHODS.names()


def find_method(name: str) -> Method:
    """Return a registered method with its default settings.

    Examples
    --------
    >>> type(find_method("transport")).__name__
    'Transport'
    """
    made = METHODS.load(name, "method")
    method = made() if isinstance(made, type) else made
    if not isinstance(method, Method):
        raise InvalidOptionError(
            f"the entry point {name!r} of {GROUP} is {made!r}, which is not a method.",
            "register a subclass of posterase.methods.Method.",
        )
    return method
