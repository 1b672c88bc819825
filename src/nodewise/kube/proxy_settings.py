"""Whether a server is asked through a proxy, by the environment's rules as Go reads them.

Source: golang.org/x/net http/httpproxy, which client-go asks. httpx2 has rules of its own that know no
networks in NO_PROXY, and `NO_PROXY=10.0.0.0/8` is what pods of a cluster behind a proxy have.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit


def proxy_url(server: str, environ: Mapping[str, str]) -> str:
    """The proxy's URL for this server; empty: asked directly."""
    url = urlsplit(server)
    host = url.hostname or ""
    name = f"{url.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy or is_loopback(host) or _is_excepted(host, environ):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """Loopback is never asked through a proxy of the environment."""
    address = _address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_excepted(host: str, environ: Mapping[str, str]) -> bool:
    rules = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    return any(_matches(host.lower(), rule.strip().lower()) for rule in rules.split(",") if rule.strip())


def _matches(host: str, rule: str) -> bool:
    """A rule is `*`, an address, a network, `name` with all below it, or `.name`: only what is below it."""
    if rule == "*":
        return True
    address = _address(host)
    if address is not None:
        try:
            return address in ip_network(rule.strip("[]"), strict=False)
        except ValueError:
            return False
    suffix = rule.removeprefix("*")
    return host.endswith(suffix if suffix.startswith(".") else f".{suffix}") or host == suffix


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
