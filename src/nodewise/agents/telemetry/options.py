"""Settings of the telemetry agent."""

from typing import Annotated, Literal

import msgspec

from nodewise.option import Option


class TelemetryOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Settings for stale and missing values, trust, and writes to the cluster."""

    max_age_s: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    """Seconds after which a value counts as missing; 0 means five refresh periods, but at least 60 s: a scrape or
    two may fail without a node changing its verdict. A policy's rule may say otherwise for itself."""

    when_missing: Literal["pass", "reject"] = "pass"
    """What a rule does with a node that has no fresh value. `pass`, as the older system did: a node is not lost to
    all pods because one exporter died. A policy's rule may say otherwise for itself."""

    trust_all_namespaces: bool = False
    """Trusts the policies of every namespace, as the older system did: everybody who may create a policy can label
    every node, disable GPUs and ask Prometheus any query. For migrations only; otherwise grant trust to single
    namespaces with: kubectl label namespace NAME nodewise.io/trusted=true."""

    own_namespace: Annotated[str, Option(metavar="NAMESPACE")] = ""
    """The namespace of nodewise, which is trusted without a label. The extender knows it: --namespace, the service
    account's or the context's, but `default` only if --namespace names it."""

    label_policies_from: Annotated[tuple[str, ...], Option(metavar="NAMESPACE")] = ()
    """Deprecated: label the namespaces with nodewise.io/trusted=true instead. Namespaces that are trusted as if they
    had that label; repeat it for several."""

    allowed_metrics: Annotated[str, Option(metavar="REGEX")] = ""
    """A regular expression that must match the whole name of each metric that policies in namespaces without trust
    name, such as `node_.*|cpu_usage`. Empty: any metric."""

    advertise_resource: Annotated[str, Option(metavar="NAME=AMOUNT")] = ""
    """An extended resource that every node shall have, such as `telemetry/scheduling=1000`: the descheduler and the
    autoscaler take a pod that asks for a resource which no node has for one that fits nowhere. Empty: none."""


def max_age_s(options: TelemetryOptions, sync_period_s: float) -> float:
    """The maximum age in effect, for a refresh period."""
    return options.max_age_s or max(5 * sync_period_s, 60.0)
