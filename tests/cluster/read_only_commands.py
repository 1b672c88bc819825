"""Runs commands of nodewise that only read a cluster, as a user with read-only rights."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

from tests import forked_commands
from tests.cluster import api_user_kubeconfigs, child_processes, extender_process, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.controlplane import ControlPlane
from tests.cluster.fake_custom_metrics_server import FakeCustomMetricsApi
from tests.cluster.namespace_sandboxes import Sandbox


def run(*arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Runs a command without the configuration of the user who runs the tests."""
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent"}
    return forked_commands.run([forked_commands.NODEWISE, *arguments], env=environment, input=stdin)


def parse_report(done: subprocess.CompletedProcess[str], code: int = 0) -> Any:
    """The JSON output of a command, after a check of its exit code."""
    assert done.returncode == code, f"{done.returncode}: {done.stderr}\n{done.stdout}"
    return json.loads(done.stdout)


def reader(
    plane: ControlPlane, rules: list[Object] | None = None, namespace: str = "", nodewise_namespace: str = ""
) -> User:
    """A user with the shipped read-only rights or with `rules`, and with those for the namespace of the replicas."""
    everywhere, inside = extender_process.manifest("reader.yaml")
    user = plane.user(f"reader-{child_processes.number()}", rules or everywhere["rules"], namespace)
    if nodewise_namespace:
        api_user_kubeconfigs.grant(plane.api, user.name, inside["rules"], nodewise_namespace)
    return user


def policy(namespace: str, *rules: Object, name: str = "pol") -> Object:
    """A policy that rejects the nodes that break these rules, and prefers the node with the lowest heat."""
    strategies = {
        "dontschedule": {"rules": list(rules)},
        "scheduleonmetric": {"rules": [extender_process.COOLEST]},
    }
    return extender_process.tas_policy(name, strategies, namespace)


def policy_file(folder: Path, namespace: str, *rules: Object) -> Path:
    file = folder / "policy.json"
    file.write_text(json.dumps(policy(namespace, *rules)))
    return file


def warm(sandbox: Sandbox, metrics: FakeCustomMetricsApi) -> None:
    """Creates the nodes a to d and a policy. a and d are too hot; b has the lowest heat."""
    extender_process.define(sandbox.api)
    sandbox.nodes(*kubernetes_objects.nodes("a b c d"))
    metrics.set("heat", {"a": 90, "b": 30, "c": 60, "d": "84500m"})
    sandbox.create(policy(sandbox.namespace, extender_process.HOT))
