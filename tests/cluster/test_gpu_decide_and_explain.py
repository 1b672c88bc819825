"""GPU allocations in `decide --cluster` with read-only rights, and in `explain` of real decisions."""

from pathlib import Path

from tests.cluster import gpu_cluster, read_only_commands
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import rule
from tests.cluster.controlplane import ControlPlane
from tests.cluster.namespace_sandboxes import Sandbox, wait
from tests.cluster.read_only_commands import parse_report, run
from tests.cluster.test_decide import decide_command

SHORT = "card0 has 400 gpu.intel.com/millicores left, 600 wanted: 200 too little"


def node(name: str = "g1") -> Object:
    return gpu_cluster.node(name, cards=2, shares=10, millicores=1000)


def running(name: str, cards: str, on: str = "g1") -> Object:
    """A pod of the older system: its GPUs are in an annotation, and no allocation record names it."""
    made = gpu_cluster.pod(name, millicores=600)
    made["metadata"]["annotations"] = {gpu_cluster.CARDS: cards}
    return made | {"spec": made["spec"] | {"nodeName": on}}


def test_running_pods_hold_their_cards_in_a_decision(plane: ControlPlane, sandbox: Sandbox) -> None:
    """The command needs only the rights to list nodes, pods and policies."""
    sandbox.nodes(node())
    sandbox.pods(running("a", "card0"), running("b", "card1"))
    sandbox.pods(gpu_cluster.pod("large", millicores=600), gpu_cluster.pod("small", millicores=300))
    decisions = {
        decision["pod"].partition("/")[2]: decision
        for decision in parse_report(run(*decide_command(plane, sandbox, "-o", "json")), 3)["decisions"]
    }
    assert set(decisions) == {"large", "small"}
    assert (decisions["large"]["feasible"], decisions["large"]["details"]) == ([], {"g1": {"gpu": SHORT}})
    assert decisions["small"]["details"] == {"g1": {"gpu": "main: card0"}}
    table = run(*decide_command(plane, sandbox, "--running"))
    assert "0 running where a policy rejects them, 2 where they may stay" in table.stdout
    assert f"(g1: {SHORT})" in table.stdout


def test_the_pods_of_other_namespaces_hold_cards_too(plane: ControlPlane, sandbox: Sandbox) -> None:
    sandbox.nodes(node())
    sandbox.pods(gpu_cluster.pod("new", millicores=600))
    other = running("elsewhere", "card0")
    other["metadata"]["namespace"] = "default"
    sandbox.create(other)
    (decision,) = parse_report(run(*decide_command(plane, sandbox, "-o", "json")))["decisions"]
    assert decision["details"] == {"g1": {"gpu": "main: card1"}}


def test_an_explanation_ends_with_the_cards(plane: ControlPlane, sandbox: Sandbox, tmp_path: Path) -> None:
    sandbox.nodes(node())
    with (
        gpu_cluster.extender(plane, tmp_path) as served,
        plane.start_scheduler({"extenders": [gpu_cluster.entry(served)]}),
    ):
        for name in ("one", "two"):
            sandbox.pods(gpu_cluster.pod(name, millicores=600))
            sandbox.expect_bound(name)
        sandbox.pods(gpu_cluster.pod("three", millicores=600))
        wait("the third pod has a decision", lambda: served.decisions("three") or None)
        kubeconfig = read_only_commands.reader(plane, [rule("get", "pods")]).kubeconfig
        arguments = [f"--kubeconfig={kubeconfig}", "--server", served.health]

        def explanation(pod: str) -> str:
            return run("explain", f"{sandbox.namespace}/{pod}", *arguments).stdout.rstrip()

        # nodewise records the bind after the pod is bound
        end = "kube-scheduler chose g1; bound, with main: card1"
        wait("the bind is explained", lambda: explanation("two").endswith(end) or None)
        assert "is on g1: the one node asked about passes" in explanation("two")
        waiting = explanation("three")
        assert "waits: the one node asked about is rejected" in waiting
        assert SHORT in waiting
