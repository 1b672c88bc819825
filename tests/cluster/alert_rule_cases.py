"""For each alert of `deploy/metrics/alert-rules.yaml`: series for which it fires, and series for which it does not."""

from typing import Final, NamedTuple


class AlertCase(NamedTuple):
    """Series, by name and labels, with their values once a minute in the notation of promtool."""

    alert: str
    series: dict[str, str]
    fires: dict[str, str] | None = None
    """The labels of the alert without `severity`; None if it does not fire."""
    description: str = ""
    """The annotation of the alert that fires."""
    at: str = "30m"
    """When the alert is evaluated; series begin at 0, which is also the time of Unix."""


_JOB: Final = {"namespace": "nodewise", "job": "nodewise"}
_POD: Final = {**_JOB, "pod": "a"}
A: Final = 'namespace="nodewise", job="nodewise", pod="a"'
B: Final = 'namespace="nodewise", job="nodewise", pod="b"'


def _buckets(fast: int, slow: int, route: str) -> dict[str, str]:
    """So many requests per minute that take up to 0.25 s, and so many that take between 0.5 s and 1 s."""
    each = {"0.25": fast, "0.5": fast, "1.0": fast + slow, "+Inf": fast + slow}
    return {
        f'nodewise_request_seconds_bucket{{{A}, route="{route}", le="{le}"}}': f"0+{count}x40"
        for le, count in each.items()
    }


