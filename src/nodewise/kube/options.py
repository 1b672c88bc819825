"""How the API server is reached, and how fast it is written to."""

from typing import Annotated

import msgspec

from nodewise.option import Option


class KubeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of every command that talks to a cluster."""

    kubeconfig: Annotated[str, Option(metavar="FILE")] = ""
    """A kubeconfig file. It wins over the in-cluster configuration, as an operator who names a file means it.

    Empty: in-cluster where a service account is mounted, else the files of $KUBECONFIG, else ~/.kube/config.
    """

    context: Annotated[str, Option(metavar="NAME")] = ""
    """A context of the kubeconfig. Empty: its current-context."""

    kube_qps: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    """Writes a second, on average. Reads are not limited: there are few, and the reflectors pace themselves.

    Four times client-go's default, because one bind is two writes.
    """

    kube_burst: Annotated[int, msgspec.Meta(ge=1)] = 50
    """Writes that may go at once after a pause. Enough to label a rack without waiting."""

    namespace: Annotated[str, Option(metavar="NAMESPACE")] = ""
    """Where our own Lease and events live. Empty: the service account's or the context's, else `default`."""

    identity: Annotated[str, Option(metavar="NAME")] = ""
    """Who this replica is in the Lease by which replicas agree who leads. Give it the pod's name or uid, which nobody
    else may have: a container that starts again in its pod leads on at once. Empty: the host's name and a part made
    by chance, so that a process waits up to 15 s until the Lease of the one that was killed has run out."""
