"""Why a node is rejected, in words: few texts, without the node's own values."""

from typing import ClassVar

import msgspec


class TooRisky(msgspec.Struct, frozen=True):
    """With the pod there, it is too probable that too much of the resource is used."""

    resource: str
    percentile: int
    utilization: int
    is_failure: ClassVar[bool] = False

    def text(self) -> str:
        return f"safe: risk of {self.resource} above {self.percentile} %"

    def remedy(self) -> str:
        return (
            f"the risk is that more than {self.utilization} % of the node's {self.resource} are used; it falls when "
            "the node's load falls or varies less, or with a pod that requests less"
        )
