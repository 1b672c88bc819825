"""Generated clusters with devices of DRA drivers, of device plugins, and of both, with pods that request them.

Many clusters share an API server: the nodes of a cluster have its label, and its pods select them. DeviceClasses and
the resource profile apply to the whole API server, so all clusters of a batch have the same ones.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Final, NamedTuple

from tests.cluster import device_objects, kubernetes_objects
from tests.cluster.api_client import Object

LABEL: Final = "cluster"
"""The node label with the name of the cluster."""
DRIVERS: Final = ("gpu.example.com", "other.example.com")
COUNTS: Final[Mapping[str, tuple[str, ...]]] = {
    "generic": ("nvidia.com/gpu",),
    "nvidia": ("nvidia.com/gpu",),
    "amd": ("amd.com/gpu",),
    "intel": ("gpu.intel.com/xe", "gpu.intel.com/i915"),
}
"""By resource profile, the resources that count GPUs."""
OTHER_RESOURCE: Final[Mapping[str, str]] = {
    "generic": "nvidia.com/mig-1g.5gb",
    "nvidia": "nvidia.com/gpumem",
    "amd": "amd.com/gpumem",
    "intel": "gpu.intel.com/vfio",
}
"""By resource profile, another resource with the prefix."""
GPU_LABELS: Final[Mapping[str, Sequence[Mapping[str, str]]]] = {
    "generic": ({"nvidia.com/gpu.count": "{count}"},),
    "nvidia": (
        {
            "nvidia.com/gpu.count": "{count}",
            "nvidia.com/gpu.product": "A100",
            "nvidia.com/gpu.memory": "40960",
        },
        {"nvidia.com/gpu.present": "true", "nvidia.com/gpu.memory": "none"},
    ),
    "amd": ({"amd.com/gpu.family": "AI"}, {"beta.amd.com/gpu.product-name": "MI300"}),
    "intel": ({"gpu.intel.com/gpu-numbers": "{numbers}"}, {"gpu.intel.com/device.count": "{count}"}),
}
"""By resource profile, labels of its labeller, or of an older one, which remain after the move to DRA."""


class GeneratedCluster(NamedTuple):
    """A cluster: its nodes by name, its other objects in their order of creation, and its pods."""

    name: str
    nodes: Mapping[str, Object]
    kinds: Mapping[str, str]
    """By node, one of NODE_KINDS."""
    objects: Sequence[Object]
    """Slices and claims."""
    pods: Sequence[Object]


class ClusterBatch(NamedTuple):
    """The clusters of one API server."""

    profile: str
    classes: Sequence[Object]
    late_classes: Sequence[Object]
    """Those that appear after kube-scheduler has seen the pods."""
    clusters: Sequence[GeneratedCluster]


def batch(seed: int, count: int) -> ClusterBatch:
    """A batch of clusters, which the seed determines. Four successive seeds have the four profiles."""
    random = Random(seed)
    profile = list(COUNTS)[seed % len(COUNTS)]
    classes = _classes(random, profile)
    names = [item["metadata"]["name"] for item in classes]
    clusters = [
        _ClusterGenerator(random, f"c{seed}-{number}", profile, names).cluster() for number in range(count)
    ]
    late = random.randint(0, 1)
    return ClusterBatch(profile, classes[late:], classes[:late], clusters)


def _classes(random: Random, profile: str) -> list[Object]:
    """A class per driver, of which one or more name an extended resource."""
    counting, other = random.choice(COUNTS[profile]), OTHER_RESOURCE[profile]
    example = device_objects.device_class(DRIVERS[0], extended_resource=counting)
    resource_of_other = random.choice(["", counting, other, COUNTS[profile][-1]])
    second = device_objects.device_class(DRIVERS[1], extended_resource=resource_of_other)
    large = device_objects.device_class(
        "large",
        f"device.driver == '{DRIVERS[0]}'",
        f"device.capacity['{DRIVERS[0]}'].memory.compareTo(quantity('40Gi')) >= 0",
    )
    return [example, second, large]


class _ClusterGenerator:
    def __init__(self, random: Random, name: str, profile: str, classes: Sequence[str]) -> None:
        self._random = random
        self._name = name
        self._profile = profile
        self._classes = classes
        self._counting = COUNTS[profile]
        self._objects: list[Object] = []
        self._nodes: dict[str, Object] = {}
        self._kinds: dict[str, str] = {}

    def cluster(self) -> GeneratedCluster:
        """A cluster with one to five nodes and pods for about all of their devices."""
        for number in range(self._random.randint(2, 6)):
            name, kind = f"{self._name}-n{number}", self._random.choice(list(NODE_KINDS))
            self._kinds[name] = kind
            self._nodes[name] = NODE_KINDS[kind](self, name)
        pods = [self._pod(f"{self._name}-p{number}") for number in range(self._random.randint(2, 8))]
        return GeneratedCluster(self._name, self._nodes, self._kinds, self._objects, pods)

    # Nodes

    def _plugin_node(self, name: str) -> Object:
        count = self._random.randint(1, 4)
        resources = {self._random.choice(self._counting): str(count)}
        labels = self._gpu_labels(count) if self._profile == "intel" else {}
        if self._profile == "intel":
            labels |= {"gpu.intel.com/gpu-numbers": ".".join(map(str, range(count)))}
        elif self._random.random() < 0.5 and self._profile != "amd":
            labels |= {"nvidia.com/gpu.count": str(count)}
        return self._node(name, labels, resources)

    def _driver_node(self, name: str) -> Object:
        self._add_slices(name, self._devices())
        if self._random.random() < 0.3:
            rule = device_objects.taint_rule(
                f"{name}-rule",
                driver=self._random.choice(DRIVERS),
                pool=name,
                device="gpu-0",
                effect=self._random.choice(["NoSchedule", "NoExecute", "None"]),
            )
            self._objects.append(rule)
        return self._node(name, self._gpu_labels(2) if self._random.random() < 0.3 else {})

    def _former_plugin_node(self, name: str) -> Object:
        """The kubelet keeps resources without a device plugin as 0, and labels remain."""
        self._add_slices(name, self._devices())
        resources = dict.fromkeys(self._random.sample(self._counting, 1), "0")
        return self._node(name, self._gpu_labels(self._random.randint(1, 9)), resources)

    def _mixed_node(self, name: str) -> Object:
        self._add_slices(name, self._devices())
        return self._plugin_node(name)

    def _network_node(self, name: str) -> Object:
        """A node that reaches devices by its labels."""
        term = {"matchExpressions": [{"key": LABEL, "operator": "In", "values": [self._name]}]}
        scope = {"nodeSelectorTerms": [term]}
        if self._random.random() < 0.5:
            devices = [device | {"nodeSelector": scope} for device in self._devices()]
            body = device_objects.resource_slice("", devices, pool=name, perDeviceNodeSelection=True)
        else:
            body = device_objects.resource_slice("", self._devices(), pool=name, nodeSelector=scope)
        self._objects.append(body)
        return self._node(name)

    def _one_pool_node(self, name: str) -> Object:
        """A node of a driver with one pool for all nodes, which counts the slices and generations of each node."""
        plain = [device for device in self._devices() if "consumesCounters" not in device]
        body = device_objects.resource_slice(
            name, plain, pool=f"{self._name}-gpus", generation=self._random.randint(1, 3)
        )
        self._objects.append(body | {"metadata": {"name": name}})
        return self._node(name)

    def _incomplete_node(self, name: str) -> Object:
        """One of two slices of the pool exists, or a complete pool has one slice of the next generation."""
        if self._random.random() < 0.5:
            self._add_slices(name, self._devices())
        more = device_objects.resource_slice(
            name, self._devices("next"), driver=DRIVERS[0], generation=2, slices=2
        )
        self._objects.append(more)
        return self._node(name)

    def _plain_node(self, name: str) -> Object:
        return self._node(name, self._gpu_labels(2) if self._random.random() < 0.2 else {})

    def _node(
        self, name: str, labels: Mapping[str, str] | None = None, resources: Mapping[str, str] | None = None
    ) -> Object:
        return kubernetes_objects.node(
            name, cpu="64", labels={LABEL: self._name, **(labels or {})}, extra=resources
        )

    def _gpu_labels(self, count: int) -> dict[str, str]:
        numbers = ".".join(map(str, range(count)))
        labels = self._random.choice(GPU_LABELS[self._profile])
        return {key: value.format(count=count, numbers=numbers) for key, value in labels.items()}

    # Devices

    def _add_slices(self, node: str, devices: Sequence[Object]) -> None:
        """The slices of a node's pools, by one driver or by two that use the same pool name."""
        drivers = self._random.choice([DRIVERS[:1], DRIVERS[:1], DRIVERS[:1], DRIVERS[1:], DRIVERS])
        for driver in drivers:
            half = len(devices) // 2
            parts = [devices[:half], devices[half:]] if half and self._random.random() < 0.3 else [devices]
            counters = self._counters(devices)
            if counters:  # a slice has devices or counters
                parts = [*parts, []]
            for number, part in enumerate(parts):
                more = {"sharedCounters": counters} if counters and not part else {}
                body = device_objects.resource_slice(
                    node, part, driver=driver, number=number, slices=len(parts), **more
                )
                if more:
                    del body["spec"]["devices"]
                self._objects.append(body)

    def _counters(self, devices: Sequence[Object]) -> list[Object]:
        if not any("consumesCounters" in device for device in devices):
            return []
        return [{"name": "gpu", "counters": {"memory": {"value": "80Gi"}}}]

    def _devices(self, prefix: str = "gpu") -> list[Object]:
        random = self._random
        count = random.randint(1, 8)
        form = random.choice(["plain", "plain", "shared", "partitions"])
        effect = random.choice(["NoSchedule", "NoExecute", "None"])
        taint = {"key": "example.com/sick", "effect": effect}
        devices = []
        for number in range(count):
            memory = random.choice(["16Gi", "80Gi"])
            more: Object = {}
            capacity: Object = {"memory": memory}
            if form == "shared":
                more["allowMultipleAllocations"] = True
                policy = {"default": "8Gi", "validRange": {"min": "1Gi", "step": "1Gi", "max": memory}}
                capacity = {"memory": {"value": memory, "requestPolicy": policy}}
            elif form == "partitions":
                consumption = {"counterSet": "gpu", "counters": {"memory": {"value": memory}}}
                more["consumesCounters"] = [consumption]
            elif random.random() < 0.2:
                more["taints"] = [taint]
            attributes = {"index": number, "uuid": f"{self._name}-{number}", "model": random.choice("ab")}
            devices.append(
                device_objects.device(f"{prefix}-{number}", attributes=attributes, capacity=capacity, **more)
            )
        return devices

    # Pods

    def _pod(self, name: str) -> Object:
        form = self._random.choice(list(_POD_FORMS))
        pod = _POD_FORMS[form](self, name)
        spec = pod["spec"] | {"nodeSelector": {LABEL: self._name}}
        return pod | {"spec": spec}

    def _extended_resource_pod(self, name: str) -> Object:
        resource = self._random.choice(self._counting)
        return kubernetes_objects.pod(name, limits={resource: str(self._random.choice([1, 1, 1, 2, 3]))})

    def _two_container_pod(self, name: str) -> Object:
        pod = self._extended_resource_pod(name)
        second = self._extended_resource_pod("second")["spec"]["containers"][0] | {"name": "second"}
        place = self._random.choice(["containers", "initContainers", "sidecar"])
        if place == "containers":
            pod["spec"]["containers"].append(second)
        elif place == "initContainers":
            pod["spec"]["initContainers"] = [second]
        else:
            pod["spec"]["initContainers"] = [second | {"restartPolicy": "Always"}]
        return pod

    def _both_counting_pod(self, name: str) -> Object:
        """One container that requests every resource that counts GPUs."""
        return kubernetes_objects.pod(name, limits=dict.fromkeys(self._counting, "1"))

    def _other_resource_pod(self, name: str) -> Object:
        resources = {OTHER_RESOURCE[self._profile]: "1"}
        if self._random.random() < 0.5:
            resources[self._random.choice(self._counting)] = "1"
        return kubernetes_objects.pod(name, limits=resources)

    def _implicit_resource_pod(self, name: str) -> Object:
        resource = f"deviceclass.resource.kubernetes.io/{self._random.choice(self._classes)}"
        pod = kubernetes_objects.pod(name, limits={resource: "1"})
        if self._random.random() < 0.3:
            pod["spec"]["containers"][0]["resources"]["limits"][self._random.choice(self._counting)] = "1"
            pod["spec"]["containers"][0]["resources"]["requests"] = pod["spec"]["containers"][0]["resources"][
                "limits"
            ]
        return pod

    def _claim_pod(self, name: str) -> Object:
        return device_objects.claiming_pod(name, self._claim(name))

    def _two_claim_pod(self, name: str) -> Object:
        """A pod with two claims, of which an init container uses one."""
        pod = device_objects.claiming_pod(name, self._claim(f"{name}-a"), self._claim(f"{name}-b"))
        (main,) = pod["spec"]["containers"]
        if self._random.random() < 0.5:
            claims = main["resources"]["claims"]
            first = main | {"name": "first", "resources": {"claims": claims[:1]}}
            pod["spec"]["initContainers"] = [first | self._random.choice([{}, {"restartPolicy": "Always"}])]
            main["resources"]["claims"] = claims[1:]
        return pod

    def _claim_and_resource_pod(self, name: str) -> Object:
        return device_objects.claiming_pod(
            name, self._claim(name), limits={self._random.choice(self._counting): "1"}
        )

    def _shared_claim_pod(self, name: str) -> Object:
        """A pod that uses a claim of the cluster that other pods use as well."""
        claim = f"{self._name}-shared"
        if not any(item["metadata"]["name"] == claim for item in self._objects):
            self._objects.append(device_objects.claim(claim))
        return device_objects.claiming_pod(name, claim)

    def _claim(self, name: str) -> str:
        random = self._random
        of_class = random.choice(self._classes)
        selector = random.choice([(), (), (f"device.attributes['{DRIVERS[0]}'].model == 'a'",)])
        fields: Object = random.choice(
            [
                {},
                {"count": 2},
                {"allocationMode": "All"},
                {"capacity": {"requests": {"memory": random.choice(["8Gi", "20Gi"])}}},
                {"adminAccess": True},
                {"tolerations": [{"key": "example.com/sick", "operator": "Exists"}]},
            ]
        )
        request = device_objects.request("gpu", *selector, device_class=of_class, **fields)
        requests = [request]
        if random.random() < 0.2:
            alternatives = [device_objects.alternative("a", device_class=of_class, count=3)]
            alternatives += [device_objects.alternative("b", device_class=random.choice(self._classes))]
            requests = [{"name": "gpu", "firstAvailable": alternatives}]
        constraints = []
        if random.random() < 0.1:
            requests.append(device_objects.request("second", device_class=of_class))
            attribute = f"{DRIVERS[0]}/model"
            constraints = [{"requests": ["gpu", "second"], "matchAttribute": attribute}]
        self._objects.append(device_objects.claim(name, *requests, constraints=constraints))
        return name


