"""Why a node is rejected, in words, where nodes without statistics are."""

from typing import ClassVar

import msgspec


class NotReady(msgspec.Struct, frozen=True):
    """The nodes are not read yet."""

    is_failure: ClassVar[bool] = True

    def text(self) -> str:
        return "pigeon: starting, the nodes are not read yet"

    def remedy(self) -> str:
        return "wait; /readyz on the admin port names what is missing, the log's kube_lost why"
