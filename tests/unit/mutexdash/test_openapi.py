"""The API matches `openapi.yaml`: real answers are validated."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import hypothesis
import pytest
import schemathesis
from openapi_spec_validator import validate
from ruamel.yaml import YAML
from schemathesis import checks

from tests.support.board import Board
from tests.support.records import BACKTRACE

SERVED = "/api/openapi.yaml"
PROMISES = (
    checks.not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.unsupported_method,
)
"""What a program may rely on; `positive_data_acceptance` is not one: a right question may be about
a lock that nobody holds."""


# Without its limit: it is tested elsewhere, and would answer most of what is sent here.
BOARD = Board("--allow-force-unlock --force-unlock-limit 10000")
DESCRIPTION: dict[str, Any] = YAML(typ="safe").load(BOARD.client.get(SERVED).data)
schema = schemathesis.openapi.from_wsgi(SERVED, BOARD.app)
schema.config.update(base_url="http://localhost/api")  # it takes no relative one from `servers`


@pytest.fixture(scope="module", autouse=True)
def board() -> Iterator[Board]:
    with BOARD as started:
        for name in ("a", "b/c", "0"):
            started.store.take(name, uuid=f"u-{name}", identity=f"i-{name}")
            started.store.wait(name, "w1", hostname="h", pid=1, since=5.0, reason="me, too")
            started.store.removed(name, "u0", how="auto-unlock", removed_by="d", why="late")
        started.store.take("odd", alert_at="soon", pid="many", hostname=None, backtrace=None)
        started.store.take("never", unlock=None)
        started.store.take("new", uuid="u-new", format=2)
        started.settle()
        yield started


def test_the_description_is_sound_and_served(board: Board) -> None:
    validate(DESCRIPTION)
    answer = board.get(SERVED)
    assert (answer.status_code, answer.mimetype) == (200, "application/yaml")


def test_every_route_of_the_api_is_described(board: Board) -> None:
    described = {f"/api{path}" for path in DESCRIPTION["paths"]}
    routes = {rule.rule.replace("<lock:name>", "{name}") for rule in board.app.url_map.iter_rules()}
    assert {route for route in routes if route.startswith("/api/")} - {SERVED} == described


@schema.parametrize()
@hypothesis.settings(max_examples=25)
def test_generated_requests_are_answered_as_described(case: Any) -> None:
    # It takes what comes out of WSGI as it is, and does not decompress.
    case.call_and_validate(headers={"Accept-Encoding": "identity"}, checks=PROMISES)


ASKED = {
    "/locks": [
        *("", "?q=A&state=ok&sort=-waiters&page=1&per_page=2", "?state=waiters", "?state=broken")
    ],
    "/locks/{name}": ["b%2Fc", "odd", "never", "new"],
    "/lock": ["?name=a"],
    "/removed": ["?q=late"],
    "/removed/{name}": ["b%2Fc?uuid=u0"],
    "/removal": ["?name=a&uuid=u0"],
}


@pytest.mark.parametrize(
    ("template", "what"), [(template, what) for template in ASKED for what in ASKED[template]]
)
def test_answers_with_locks_and_records_are_as_described(
    board: Board, template: str, what: str
) -> None:
    answer = board.get(f"/api{template.replace('{name}', '')}{what}")
    assert answer.status_code == 200, answer.data
    schema[template]["get"].validate_response(_as_schemathesis_has_it(answer))


def test_a_force_unlock_is_answered_as_described(board: Board) -> None:
    board.store.take("mine", uuid="u9")
    body = {"name": "mine", "uuid": "u9", "reason": "it hangs"}
    path = f"/api/locks/{quote('mine')}/force-unlock"
    answer = board.post(path, json=body)
    assert answer.status_code == 200, answer.data
    assert json.loads(answer.data)["removed"]["backtrace"] == BACKTRACE
    operation = schema["/locks/{name}/force-unlock"]["post"]
    operation.validate_response(_as_schemathesis_has_it(answer))
    refused = board.post(path, json=body)
    assert refused.status_code == 409
    operation.validate_response(_as_schemathesis_has_it(refused))


def _as_schemathesis_has_it(answer: Any) -> Any:
    from requests import PreparedRequest

    request = PreparedRequest()
    request.prepare("GET", f"http://localhost{answer.request.path}")
    return schemathesis.Response(
        status_code=answer.status_code,
        headers={name.lower(): [value] for name, value in answer.headers.items()},
        content=json.dumps(answer.json).encode(),
        request=request,
        elapsed=0.0,
        verify=False,
    )
