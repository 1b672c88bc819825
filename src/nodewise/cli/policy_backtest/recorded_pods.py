"""The pods that a recording of the extender contains, in place of those of kube-state-metrics."""

import re
from pathlib import Path

import msgspec

from nodewise.base.errors import UNREADABLE, BadInput, Problem
from nodewise.engine import recording_file
from nodewise.engine.recording_file import RequestEntry
from nodewise.metrics.prometheus.history import PodStart


class _Owner(msgspec.Struct, frozen=True):
    kind: str = ""


class _Metadata(msgspec.Struct, frozen=True, rename="camel"):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    owner_references: list[_Owner] | None = None


class _Pod(msgspec.Struct, frozen=True):
    metadata: _Metadata = _Metadata()


class _FilterBody(msgspec.Struct, frozen=True, rename="pascal"):
    pod: _Pod = _Pod()


_decode = msgspec.json.Decoder(_FilterBody).decode


def read(path: str) -> list[PodStart]:
    """The pods of the filter requests, oldest first. A pod started at its last request; its node is not known.

    `BadInput` if the file is no recording, or has no pod.
    """
    pods: dict[str, PodStart] = {}
    try:
        with Path(path).open("rb") as file:
            for entry, blobs in recording_file.read(file):
                if isinstance(entry, RequestEntry) and entry.path.endswith("/filter") and blobs:
                    pod = _decode_pod(blobs[0], entry.at)
                    if pod is not None:
                        pods[pod[0]] = pod[1]
    except OSError as error:
        raise BadInput("recording", [Problem(path, error.strerror or str(error), "a file")]) from error
    if not pods:
        problem = Problem(
            path, "no filter request with a pod", "a recording of an extender that kube-scheduler called"
        )
        raise BadInput("recording", [problem])
    return sorted(pods.values(), key=lambda pod: pod.started_at)


def _decode_pod(body: bytes, at: float) -> tuple[str, PodStart] | None:
    """The pod of a request, with what identifies it; None if the request could not be decoded."""
    try:
        metadata = _decode(body).pod.metadata
    except UNREADABLE:
        return None
    labels = {exported_label(key): text for key, text in (metadata.labels or {}).items()}
    owner = next((owner.kind for owner in metadata.owner_references or ()), "")
    key = metadata.uid or f"{metadata.namespace}/{metadata.name}"
    return key, PodStart(metadata.namespace, metadata.name, at, "", labels, owner)


def exported_label(key: str) -> str:
    """The name that kube-state-metrics gives a label (kube-state-metrics v2, `sanitizeLabelName`)."""
    return re.sub(r"[^a-zA-Z0-9_]", "_", key)
