"""Requests to servers of tests without TLS. Those of httpx2 load all authorities of the system for each request."""

import ssl
from typing import Any, Final

import httpx2

_NO_AUTHORITIES: Final = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def get(url: str, **options: Any) -> httpx2.Response:
    """The response to GET; `options` are those of `httpx2.get`."""
    return httpx2.get(url, verify=_NO_AUTHORITIES, trust_env=False, **options)


def post(url: str, **options: Any) -> httpx2.Response:
    """The response to POST; `options` are those of `httpx2.post`."""
    return httpx2.post(url, verify=_NO_AUTHORITIES, trust_env=False, **options)
