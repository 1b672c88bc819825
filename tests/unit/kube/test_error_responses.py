from typing import Any

import msgspec
import pytest

from nodewise.base.errors import BadInput, Conflict, NodewiseError, Refused, Unavailable
from nodewise.kube import api_server_interface
from nodewise.kube.api_server_interface import ApiCall, Expired, NotAllowed, NotFound

CALL = ApiCall("list", "https://host/api/v1/nodes")


def status(message: str = "", **more: Any) -> bytes:
    return msgspec.json.encode({"kind": "Status", "message": message, **more})


def error_of(code: int, body: bytes = b"", retry_after: str = "", hint: str = "") -> NodewiseError:
    return api_server_interface.error_from_status(
        CALL, code, api_server_interface.parse_status_body(body), retry_after, hint
    )


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (400, BadInput),
        (401, Refused),
        (403, Refused),
        (404, NotFound),
        (405, NotAllowed),
        (409, Conflict),
        (410, Expired),
        (418, Refused),
        (422, BadInput),
        (429, Unavailable),
        (500, Unavailable),
        (503, Unavailable),
        (599, Unavailable),
        (302, Refused),
    ],
)
def test_status_determines_the_kind_of_error(code: int, kind: type[NodewiseError]) -> None:
    assert type(error_of(code)) is kind


@pytest.mark.parametrize(
    ("error", "text"),
    [
        pytest.param(
            error_of(403, status('nodes is forbidden: User "x" cannot list resource "nodes"')),
            'list https://host/api/v1/nodes: nodes is forbidden: User "x" cannot list resource "nodes"'
            " (grant this right to the account by a Role or ClusterRole)",
            id="a right that is missing is named, with the remedy",
        ),
        pytest.param(
            error_of(401, status("Unauthorized"), hint="the certificate expired"),
            "list https://host/api/v1/nodes: Unauthorized (the certificate expired)",
            id="what we know of our credentials stands for the general remedy",
        ),
        pytest.param(
            error_of(
                422,
                status(
                    "too long to read",
                    details={
                        "causes": [{"field": "a", "message": "bad"}, {"field": "b", "message": "worse"}]
                    },
                ),
            ),
            "list https://host/api/v1/nodes: a: bad; b: worse",
            id="a validation error is told field by field",
        ),
        pytest.param(
            error_of(
                409,
                status(
                    "Apply failed with 1 conflict",
                    details={"causes": [{"field": ".metadata.labels.a", "message": 'conflict with "them"'}]},
                ),
            ),
            'list https://host/api/v1/nodes: .metadata.labels.a: conflict with "them"',
            id="a conflict of an apply is told field by field",
        ),
        pytest.param(
            error_of(502, b"<html>Bad Gateway</html>"),
            "list https://host/api/v1/nodes: <html>Bad Gateway</html>",
            id="a proxy's page gives its first words",
        ),
        pytest.param(
            error_of(503), "list https://host/api/v1/nodes: HTTP status 503", id="an answer without a body"
        ),
        pytest.param(
            error_of(503, b'{"kind": "Status", "message": 7}'),
            'list https://host/api/v1/nodes: {"kind": "Status", "message": 7}',
            id="a status of wrong types",
        ),
        pytest.param(
            error_of(503, b'{"some": "json"}'),
            "list https://host/api/v1/nodes: HTTP status 503",
            id="other JSON",
        ),
    ],
)
def test_words(error: NodewiseError, text: str) -> None:
    assert str(error) == text


@pytest.mark.parametrize(
    ("error", "wait_s"),
    [
        pytest.param(error_of(429, retry_after="7"), 7.0, id="the header"),
        pytest.param(error_of(429, status(details={"retryAfterSeconds": 9})), 9.0, id="the status"),
        pytest.param(
            error_of(503, status(details={"retryAfterSeconds": 9}), "7"), 9.0, id="the longer of both"
        ),
        pytest.param(
            error_of(503, retry_after="Wed, 21 Oct 2026 07:28:00 GMT"), 1.0, id="a date is not read"
        ),
        pytest.param(error_of(503), 1.0, id="neither"),
    ],
)
def test_how_long_to_wait(error: NodewiseError, wait_s: float) -> None:
    assert isinstance(error, Unavailable)
    assert error.retry_after_s == wait_s