NODE_KINDS: Final[Mapping[str, Callable[[_ClusterGenerator, str], Object]]] = {
    "plugin": _ClusterGenerator._plugin_node,
    "driver": _ClusterGenerator._driver_node,
    "former plugin": _ClusterGenerator._former_plugin_node,
    "mixed": _ClusterGenerator._mixed_node,
    "network": _ClusterGenerator._network_node,
    "one pool": _ClusterGenerator._one_pool_node,
    "incomplete": _ClusterGenerator._incomplete_node,
    "plain": _ClusterGenerator._plain_node,
}
_POD_FORMS: Final[Mapping[str, Callable[[_ClusterGenerator, str], Object]]] = {
    "extended resource": _ClusterGenerator._extended_resource_pod,
    "extended resource again": _ClusterGenerator._extended_resource_pod,
    "two containers": _ClusterGenerator._two_container_pod,
    "both counting resources": _ClusterGenerator._both_counting_pod,
    "another resource": _ClusterGenerator._other_resource_pod,
    "implicit resource": _ClusterGenerator._implicit_resource_pod,
    "claim": _ClusterGenerator._claim_pod,
    "two claims": _ClusterGenerator._two_claim_pod,
    "claim and extended resource": _ClusterGenerator._claim_and_resource_pod,
    "shared claim": _ClusterGenerator._shared_claim_pod,
}
