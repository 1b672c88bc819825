"""What kinds of object there are and where the API server keeps them."""

from typing import Final, NamedTuple
from urllib.parse import quote


class Resource(NamedTuple):
    """A kind of object; the core group is the empty text."""

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """As objects carry it: `v1`, `coordination.k8s.io/v1`."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Without a name the collection, of all namespaces if `namespace` is empty. Every part is escaped."""
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        inside = ("namespaces", namespace) if self.namespaced and namespace else ()
        parts = [*inside, self.plural, *filter(None, (name, subresource))]
        return "/".join([root, *(quote(part, safe="") for part in parts)])


NODES: Final = Resource("", "v1", "nodes", "Node", namespaced=False)
PODS: Final = Resource("", "v1", "pods", "Pod")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", "Lease")
EVENTS: Final = Resource("events.k8s.io", "v1", "events", "Event")
