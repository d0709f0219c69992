"""`posterase serve` and `posterase requests work`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from posterase.cli.output import Said, print_line
from posterase.cli.record_options import DEFAULT_RECORD, KeysFolder, RecordUrl, keys_folder
from posterase.cli.requests import opened_record, requests
from posterase.errors import InvalidOptionError

DueWithin = Annotated[
    str | None, typer.Option(help="Run what is due so soon by itself: 7d, 36h, 2w. Else only where it is ordered.")
]
Grace = Annotated[float, typer.Option(min=0, help="Seconds that a run may go on when it is asked to end.")]


@requests.command("work")
def requests_work(
    said: Said,
    run_due_within: DueWithin = None,
    grace: Grace = 30.0,
    parent: Annotated[int, typer.Option(hidden=True, help="The process to end with.")] = 0,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Run what the service is asked to run, until SIGTERM. `posterase serve` starts workers by itself.

    Example: `posterase requests work --run-due-within 7d`
    """
    with opened_record(record, folder):
        pass  # what is wrong is told here, and at once
    from posterase.projects.loading import open_project
    from posterase.record.deadlines import span_of
    from posterase.service.worker import Worker

    due_within = None if run_due_within is None else span_of(run_due_within)
    place = folder or keys_folder()
    Worker(record, place, open_project, due_within=due_within, grace_s=grace, parent=parent).work()
    said.json({"ended": True})


def serve(
    said: Said,
    host: Annotated[str, typer.Option(help="The address to listen on; 0.0.0.0: all.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")] = 8350,
    workers: Annotated[int, typer.Option(min=0, max=64, help="Processes that run requests.")] = 1,
    run_due_within: DueWithin = None,
    grace: Grace = 30.0,
    behind_https: Annotated[
        bool, typer.Option("--behind-https", help="A proxy in front speaks HTTPS: cookies travel by nothing else.")
    ] = False,
    ssl_certificate: Annotated[Path | None, typer.Option(help="For HTTPS by itself: the certificate's file.")] = None,
    ssl_key: Annotated[Path | None, typer.Option(help="And its key's.")] = None,
    rate: Annotated[float, typer.Option(min=0.01, help="Requests a second that one token may make, over time.")] = 50.0,
    record: RecordUrl = DEFAULT_RECORD,
    folder: KeysFolder = None,
) -> None:
    """Serve the record over HTTP: requests in OpenDSR's shape, and a dashboard.

    Everything needs a token: `posterase tokens new NAME --role operate`.

    Example: `posterase serve --port 8350 --run-due-within 7d`
    """
    if (ssl_certificate is None) != (ssl_key is None):
        raise InvalidOptionError("HTTPS needs a certificate and its key.", "give --ssl-certificate and --ssl-key.")
    from posterase.record.deadlines import span_of
    from posterase.service.serve import serve as run_service
    from posterase.service.settings import Settings

    with opened_record(record, folder):
        pass  # what is wrong is told here, and at once
    due = "runs are ordered on the dashboard"
    if run_due_within is not None:
        span_of(run_due_within)
        due = f"what is due within {run_due_within} is run by itself"

    def ready(address: str) -> None:
        said.at_once({"address": address, "dashboard": f"{address}/dashboard"})
        print_line(f"Dashboard: {address}/dashboard, {due}. Ctrl-C ends it.")

    run_service(
        record,
        folder or keys_folder(),
        host=host,
        port=port,
        workers=workers,
        due_within=run_due_within,
        grace_s=grace,
        settings=Settings(https=behind_https or ssl_certificate is not None, rate=rate, burst=max(int(4 * rate), 1)),
        certificate=ssl_certificate,
        key=ssl_key,
        ready=ready,
    )