CASES: Final = [
    AlertCase(
        "NodewiseUnavailable",
        {f"nodewise_ready{{{A}}}": "1x10 0x40", f"nodewise_ready{{{B}}}": "1x10"},
        {},
        "Prometheus has found no ready replica of nodewise for 5 minutes. kube-scheduler does not place pods that need"
        " nodewise, and labels of nodes keep their last values.",
    ),
    AlertCase(
        "NodewiseUnavailable", {f"nodewise_ready{{{A}}}": "1x10 0x40", f"nodewise_ready{{{B}}}": "1x50"}
    ),
    AlertCase(
        "NodewiseNotReady",
        {f"nodewise_ready{{{A}}}": "1x10 0x40", f"nodewise_ready{{{B}}}": "1x50"},
        _POD,
        "The replica a has not been ready for 5 minutes. Its /readyz names what is missing.",
    ),
    AlertCase("NodewiseNotReady", {f"nodewise_ready{{{A}}}": "1x10 0x3 1x40"}),
    AlertCase(
        "NodewiseEvaluationOutdated",
        {f"nodewise_view_timestamp_seconds{{{A}}}": "0+60x10 600x40"},
        _POD,
        "The newest snapshot of the replica a is 20m 0s old. Changes of nodes, policies and metrics have no effect on"
        " its decisions.",
    ),
    AlertCase("NodewiseEvaluationOutdated", {f"nodewise_view_timestamp_seconds{{{A}}}": "0+60x50"}),
    AlertCase(
        "NodewiseNoEvaluation",
        {
            f"nodewise_evaluation_timestamp_seconds{{{A}}}": "0+60x5",
            f"nodewise_evaluation_timestamp_seconds{{{B}}}": "0+60x10",
        },
        _JOB,
        "The leader last wrote labels and statuses 20m 0s ago. Node labels keep their last values, and in native mode"
        " kube-scheduler places pods by them.",
    ),
    AlertCase(
        "NodewiseNoEvaluation",
        {
            f"nodewise_evaluation_timestamp_seconds{{{A}}}": "0+60x10",
            f"nodewise_evaluation_timestamp_seconds{{{B}}}": "_x11 660+60x40",
        },
    ),
    AlertCase(
        "NodewiseRequestsSlow",
        _buckets(90, 10, "/scheduler/filter"),
        {**_JOB, "route": "/scheduler/filter"},
        "1 % of the requests to /scheduler/filter take longer than 950ms. kube-scheduler waits for each response, and"
        " gives up after httpTimeout (1 s by default).",
    ),
    AlertCase(
        "NodewiseRequestsSlow", _buckets(1000, 5, "/scheduler/filter") | _buckets(0, 10, "/scheduler/bind")
    ),
    AlertCase(
        "NodewiseMetricOnNoNode",
        {
            f'nodewise_metric_nodes{{{A}, metric="heat"}}': "0x50",
            f'nodewise_metric_nodes{{{B}, metric="heat"}}': "0x50",
        },
        {**_JOB, "metric": "heat"},
        "No source has a value of the metric heat for any node. Pods whose policies reject nodes by this metric"
        " stay pending.",
    ),
    AlertCase(
        "NodewiseMetricOnNoNode",
        {
            f'nodewise_metric_nodes{{{A}, metric="heat"}}': "3x50",
            f'nodewise_metric_nodes{{{B}, metric="heat"}}': "0x50",
        },
    ),
    AlertCase(
        "NodewiseMetricOutdated",
        {f'nodewise_metric_age_seconds{{{A}, metric="heat"}}': "3x10 0+60x40"},
        {**_JOB, "metric": "heat"},
        "The source last responded with the metric heat 19m 0s ago. Values that are older than max_age count as"
        " missing.",
    ),
    AlertCase(
        "NodewiseMetricOutdated",
        {
            f'nodewise_metric_age_seconds{{{A}, metric="heat"}}': "0+60x50",
            f'nodewise_metric_age_seconds{{{B}, metric="heat"}}': "3x50",
        },
    ),
    AlertCase(
        "NodewisePolicyInvalid",
        {
            f"nodewise_policies_with_problems{{{A}}}": "2x50",
            f"nodewise_policies_with_problems{{{B}}}": "2x50",
        },
        _JOB,
        "2 policies or nodes with GPUs have parts that nodewise cannot use. Pods of such a policy are rejected.",
    ),
    AlertCase("NodewisePolicyInvalid", {f"nodewise_policies_with_problems{{{A}}}": "2x24 0x20"}),
    AlertCase(
        "NodewiseRuleSuspended",
        {f"nodewise_rules_suspended{{{A}}}": "1x50", f"nodewise_leading{{{A}}}": "1x50"},
        _JOB,
        "1 rules lost the values of more than half of their nodes at once. Their last verdicts stay in effect.",
    ),
    AlertCase(
        "NodewiseRuleSuspended",
        {
            f"nodewise_rules_suspended{{{A}}}": "1x50",
            f"nodewise_leading{{{A}}}": "0x50",
            f"nodewise_rules_suspended{{{B}}}": "0x50",
            f"nodewise_leading{{{B}}}": "1x50",
        },
    ),
    AlertCase(
        "NodewiseLabelsNotWritten",
        {f"nodewise_nodes_to_label{{{A}}}": "4 6 4x48", f"nodewise_leading{{{A}}}": "1x50"},
        _JOB,
        "For 15 minutes at least 4 nodes have had labels that differ from those of their policies. The API server"
        " refuses the labels, or nodewise writes fewer than policies change.",
    ),
    AlertCase(
        "NodewiseLabelsNotWritten",
        {f"nodewise_nodes_to_label{{{A}}}": "4x24 0 4x20", f"nodewise_leading{{{A}}}": "1x50"},
    ),
    AlertCase(
        "NodewisePolicySteppedBack",
        {f"nodewise_policies_stepped_back{{{A}}}": "0x29 1x20", f"nodewise_leading{{{A}}}": "1x50"},
        _JOB,
        "1 policies exceeded a limit of their guard. They only observe, so that pods are placed without them.",
    ),
    AlertCase(
        "NodewisePolicySteppedBack",
        {f"nodewise_policies_stepped_back{{{A}}}": "1x50", f"nodewise_leading{{{A}}}": "0x50"},
    ),
    AlertCase(
        "NodewiseNoNodeLeft",
        {f"nodewise_policies_without_nodes{{{A}}}": "0x10 2x40", f"nodewise_leading{{{A}}}": "1x50"},
        _JOB,
        "2 policies reject every node for some of their pods, alone or together. New pods of these policies stay"
        " pending.",
    ),
    AlertCase(
        "NodewiseNoNodeLeft",
        {
            f"nodewise_policies_without_nodes{{{A}}}": "2x50",
            f"nodewise_leading{{{A}}}": "0x50",
            f"nodewise_policies_without_nodes{{{B}}}": "0x50",
            f"nodewise_leading{{{B}}}": "1x50",
        },
    ),
    AlertCase(
        "NodewisePodsWaiting",
        {f"nodewise_pods_waiting{{{A}}}": "0x5 3x50", f"nodewise_leading{{{A}}}": "1x50"},
        _JOB,
        "For 15 minutes there have been pods without a node that policies or agents of nodewise reject, 3 now.",
    ),
    AlertCase(
        "NodewisePodsWaiting",
        {
            f"nodewise_pods_waiting{{{A}}}": "0x50",
            f"nodewise_native_pods_waiting{{{A}}}": "7x50",
            f"nodewise_leading{{{A}}}": "1x50",
        },
        _JOB,
        "For 15 minutes there have been pods without a node that policies or agents of nodewise reject, 7 now.",
    ),
    AlertCase(
        "NodewisePodsWaiting",
        {f"nodewise_native_pods_waiting{{{A}}}": "7x24 0x20", f"nodewise_leading{{{A}}}": "1x50"},
    ),
    AlertCase(
        "NodewiseLabelConflict",
        {f"nodewise_label_conflicts{{{A}}}": "2x50", f"nodewise_leading{{{A}}}": "1x50"},
        _JOB,
        "2 policies have a node label that another field manager owns, that the API server refuses, or that another"
        " policy sets to another value. nodewise does not change it.",
    ),
    AlertCase(
        "NodewiseLabelConflict",
        {
            f"nodewise_label_conflicts{{{A}}}": "2x50",
            f"nodewise_leading{{{A}}}": "0x50",
            f"nodewise_label_conflicts{{{B}}}": "0x50",
            f"nodewise_leading{{{B}}}": "1x50",
        },
    ),
    AlertCase(
        "NodewiseAllocationRecordFull",
        {f"nodewise_gpu_fullest_record_share{{{A}}}": "0.95x50"},
        _JOB,
        "The largest allocation record of a node uses 95% of the size that the API server accepts. A full record"
        " accepts no further pods with GPUs.",
    ),
    AlertCase("NodewiseAllocationRecordFull", {f"nodewise_gpu_fullest_record_share{{{A}}}": "0.85x50"}),
    AlertCase(
        "NodewiseCertificateExpiresSoon",
        {f'nodewise_tls_certificate_expires_seconds{{{A}, certificate="serving"}}': f"{3 * 86400}x200"},
        {**_JOB, "certificate": "serving"},
        "The certificate serving expires in 2d 22h 0m 0s.",
        at="2h",
    ),
    AlertCase(
        "NodewiseCertificateExpiresSoon",
        {f'nodewise_tls_certificate_expires_seconds{{{A}, certificate="serving"}}': f"{30 * 86400}x200"},
        at="2h",
    ),
]
