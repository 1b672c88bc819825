"""Addresses of replicas from EndpointSlices, and invalid client certificates."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from nodewise.cli.explain import replica_queries
from nodewise.cli.explain.replica_queries import ClientCertificate, ReplicaService
from nodewise.errors import BadInput, BadSettings

SERVICE = ReplicaService("nodewise", "nodewise")


def endpoint_slice(*addresses: str, ready: Any = True, ports: Any = ((None, 9001),)) -> dict[str, Any]:
    conditions = {} if ready is None else {"ready": ready}
    return {
        "endpoints": [{"addresses": [address], "conditions": conditions} for address in addresses],
        "ports": [{"name": name, "port": port} for name, port in ports],
    }


CASES = [
    pytest.param(
        [endpoint_slice("10.0.0.7", "10.0.0.8")], ["https://10.0.0.7:9001", "https://10.0.0.8:9001"], id="two"
    ),
    pytest.param([endpoint_slice("10.0.0.7", ready=False)], [], id="one that is not ready is left out"),
    pytest.param(
        [endpoint_slice("10.0.0.7", ready=None)],
        ["https://10.0.0.7:9001"],
        id="one that does not say is ready",
    ),
    pytest.param([endpoint_slice("fd00::7")], ["https://[fd00::7]:9001"], id="IPv6"),
    pytest.param(
        [endpoint_slice("10.0.0.7"), endpoint_slice("10.0.0.7")],
        ["https://10.0.0.7:9001"],
        id="one in two slices",
    ),
    pytest.param(
        [endpoint_slice("10.0.0.7", ports=(("metrics", 9002), ("https", 8443)))],
        ["https://10.0.0.7:8443"],
        id="the port named https",
    ),
    pytest.param(
        [endpoint_slice("10.0.0.7", ports=(("metrics", 9002), ("main", 9001)))],
        ["https://10.0.0.7:9001"],
        id="else our own number",
    ),
    pytest.param(
        [endpoint_slice("10.0.0.7", ports=(("main", 8000),))], ["https://10.0.0.7:8000"], id="else the first"
    ),
    pytest.param([endpoint_slice("10.0.0.7", ports=())], [], id="no port at all"),
    pytest.param([{"endpoints": None, "ports": None}], [], id="an empty slice"),
]


@pytest.mark.parametrize(("slices", "urls"), CASES)
def test_ready_replicas(slices: list[Any], urls: list[str]) -> None:
    endpoints = replica_queries.parse_endpoint_slices(msgspec.json.encode({"items": slices}), SERVICE)
    assert [endpoint.url for endpoint in endpoints] == urls
    assert {endpoint.host for endpoint in endpoints} <= {"nodewise.nodewise.svc"}


@pytest.mark.parametrize("body", [b"", b"[]", b'{"items": 7}'])
def test_an_answer_that_is_no_list(body: bytes) -> None:
    with pytest.raises(BadInput, match="EndpointSlices"):
        replica_queries.parse_endpoint_slices(body, SERVICE)


def test_certificates_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.pem"
    bad.write_text("no certificate")
    for certificate in (
        ClientCertificate(cert=str(bad)),
        ClientCertificate(ca=str(bad)),
        ClientCertificate(cert=str(tmp_path / "absent")),
    ):
        with pytest.raises(BadSettings, match="--cert, --key, --ca"):
            certificate.context()
