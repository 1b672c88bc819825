"""Commands of nodewise that only read a cluster, run as a user with the rights for that."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests import forked_commands
from tests.cluster import api_user_kubeconfigs, extender_process, kubernetes_objects, processes
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The command without any configuration of this machine's user."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return forked_commands.run([forked_commands.NODEWISE, *arguments], env=environment, input=stdin)


def parse_report(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    """The JSON that a command printed."""
    assert done.returncode == code, f"{done.returncode}: {done.stderr}\n{done.stdout}"
    return json.loads(done.stdout)


def reader(
    plane: ControlPlane, rules: list[Object] | None = None, namespace: str = "", service_namespace: str = ""
) -> User:
    """A user with the rights that ship for looking, or with these; the Service of the replicas is where named."""
    everywhere, inside = extender_process.manifest("reader.yaml")
    user = plane.user(f"reader-{processes.number()}", rules or everywhere["rules"], namespace)
    if service_namespace:
        api_user_kubeconfigs.grant(plane.api, user.name, inside["rules"], service_namespace)
    return user


def policy(namespace: str, *rules: Object, name: str = "pol") -> Object:
    """Avoids the nodes that break these rules, and prefers the coolest."""
    strategies = {
        "dontschedule": {"rules": list(rules)},
        "scheduleonmetric": {"rules": [extender_process.COOLEST]},
    }
    return {
        "apiVersion": "telemetry.intel.com/v1alpha1",
        "kind": "TASPolicy",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"strategies": strategies},
    }


def policy_file(folder: Path, namespace: str, *rules: Object) -> Path:
    file = folder / "policy.json"
    file.write_text(json.dumps(policy(namespace, *rules)))
    return file


def warm(sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> None:
    """Nodes a to d, of which a and d are too hot, b is the coolest."""
    extender_process.define(sandbox.api)
    sandbox.nodes(*kubernetes_objects.nodes("a b c d"))
    metrics.set("heat", {"a": 90, "b": 30, "c": 60, "d": "84500m"})
    sandbox.create(policy(sandbox.namespace, extender_process.HOT))
