import pytest

from nodewise.kube import http_transport

VIA = "http://proxy:3128"


@pytest.mark.parametrize(
    ("server", "environ", "wanted"),
    [
        pytest.param("https://api:6443", {}, "", id="none in the environment"),
        pytest.param("https://api:6443", {"HTTPS_PROXY": VIA}, VIA, id="https"),
        pytest.param("https://api:6443", {"https_proxy": VIA}, VIA, id="lower case"),
        pytest.param("https://api:6443", {"HTTPS_PROXY": "proxy:3128"}, VIA, id="without a scheme"),
        pytest.param("https://api:6443", {"HTTP_PROXY": VIA}, "", id="of another scheme"),
        pytest.param("http://api:8080", {"HTTP_PROXY": VIA}, VIA, id="http"),
        pytest.param("https://127.0.0.1:6443", {"HTTPS_PROXY": VIA}, "", id="loopback is asked directly"),
        pytest.param("https://[::1]:6443", {"HTTPS_PROXY": VIA}, "", id="loopback of IPv6"),
        pytest.param("https://localhost:6443", {"HTTPS_PROXY": VIA}, "", id="loopback by name"),
        pytest.param("https://api:6443", {"HTTPS_PROXY": VIA, "NO_PROXY": "*"}, "", id="all excepted"),
        pytest.param("https://10.96.0.1", {"HTTPS_PROXY": VIA, "NO_PROXY": "10.96.0.1"}, "", id="an address"),
        pytest.param(
            "https://10.96.0.1", {"HTTPS_PROXY": VIA, "NO_PROXY": "x, 10.0.0.0/8"}, "", id="a network"
        ),
        pytest.param(
            "https://11.0.0.1", {"HTTPS_PROXY": VIA, "NO_PROXY": "10.0.0.0/8"}, VIA, id="another network"
        ),
        pytest.param(
            "https://10.96.0.1", {"HTTPS_PROXY": VIA, "NO_PROXY": "1.svc"}, VIA, id="a name for an address"
        ),
        pytest.param("https://a.svc", {"HTTPS_PROXY": VIA, "NO_PROXY": "svc"}, "", id="below a name"),
        pytest.param("https://svc", {"HTTPS_PROXY": VIA, "NO_PROXY": "SVC"}, "", id="the name itself"),
        pytest.param("https://a.svc", {"HTTPS_PROXY": VIA, "NO_PROXY": ".svc"}, "", id="below a dot"),
        pytest.param("https://a.svc", {"HTTPS_PROXY": VIA, "NO_PROXY": "*.svc"}, "", id="below a star"),
        pytest.param(
            "https://svc", {"HTTPS_PROXY": VIA, "NO_PROXY": ".svc"}, VIA, id="a dot is not the name itself"
        ),
        pytest.param(
            "https://my-svc", {"HTTPS_PROXY": VIA, "NO_PROXY": "svc"}, VIA, id="half a name is no name"
        ),
    ],
)
def test_which_proxy(server: str, environ: dict[str, str], wanted: str) -> None:
    assert http_transport.proxy_url(server, environ) == wanted
