"""Certificates as Secrets of a cluster: read and written; and one that the cluster's own signer is asked for."""

import base64
import binascii
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.clock import Clock
from nodewise.configure import certificate_objects as objects
from nodewise.configure.certificate_renewal import Both, Side
from nodewise.errors import BadInput, NodewiseError, Problem, Refused, Unavailable
from nodewise.kube.api import Api, NotFound
from nodewise.kube.resources import Resource

SECRETS: Final = Resource("", "v1", "secrets", "Secret")
_CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
_REQUESTS: Final = Resource(
    "certificates.k8s.io",
    "v1",
    "certificatesigningrequests",
    "CertificateSigningRequest",
    namespaced=False,
)
API_CLIENT: Final = "kubernetes.io/kube-apiserver-client"
_PAUSE_S: Final = 1.0


class Place(NamedTuple):
    """Where the two Secrets are: nodewise's and kube-scheduler's."""

    namespace: str
    names: Sequence[str]

    def path(self, name: str | None = None) -> str:
        return SECRETS.path(self.namespace, name)


class Found(NamedTuple):
    """The two Secrets as the API server gave them, None for one that is not there."""

    secrets: Sequence[dict[str, Any] | None]

    @property
    def both(self) -> Both:
        return Both(*map(objects.side, self.secrets))

    @property
    def foreign(self) -> tuple[str, ...]:
        return tuple(
            secret["metadata"]["name"]
            for secret in self.secrets
            if secret is not None and not objects.is_ours(secret)
        )


async def read(api: Api, place: Place) -> Found:
    return Found([await _found(api, place.path(name)) for name in place.names])


async def _found(api: Api, path: str) -> dict[str, Any] | None:
    try:
        secret_object: dict[str, Any] = msgspec.json.decode(await api.get(path))
    except NotFound:
        return None
    return secret_object


def check_ours(place: Place, existing: Found) -> None:
    """BadInput where somebody else's Secret would be written over."""
    if existing.foreign:
        problems = [
            Problem(
                f"Secret {place.namespace}/{name}",
                "was not written by nodewise certs",
                "--replace, or another name by --secret and --client-secret",
            )
            for name in existing.foreign
        ]
        raise BadInput("Secrets", problems)


async def write(api: Api, place: Place, existing: Found, after: Both) -> None:
    """Write what differs, nodewise's first. Conflict where somebody else wrote since it was read."""
    for name, before, side in zip(place.names, existing.secrets, after, strict=True):
        if side == Side() or (
            before is not None and objects.is_ours(before) and objects.side(before) == side
        ):
            continue
        made = objects.secret(name, place.namespace, side)
        if before is not None and before.get("type") == made["type"]:
            await api.replace(place.path(name), _over(before, made))
            continue
        if before is not None:  # the type of a Secret cannot be changed
            await api.delete(place.path(name), {"preconditions": {"uid": before["metadata"]["uid"]}})
        await api.create(place.path(), made)


def _over(before: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The made Secret in the place of that very version, with what others have written on its outside."""
    was, own = before["metadata"], made["metadata"]
    kept = {
        key: {
            **{name: text for name, text in (was.get(key) or {}).items() if name not in _NOT_KEPT},
            **own.get(key, {}),
        }
        for key in ("annotations", "labels")
    }
    return {**made, "metadata": {**own, **kept, "resourceVersion": was["resourceVersion"]}}


_NOT_KEPT: Final = frozenset({objects.SIGNER, "kubectl.kubernetes.io/last-applied-configuration"})
"""The second is a copy of the Secret as it was applied, with its key."""


async def authority_of(api: Api, signer: str) -> bytes:
    """The authorities of a built-in signer of client certificates, PEM. BadInput for another signer."""
    if signer != API_CLIENT:
        problem = Problem(
            "--signer-ca", f"not given, and nobody says who stands behind {signer}", "a PEM file"
        )
        raise BadInput("signer", [problem])
    path = _CONFIG_MAPS.path("kube-system", "extension-apiserver-authentication")
    config_map = msgspec.json.decode(await api.get(path))
    return str((config_map.get("data") or {}).get("client-ca-file", "")).encode()


class Request(NamedTuple):
    """What a signer is asked for."""

    name: str
    signer: str
    pem: bytes
    valid: timedelta


async def signed(
    api: Api, wanted: Request, timeout_s: float, clock: Clock, created: Callable[[], None]
) -> bytes:
    """The certificate of a CertificateSigningRequest, PEM, once it is approved and signed; `created` is called when it
    waits. Refused where it is denied, or failed; Unavailable after the time. A request that came to nothing is removed.
    """
    made = objects.signing_request(wanted.name, wanted.signer, wanted.pem, wanted.valid)
    await api.create(_REQUESTS.path(), made)
    path = _REQUESTS.path(name=wanted.name)
    try:
        created()
        return await _until(lambda: _issued(api, path), wanted.name, timeout_s, clock)
    except BaseException:
        with contextlib.suppress(NodewiseError):
            await api.delete(path)
        raise


async def _until(
    see: Callable[[], Awaitable[bytes | None]], name: str, timeout_s: float, clock: Clock
) -> bytes:
    end_s = clock.monotonic() + timeout_s
    while (seen := await see()) is None:
        if clock.monotonic() >= end_s:
            problem = Problem(
                "", f"not approved and signed after {timeout_s:g} s", "kubectl certificate approve"
            )
            raise Unavailable(f"CertificateSigningRequest {name}", [problem])
        await clock.sleep(_PAUSE_S)
    return seen


async def _issued(api: Api, path: str) -> bytes | None:
    request = msgspec.json.decode(await api.get(path))
    status = request.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] in {"Denied", "Failed"}:
            why = condition.get("message") or condition.get("reason") or "no reason given"
            name = request["metadata"]["name"]
            raise Refused(f"CertificateSigningRequest {name}", [Problem(condition["type"], why, "")])
    try:
        return base64.b64decode(status.get("certificate") or "", validate=True) or None
    except binascii.Error:
        return None
