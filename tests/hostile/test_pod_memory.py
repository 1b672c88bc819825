"""The memory that a tenant's pods take in each store of pods, whatever is in them: at most some kilobytes each."""

import gc
import tracemalloc
from collections.abc import Callable
from typing import Any, Final

import msgspec
import pytest

from nodewise import agents
from nodewise.agent import AgentKind
from nodewise.agents.gpu.options import GpuOptions
from nodewise.engine import object_feed
from nodewise.engine.agent_chain import AgentChain
from nodewise.kube.reflector import ObjectDecoder, ReflectorTarget
from nodewise.kube.resource_kinds import PODS
from nodewise.observe.metrics_registry import MetricsRegistry
from nodewise.policies import native_mode_pods
from nodewise.policies.controller import policy_guard as guarded_pods
from nodewise.policies.controller.policy_guard import WaitingPod
from nodewise.policies.native_mode_pods import UnscheduledPod
from nodewise.policies.selected_pods import ListedPod, PodLabelGroups
from nodewise.policies.verdict_labels import label_key
from nodewise_scorers.annotator import AnnotatorOptions
from nodewise_scorers.annotator import annotator as annotator_controller
from nodewise_scorers.pigeon.options import PigeonOptions

Object = dict[str, Any]

POD_COUNT: Final = 4
MOST_BYTES_PER_POD: Final = 80_000
"""More than the largest pod on a node takes that is stored: 64 KiB, and the objects around it."""
MOST_BYTES_PER_PENDING_POD: Final = 36_000
"""More than the largest pending pod takes: 16 KiB of JSON, or 8 KiB, and the objects."""
REJECTION: Final = (
    "0/1 nodes are available: 1 placement policy hostile/policy: heat above 80,"
    " 1 node(s) didn't match Pod's node affinity/selector."
)
DEVICE: Final = {"gpu.intel.com/i915": "1"}


def _kinds() -> list[AgentKind]:
    return [agents.load(name) for name in ("telemetry", "gpu", "safe", "congestion", "pigeon", "learned")]


def _stores() -> dict[str, ReflectorTarget[Any]]:
    """Every store of pods of the extender and the controller, by what needs it."""
    options = {
        "gpu": {"gpu": GpuOptions()},
        "gpu with fragmentation": {"gpu": GpuOptions(gpu_placement="fragmentation")},
        "pigeon": {"pigeon": PigeonOptions(pigeon_usage="pods")},
        "learned": {"learned": agents.load("learned").options()},
    }
    watched = {
        store: next(
            watched for watched in agents.load(name).watched(settings) if watched.resource.plural == "pods"
        )
        for store, by_name in options.items()
        for name, settings in by_name.items()
    }
    watched["annotator"] = annotator_controller.watched(AnnotatorOptions(annotate="allocation"))[0]
    targets = {
        store: ReflectorTarget(PODS, watched.type, keep=watched.keep) for store, watched in watched.items()
    }
    return targets | {
        "waiting pods": _waiting_pods(),
        "pods of guards": ReflectorTarget(PODS, WaitingPod, keep=guarded_pods.keep_pod),
        "pods of native mode": ReflectorTarget(PODS, UnscheduledPod, keep=native_mode_pods.keep_pod),
        "selected pods": ReflectorTarget(PODS, ListedPod, keep=PodLabelGroups().keep),
    }


def _waiting_pods() -> ReflectorTarget[Any]:
    kinds = _kinds()
    chain = AgentChain([kind.agent(kind.options()) for kind in kinds])
    return object_feed.waiting_pods_target(kinds, chain)


STORES: Final = _stores()


def _containers(count: int, resources: Callable[[int], Object]) -> list[Object]:
    return [{"name": f"c{number}", "resources": resources(number)} for number in range(count)]


def _amounts(count: int, of: int = 0) -> Object:
    return {f"gpu.intel.com/x{of:03}{number:05}{'y' * 40}": "1" for number in range(count)}


