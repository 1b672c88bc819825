"""A Node object, and the CPU manager's commands for it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cpu_tests.conformance import case_cpu_topologies
from nodewise.kube.kubeconfig import KubeOptions
from nodewise_cpu import cmk_names, configmap_store, pool_allocations
from nodewise_cpu.cluster.blocking_client import BlockingApiClient
from nodewise_cpu.pool_allocations import Allocations
from tests import forked_commands
from tests.cluster import child_processes, kubernetes_objects
from tests.cluster.api_client import Object
from tests.cluster.api_user_kubeconfigs import User
from tests.cluster.namespace_sandboxes import Sandbox

NODEWISE = Path(sys.executable).parent / "nodewise"
GONE = 99_999_999
"""The id of no process: ids are at most 2^22."""


class CpuNode:
    """A Node object with a sysfs tree, and the commands for it with the rights of a user."""

    def __init__(self, sandbox: Sandbox, folder: Path) -> None:
        self.sandbox = sandbox
        self.name = f"cpu-{child_processes.number()}"
        self.folder = folder
        sandbox.nodes(kubernetes_objects.node(self.name))
        for path, text in case_cpu_topologies.texts("T8").items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)

    @property
    def path(self) -> str:
        return f"/api/v1/nodes/{self.name}"

    @property
    def config_map(self) -> str:
        return f"/api/v1/namespaces/{self.sandbox.namespace}/configmaps/{cmk_names.config_map(self.name)}"

    def now(self) -> Object:
        return self.sandbox.api.get(self.path)

    def run(self, *arguments: object, user: User | None = None) -> subprocess.CompletedProcess[str]:
        command, *options = arguments
        words = self._words(command, "--node-name", self.name, *options, user=user)
        return forked_commands.run([forked_commands.NODEWISE, *words], env={"PATH": os.environ["PATH"]})

    def start(self, command: object, *options: object, user: User | None = None) -> subprocess.Popen[str]:
        """Starts a command for this node."""
        return self.start_of(command, "--node-name", self.name, *options, user=user)

    def start_of(self, command: object, *options: object, user: User | None = None) -> subprocess.Popen[str]:
        """Starts a command for the whole cluster."""
        return subprocess.Popen(
            [NODEWISE, *self._words(command, *options, user=user)],
            env={"PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _words(self, command: object, *options: object, user: User | None) -> list[str]:
        user = user or self.sandbox.plane.admin
        place = ["--kubeconfig", user.kubeconfig, "--namespace", self.sandbox.namespace]
        return ["cpu", *map(str, [command, *place, *options])]

    def answered(self, *arguments: object) -> Any:
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    def init(self, exclusive: int = 2, *options: object) -> subprocess.CompletedProcess[str]:
        return self.run("init", "--sysfs", self.folder, "--num-exclusive-cores", exclusive, *options)

    def store(self, allocations: Allocations) -> None:
        """Overwrites the ConfigMap of the node without a check for conflicts, as an older program does."""
        texts = configmap_store.format_config_map_data(allocations)
        patch = {
            "metadata": {"annotations": {pool_allocations.IDENTITIES: texts.identities}},
            "data": {"config": texts.config},
        }
        self.sandbox.api.patch(self.config_map, patch)

    def stored(self) -> Allocations:
        config_map = self.sandbox.api.get(self.config_map)
        identities = (config_map["metadata"].get("annotations") or {}).get(pool_allocations.IDENTITIES, "{}")
        return configmap_store.parse_config_map_data(
            configmap_store.ConfigMapTexts(config_map["data"]["config"], identities)
        )


@contextmanager
def requests(user: User) -> Iterator[BlockingApiClient]:
    with BlockingApiClient(
        KubeOptions(kubeconfig=str(user.kubeconfig), kube_qps=1000, kube_burst=1000)
    ) as opened:
        yield opened
