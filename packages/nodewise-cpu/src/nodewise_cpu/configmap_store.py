"""The allocations of a node in a ConfigMap: CMK's YAML under `config`, the identities of tasks in an annotation.

PyYAML beside the standard library, because readers of the older CPU manager (CMK) expect YAML. The resource version of
the ConfigMap makes each write conditional.
"""

import json
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import yaml

from nodewise.base import safe_yaml_loader
from nodewise.base.errors import BadInput, Conflict, shown, visible
from nodewise.kube.resource_kinds import CONFIG_MAPS
from nodewise_cpu import allocation_store, cmk_names, pool_allocations
from nodewise_cpu.allocation_store import Intent, StoredAllocations
from nodewise_cpu.cluster.api_server import ApiClient
from nodewise_cpu.pool_allocations import IDENTITIES, Allocations

KEY: Final = "config"
"""The ConfigMap's key."""
LEASE_S: Final = 30.0
"""How long a lock of CMK is respected while the ConfigMap does not change. In CMK itself a lock never expired."""
_POLL_S: Final = 1.0


class ConfigMapTexts(NamedTuple):
    """The stored texts: the value of `KEY`, and that of the annotation `IDENTITIES`."""

    config: str
    identities: str = "{}"


def parse_config_map_data(texts: ConfigMapTexts) -> Allocations:
    """The allocations in these texts. BadInput if a text is not YAML or JSON, or does not hold allocations."""
    what = "cannot read the state of the node's pools"
    try:
        config = safe_yaml_loader.load(texts.config, KEY)
    except BadInput as error:
        problems = [problem._replace(field=f"{KEY}: {problem.field}") for problem in error.problems]
        raise BadInput(what, problems) from error
    try:
        identities = json.loads(texts.identities)
    except (RecursionError, ValueError) as error:
        raise BadInput.of(what, IDENTITIES, shown(texts.identities), "JSON") from error
    return pool_allocations.parse_allocations(config, identities)


def format_config_map_data(allocations: Allocations) -> ConfigMapTexts:
    """The texts that hold the allocations, byte for byte the same for equal allocations."""
    config = yaml.safe_dump(
        pool_allocations.as_cmk_config(allocations), default_flow_style=False, width=2**20
    )
    identities = pool_allocations.task_identities_by_cpu_list(allocations)
    return ConfigMapTexts(config, json.dumps(identities, sort_keys=True, separators=(",", ":")))


class LockClock(NamedTuple):
    """The clock for waiting until a lock is released."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


def _warn(text: str) -> None:
    # containers of workloads have no other log
    print(f"nodewise: {visible(text)}", file=sys.stderr, flush=True)  # noqa: T201


class ConfigMapStore:
    """An `AllocationStore`. It keeps keys and annotations of others, and calls `warn` when it takes over a lock."""

    def __init__(
        self,
        api: ApiClient,
        namespace: str,
        node: str,
        *,
        warn: Callable[[str], None] = _warn,
        clock: LockClock = LockClock(),  # noqa: B008 - two functions, never changed
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._name = cmk_names.config_map(node)
        self._path = CONFIG_MAPS.path(namespace, self._name)
        self._warn = warn
        self._clock = clock
        self._owners: dict[str, str] = {}
        """The owner of CMK's lock, by resource version; empty where the version is not locked."""

    @property
    def location(self) -> str:
        return f"ConfigMap {self._namespace}/{self._name}"

    def read(self) -> StoredAllocations:
        return self._parse(self._api.get(self._path))

    def create(self, first: Allocations) -> None:
        metadata = {"name": self._name, "namespace": self._namespace, "annotations": {cmk_names.OWNER: ""}}
        config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
        self._api.create(CONFIG_MAPS.path(self._namespace), _with_allocations(config_map, first, None))

    def replace(self, version: str, new: Allocations, intent: Intent | None = None) -> None:
        self._wait_for_cmk_lock_release(version)
        patch = {"metadata": {"resourceVersion": version, "annotations": {cmk_names.OWNER: ""}}}
        config_map = self._api.patch(self._path, _with_allocations(patch, new, intent), "merge")
        self._owners = {_resource_version(config_map): ""}

    def delete(self, version: str) -> None:
        self._wait_for_cmk_lock_release(version)
        self._api.delete(self._path, {"preconditions": {"resourceVersion": version}})

    def _parse(self, config_map: Any) -> StoredAllocations:
        annotations = config_map["metadata"].get("annotations") or {}
        config = (config_map.get("data") or {}).get(KEY)
        if not isinstance(config, str):
            raise BadInput.of(f"cannot read {self.location}", f"data.{KEY}", shown(config), "YAML")
        texts = ConfigMapTexts(config, annotations.get(IDENTITIES) or "{}")
        self._owners = {_resource_version(config_map): annotations.get(cmk_names.OWNER) or ""}
        what = f"cannot read {self.location}"
        try:
            allocations = parse_config_map_data(texts)
            what += f": annotation {cmk_names.INTENT}"
            intent = allocation_store.load_intent(annotations.get(cmk_names.INTENT), cmk_names.INTENT)
        except BadInput as error:
            raise BadInput(what, error.problems, remedy=error.remedy) from error
        return StoredAllocations(allocations, _resource_version(config_map), intent)

    def _wait_for_cmk_lock_release(self, version: str) -> None:
        """Wait while CMK holds the lock on this version. Conflict as soon as the version is no longer the newest."""
        owner = self._owners.get(version, "")
        since = self._clock.now()
        while owner and self._clock.now() - since < LEASE_S:
            self._clock.sleep(_POLL_S)
            if _resource_version(self._api.get(self._path)) != version:
                raise Conflict.of("cannot write the pools", self.location, "changed since it was read")
        if owner:
            self._warn(
                f"{self.location}: locked by {shown(owner)}, and unchanged for {LEASE_S:g} s: lock taken over"
            )


def _resource_version(config_map: Any) -> str:
    return str(config_map["metadata"]["resourceVersion"])


def _with_allocations(
    base: Mapping[str, Any], allocations: Allocations, intent: Intent | None
) -> dict[str, Any]:
    """The object or patch `base` with the allocations in it. A merge patch removes an annotation that is None."""
    texts = format_config_map_data(allocations)
    metadata = base["metadata"]
    annotations = {**metadata["annotations"], IDENTITIES: texts.identities}
    annotations[cmk_names.INTENT] = None if intent is None else json.dumps(intent.as_dict(), sort_keys=True)
    return {**base, "metadata": {**metadata, "annotations": annotations}, "data": {KEY: texts.config}}
