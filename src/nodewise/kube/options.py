"""Settings of the connection to the API server, and the rate limit of writes."""

from typing import Annotated

import msgspec

from nodewise.base.option import Option


class KubeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Connection to the cluster."""

    kubeconfig: Annotated[str, Option(metavar="FILE")] = ""
    """Path of a kubeconfig file. Takes precedence over the in-cluster configuration.

    Empty: the in-cluster configuration if a service account is mounted, else the files of $KUBECONFIG, else
    ~/.kube/config.
    """

    context: Annotated[str, Option(metavar="NAME")] = ""
    """Context of the kubeconfig. Empty: its current-context."""

    kube_qps: Annotated[float, msgspec.Meta(gt=0)] = 20.0
    """Average limit of writes to the API server per second. Reads are not limited, because there are few.

    The default is four times that of client-go, because one bind takes two writes.
    """

    kube_burst: Annotated[int, msgspec.Meta(ge=1)] = 50
    """Burst of writes to the API server. The default is enough to label a rack of nodes without delay."""

    namespace: Annotated[str, Option(metavar="NAMESPACE")] = ""
    """Namespace of nodewise's own objects, such as the Lease. Empty: that of the service account or of the context,
    else `default`."""

    identity: Annotated[str, Option(metavar="NAME")] = ""
    """Identity of this replica in the leader election. Must be unique. With the name or uid of the pod, a container
    that restarts in its pod continues to lead at once. Empty: the host name with a random suffix; then a restarted
    process waits up to 5 s until the Lease of the killed process has expired, with a slow API server 30 s."""
