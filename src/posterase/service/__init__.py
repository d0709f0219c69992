"""The service: the record over HTTP, in OpenDSR's shape, and a dashboard. `posterase serve` starts it."""

from posterase.runtime.optional import need

for _module in ("fastapi", "uvicorn", "jinja2"):
    need(_module, "the service", "service")
