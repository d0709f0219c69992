"""Requests made up from the OpenAPI document, right and wrong ones: no error of the server, and answers as it says."""

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode, checks, openapi

from posterase.record.tokens import make_token
from posterase.service.settings import Settings
from tests.databases import new_database
from tests.services import new_record, serving

CHECKED = [
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_schema_conformance,
]


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def service(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("openapi")
    url = f"sqlite:///{folder}/record.db"
    if request.param == "postgresql":
        url = new_database(request.getfixturevalue("server"), "openapi")
    record = new_record(folder, url)
    record.add("visits", "s1", "gdpr")
    _, secret = make_token(record, "a test", ["submit", "operate", "audit"])
    with serving(url, folder, Settings(rate=1e6, burst=10**6)) as address:
        headers = {"Authorization": f"Bearer {secret}"}
        yield openapi.from_url(f"{address}/openapi.json", headers=headers), headers
    record.verify()  # whatever was sent, the record is as the ledger says
    record.close()


def check(service, mode, examples):
    schema, headers = service
    seen = 0
    for found in schema.get_all_operations():
        operation = found.ok()
        if mode is GenerationMode.NEGATIVE and not (operation.body or operation.query or operation.path_parameters):
            continue

        @settings(
            max_examples=examples,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def calls(case):
            nonlocal seen
            case.call_and_validate(headers=headers, checks=CHECKED)
            seen += 1

        calls()
    return seen


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_breaks_the_service(service, mode):
    assert check(service, mode, examples=6) > 40


@pytest.mark.slow
@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
def test_no_request_of_many_breaks_the_service(service, mode):
    assert check(service, mode, examples=150) > 500
