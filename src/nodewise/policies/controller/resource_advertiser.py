"""Advertises an extended resource on all nodes."""

from typing import Any, Final

import msgspec

from nodewise.agent.controller_interface import Handle
from nodewise.base import quantity
from nodewise.kube.api_server_interface import NotFound
from nodewise.kube.concurrent_calls import run_api_calls
from nodewise.kube.resource_kinds import NODES
from nodewise.policies.node_labels import FIELD_MANAGER

_APPLY: Final = {"fieldManager": FIELD_MANAGER}


class ResourceAdvertiser:
    """Keeps an extended resource on every node, also after a kubelet registers its node again."""

    def __init__(self, resource: str, handle: Handle) -> None:
        self._name, _, self._amount = resource.partition("=")
        self._handle = handle

    async def step(self) -> None:
        if not self._name:
            return
        lacking = [
            node.metadata.name
            for node in self._handle.nodes.values()
            if self._lacks_advertised_resource(node)
        ]
        await run_api_calls(self._advertise(name) for name in lacking)

    def _lacks_advertised_resource(self, node: Any) -> bool:
        amount = _decode_object(node.status.capacity).get(self._name)
        try:
            # the API server writes 1000 as 1k
            return quantity.parse(str(amount)) != quantity.parse(self._amount)
        except ValueError:
            return True

    async def _advertise(self, name: str) -> None:
        amounts = {self._name: self._amount}
        body = {"status": {"capacity": amounts, "allocatable": amounts}}
        try:
            await self._handle.api.patch(NODES.path(name=name, subresource="status"), body, "merge", _APPLY)
        except NotFound:
            return


def _decode_object(raw: msgspec.Raw) -> dict[str, Any]:
    document = msgspec.json.decode(raw)
    return document if isinstance(document, dict) else {}
