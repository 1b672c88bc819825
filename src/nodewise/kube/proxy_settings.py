"""Proxy of a server, from environment variables with the semantics of Go.

Source: golang.org/x/net http/httpproxy, which client-go uses. httpx2 does not support networks in NO_PROXY, but pods of
clusters behind a proxy have settings such as `NO_PROXY=10.0.0.0/8`.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import urlsplit


def proxy_url(server: str, environ: Mapping[str, str]) -> str:
    """The URL of the proxy for a server; empty for a direct connection."""
    url = urlsplit(server)
    host = url.hostname or ""
    name = f"{url.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name) or ""
    if not proxy or is_loopback(host) or _is_in_no_proxy(host, environ):
        return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def is_loopback(host: str) -> bool:
    """Whether a host is loopback, which never uses a proxy of the environment."""
    address = _parse_ip_address(host)
    return host == "localhost" if address is None else address.is_loopback


def _is_in_no_proxy(host: str, environ: Mapping[str, str]) -> bool:
    rules = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    return any(
        _matches_no_proxy_rule(host.lower(), rule.strip().lower())
        for rule in rules.split(",")
        if rule.strip()
    )


def _matches_no_proxy_rule(host: str, rule: str) -> bool:
    """A rule is `*`, an address, a network, `name` (the host and its subdomains) or `.name` (subdomains only)."""
    if rule == "*":
        return True
    address = _parse_ip_address(host)
    if address is not None:
        try:
            return address in ip_network(rule.strip("[]"), strict=False)
        except ValueError:
            return False
    suffix = rule.removeprefix("*")
    return host.endswith(suffix if suffix.startswith(".") else f".{suffix}") or host == suffix


def _parse_ip_address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None
