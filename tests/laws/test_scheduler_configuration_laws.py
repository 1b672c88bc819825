"""Laws of merging entries into a configuration of kube-scheduler, on configurations of pieces that users write."""

from typing import Any

import hypothesis.strategies as st
import yaml
from hypothesis import given

from nodewise.install import scheduler_configuration_file
from nodewise.install.scheduler_configuration_file import RenderContext
from nodewise.install.scheduler_versions import SchedulerVersion

HEADER = ("apiVersion: kubescheduler.config.k8s.io/v1", "kind: KubeSchedulerConfiguration")
PIECES = (
    "parallelism: 8   # cores",
    "leaderElection: {leaderElect: true, resourceName: second}",
    "clientConnection:\n  kubeconfig: /etc/kubernetes/scheduler.conf\n  qps: 200",
    (
        "profiles:\n- schedulerName: default-scheduler\n- schedulerName: packed\n"
        "  plugins:\n    score:\n      disabled:\n      - name: '*'"
    ),
    'profiles: [{schedulerName: "a", percentageOfNodesToScore: 30}]',
    "podMaxBackoffSeconds: 20\n\n# the end of the backoff\n",
    "enableProfiling: no",
)
EXTENDERS = (
    "extenders:",
    "extenders: []",
    "extenders: ~",
    "extenders:\n- urlPrefix: http://127.0.0.1:8888/other\n  prioritizeVerb: score\n  weight: 2",
    (
        "extenders:\n  # ours\n  - {urlPrefix: 'http://127.0.0.1:8888', filterVerb: filter}\n  - urlPrefix: http://127.0.0.1:9\n"
        "    prioritizeVerb: p\n    weight: 1"
    ),
    'extenders: [{urlPrefix: "https://nodewise.nodewise.svc:9001/scheduler", filterVerb: f, enableHTTPS: true}]',
)
CONTEXT = RenderContext(
    SchedulerVersion(36), "/etc/kubernetes/scheduler.conf", "/host/certs/ca.crt", insecure=False
)


@st.composite
def configuration_texts(draw: st.DrawFn) -> str:
    pieces = draw(st.lists(st.sampled_from(PIECES), unique_by=lambda piece: piece.partition(":")[0]))
    extenders = draw(st.lists(st.sampled_from(EXTENDERS), max_size=1))
    lines = draw(st.permutations([*HEADER, *pieces, *extenders]))
    text = draw(st.sampled_from(["", "---\n", "# managed\n"])) + "\n".join(lines)
    text += draw(st.sampled_from(["", "\n", "\n\n"]))
    return text.replace("\n", draw(st.sampled_from(["\n", "\r\n"])))


@given(configuration_texts())
def test_merged_configuration_keeps_all_fields_and_lines_of_the_user(text: str) -> None:
    entries: list[dict[str, Any]] = [
        {
            "urlPrefix": "https://nodewise.nodewise.svc:9001/scheduler",
            "filterVerb": "filter",
            "enableHTTPS": True,
        }
    ]
    merged = scheduler_configuration_file.add_extender_entries(text.encode(), "own.yaml", entries, CONTEXT)
    before, after = yaml.load(text, yaml.CSafeLoader), yaml.load(merged.data, yaml.CSafeLoader)
    assert {**after, "extenders": None} == {**before, "extenders": None}
    others = [entry for entry in before.get("extenders") or [] if "nodewise" not in entry["urlPrefix"]]
    assert [entry for entry in after["extenders"] if "nodewise" not in entry["urlPrefix"]] == others
    assert len(after["extenders"]) == len(others) + 1
    comments = [line for line in text.splitlines() if "#" in line and "extenders" not in line]
    assert [line for line in comments if line not in merged.data.decode().splitlines()] == []
    again = scheduler_configuration_file.add_extender_entries(merged.data, "own.yaml", entries, CONTEXT)
    assert again.data == merged.data