def _with_devices(amounts: Object) -> Object:
    return {"limits": DEVICE | amounts, "requests": DEVICE | amounts}


ATTACKS: Final[dict[str, Object]] = {
    "annotations": {"metadata": {"annotations": {f"note-{n}": "x" * 1000 for n in range(250)}}},
    "an annotation that is read": {"metadata": {"annotations": {"gas-allow": "card0," * 40_000}}},
    "labels": {
        "metadata": {
            "labels": {"telemetry-policy": "policy"} | {f"label-{n}": "x" * 63 for n in range(12_000)}
        }
    },
    "owners": {
        "metadata": {
            "ownerReferences": [
                {"kind": "Job", "name": "x" * 200, "uid": str(number)} for number in range(4000)
            ]
        }
    },
    "requirements for node labels": {
        "spec": {
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": label_key(f"{number:036}"), "operator": "In", "values": ["ok"]}
                                    for number in range(8000)
                                ]
                            }
                        ]
                    }
                }
            }
        }
    },
    "policies in a condition": {
        "status": {
            "conditions": [
                {
                    "type": "PodScheduled",
                    "status": "False",
                    "reason": "Unschedulable",
                    "message": "".join(f"placement policy hostile/{number}: x, " for number in range(30_000)),
                }
            ]
        }
    },
    "containers": {"spec": {"containers": _containers(8000, lambda _: {})}},
    "init containers": {"spec": {"initContainers": _containers(6000, lambda _: _with_devices({}))}},
    "containers with different devices": {
        "spec": {"containers": _containers(60, lambda number: _with_devices(_amounts(60, number)))}
    },
    "resources": {"spec": {"containers": _containers(1, lambda _: _with_devices(_amounts(8000)))}},
    "other resources": {
        "spec": {
            "containers": _containers(
                1, lambda _: _with_devices({f"example.com/x{number}": "1" for number in range(8000)})
            )
        }
    },
    "states of containers": {
        "status": {
            "containerStatuses": [
                {
                    "name": f"c{number}",
                    "restartCount": number,
                    "state": {"running": {"startedAt": str(number)}},
                }
                for number in range(8000)
            ]
        }
    },
}


def _pod(number: int, attack: Object, *, bound: bool) -> bytes:
    own = {"containers": _containers(1, lambda _: _with_devices({}))}
    if bound:
        own["nodeName"] = f"node-{number}"
    labels = {"telemetry-policy": "policy"}
    metadata = {"name": f"pod-{number}", "namespace": "hostile", "uid": f"uid-{number}", "labels": labels}
    conditions = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": REJECTION}
    ]
    return msgspec.json.encode(
        {
            "metadata": metadata | attack.get("metadata", {}),
            "spec": own | attack.get("spec", {}),
            "status": {"phase": "Running" if bound else "Pending", "conditions": conditions}
            | attack.get("status", {}),
        }
    )


@pytest.mark.parametrize("bound", [True, False], ids=["on nodes", "pending"])
@pytest.mark.parametrize("attack", ATTACKS)
@pytest.mark.parametrize("store", STORES)
def test_a_pod_takes_little_memory_whatever_is_in_it(store: str, attack: str, bound: bool) -> None:
    bodies = [_pod(number, ATTACKS[attack], bound=bound) for number in range(POD_COUNT + 1)]
    target = STORES[store]
    decoder: ObjectDecoder[Any] = ObjectDecoder("Pod", target.type, MetricsRegistry(), target.keep)
    decoder.add(msgspec.Raw(bodies[0]))
    tracemalloc.start()
    try:
        for body in bodies[1:]:
            decoder.add(msgspec.Raw(body))
        decoder.finish()
        gc.collect()  # Python keeps some freed tuples for reuse until then
        held_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held_bytes < POD_COUNT * (MOST_BYTES_PER_POD if bound else MOST_BYTES_PER_PENDING_POD)
