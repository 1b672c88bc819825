"""A node's state in a ConfigMap, which the API server changes only if nobody did meanwhile.

PyYAML beside the standard library, because the older CPU manager's readers want YAML.
"""

import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

from nodewise.cpu import book, configmap, names
from nodewise.cpu.book import Intent, Stored
from nodewise.cpu.configmap import KEY, Texts
from nodewise.cpu.requests import Requests
from nodewise.cpu.state import IDENTITIES, State
from nodewise.errors import BadInput, Conflict, Problem, shown
from nodewise.kube.resources import Resource
from nodewise.visible import visible

CONFIG_MAPS: Final = Resource("", "v1", "configmaps", "ConfigMap")
LEASE_S: Final = 30.0
"""For how long somebody's lock is heeded while nothing changes. The older program gave its lock no end."""
_LOOK_S: Final = 1.0


class Clock(NamedTuple):
    """How time passes for who waits for a lock."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def _warn(text: str) -> None:
    print(f"nodewise: {visible(text)}", file=sys.stderr, flush=True)  # noqa: T201 - workloads' containers have no other log


class ConfigMapBook:
    """A `Book`. Keys and annotations of others are kept. `warn` is told of a lock that is taken over."""

    def __init__(
        self,
        requests: Requests,
        namespace: str,
        node: str,
        *,
        warn: Callable[[str], None] = _warn,
        clock: Clock = Clock(),  # noqa: B008 - two functions, never changed
    ) -> None:
        self._requests = requests
        self._namespace = namespace
        self._name = names.config_map(node)
        self._path = CONFIG_MAPS.path(namespace, self._name)
        self._warn = warn
        self._clock = clock
        self._owners: dict[str, str] = {}

    @property
    def place(self) -> str:
        return f"ConfigMap {self._namespace}/{self._name}"

    def read(self) -> Stored:
        return self._parse(self._requests.get(self._path))

    def create(self, first: State) -> None:
        metadata = {"name": self._name, "namespace": self._namespace, "annotations": {names.OWNER: ""}}
        new = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        self._requests.create(CONFIG_MAPS.path(self._namespace), _with(new, first, None))

    def replace(self, version: str, new: State, intent: Intent | None = None) -> None:
        self._await_owner(version)
        change = {"metadata": {"resourceVersion": version, "annotations": {names.OWNER: ""}}}
        answer = self._requests.patch(self._path, _with(change, new, intent), "merge")
        self._owners = {_version(answer): ""}

    def delete(self, version: str) -> None:
        self._await_owner(version)
        self._requests.delete(self._path, {"preconditions": {"resourceVersion": version}})

    def _parse(self, found: Any) -> Stored:
        annotations = found["metadata"].get("annotations") or {}
        config = (found.get("data") or {}).get(KEY)
        if not isinstance(config, str):
            raise BadInput(f"cannot read {self.place}", [Problem(f"data.{KEY}", shown(config), "YAML")])
        texts = Texts(config, annotations.get(IDENTITIES) or "{}")
        self._owners = {_version(found): annotations.get(names.OWNER) or ""}
        with _named(f"cannot read {self.place}"):
            state = configmap.parse(texts)
        with _named(f"cannot read {self.place}: annotation {names.INTENT}"):
            intent = _intent(annotations)
        return Stored(state, _version(found), intent)

    def _await_owner(self, version: str) -> None:
        """Wait while the older program has locked this version. Conflict as soon as it is no longer the newest."""
        owner = self._owners.get(version, "")
        since = self._clock.now()
        while owner and self._clock.now() - since < LEASE_S:
            self._clock.sleep(_LOOK_S)
            if _version(self._requests.get(self._path)) != version:
                raise Conflict(
                    "cannot write the pools", [Problem(self.place, "changed since it was read", "")]
                )
        if owner:
            self._warn(
                f"{self.place}: locked by {shown(owner)}, and unchanged for {LEASE_S:g} s: lock taken over"
            )


@contextmanager
def _named(what: str) -> Iterator[None]:
    """What cannot be read is told with where it is."""
    try:
        yield
    except BadInput as error:
        raise BadInput(what, error.problems, remedy=error.remedy) from error


def _version(found: Any) -> str:
    return str(found["metadata"]["resourceVersion"])


def _with(change: Mapping[str, Any], new: State, intent: Intent | None) -> dict[str, Any]:
    """The object with the state in it; an annotation without a value is taken away."""
    texts = configmap.format_texts(new)
    metadata = change["metadata"]
    annotations = {**metadata["annotations"], IDENTITIES: texts.identities}
    annotations[names.INTENT] = None if intent is None else json.dumps(intent.as_dict(), sort_keys=True)
    return {
        **change,
        "metadata": {**metadata, "annotations": annotations},
        "data": {KEY: texts.config},
    }


def _intent(annotations: Mapping[str, str]) -> Intent | None:
    text = annotations.get(names.INTENT)
    if not text:
        return None
    try:
        value = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise BadInput("cannot read an intent", [Problem(names.INTENT, shown(text), "JSON")]) from error
    return book.parse_intent(value)
