"""Properties of mutations: they are idempotent and create no duplicates, and any input gets a response."""

import base64
import copy
import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from cpu_tests.unit.webhook.json_patch import applied
from nodewise.base.errors import BadInput, BadSettings
from nodewise_cpu import cmk_names
from nodewise_cpu.webhook import pod_mutation
from nodewise_cpu.webhook.pod_mutation import Mutations

WORDS = st.sampled_from(["a", "b", "name", "env", "spec", "x/y", "~", "volumeMounts", ""])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats(-2, 2) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=4),
    max_leaves=20,
)
NAMES = ["a", "b", "cmk-install-dir", "CMK_NUM_CORES", "CMK_PROC_FS"]
AMOUNTS = st.sampled_from(["0", "1", "2", 3, "1k"])
RESOURCES = st.none() | st.fixed_dictionaries(
    {},
    optional={
        part: st.none()
        | st.dictionaries(
            st.sampled_from(["cpu", cmk_names.EXCLUSIVE_CORES, cmk_names.NON_ISOLCPUS_CORES]),
            AMOUNTS,
            max_size=3,
        )
        for part in ("requests", "limits")
    },
)


def listed(key: str, **more: Any) -> st.SearchStrategy[Any]:
    """A list whose entries have unique values of `key`, or None."""
    values = [*NAMES, "/opt/bin"] if key == "mountPath" else NAMES
    entry = st.fixed_dictionaries({key: st.sampled_from(values), **more})
    return st.none() | st.lists(entry, max_size=4, unique_by=lambda entry: entry[key])


ENV = listed("name", value=st.sampled_from(["1", "x"]))
MOUNTS = listed("mountPath", name=st.sampled_from(NAMES))
CONTAINER = st.fixed_dictionaries(
    {"name": st.sampled_from(["one", "two"])},
    optional={"env": ENV, "volumeMounts": MOUNTS, "resources": RESOURCES},
)
ANNOTATIONS = st.none() | st.dictionaries(
    st.sampled_from(["a", cmk_names.MUTATE, cmk_names.INJECTED]),
    st.sampled_from(["true", "1", "no"]),
    max_size=3,
)
PODS = st.fixed_dictionaries(
    {
        "spec": st.fixed_dictionaries(
            {"containers": st.lists(CONTAINER, min_size=1, max_size=3)},
            optional={
                "initContainers": st.none() | st.lists(CONTAINER, max_size=2),
                "volumes": listed("name"),
                "tolerations": st.none() | st.lists(st.just({"operator": "Exists"}), max_size=1),
            },
        )
    },
    optional={"metadata": st.none() | st.fixed_dictionaries({}, optional={"annotations": ANNOTATIONS})},
)
PER_CONTAINER = st.fixed_dictionaries(
    {}, optional={"env": ENV, "volumeMounts": MOUNTS, "resources": RESOURCES}
)
PER_POD = st.fixed_dictionaries(
    {},
    optional={
        "metadata": st.fixed_dictionaries({}, optional={"annotations": ANNOTATIONS}),
        "spec": st.fixed_dictionaries({}, optional={"volumes": listed("name"), "serviceAccountName": WORDS}),
    },
)
MUTATIONS = st.just(pod_mutation.default_mutations()) | st.builds(Mutations, PER_POD, PER_CONTAINER)
LISTS = (("env", "name"), ("volumeMounts", "mountPath"))


def encoded(pod: Any) -> bytes:
    return json.dumps(pod).encode()


def patch_of(pod: Any, mutations: Mutations) -> list[pod_mutation.Operation]:
    """The patch of a pod, through a review."""
    request = {"uid": "7", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": pod}
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    response = json.loads(pod_mutation.respond_to_review(encoded(body), lambda: mutations).body)["response"]
    assert response["uid"] == "7"
    assert response["allowed"]
    return json.loads(base64.b64decode(response["patch"])) if "patch" in response else []


@given(JSON, JSON)
def test_a_patch_makes_one_value_of_another(before: Any, after: Any) -> None:
    operations = list(pod_mutation.json_patch(before, after))
    assert encoded(applied(operations, before)) == encoded_like(after, applied(operations, before))


def encoded_like(value: Any, other: Any) -> bytes:
    """The encoding of the other value, which is equal except for the order of keys."""
    assert value == other
    return encoded(other)


@given(JSON, JSON)
def test_merging_is_idempotent(held: Any, given_: Any) -> None:
    before = copy.deepcopy(held)
    try:
        once = pod_mutation.merge_json(held, given_)
        twice = pod_mutation.merge_json(once, given_)
    except BadSettings:
        return
    assert twice is once
    assert held == before


@given(PODS, MUTATIONS)
def test_a_mutated_pod_is_not_mutated_again(pod: Any, mutations: Mutations) -> None:
    mutated = applied(patch_of(pod, mutations), pod)
    assert patch_of(mutated, mutations) == []


@given(PODS, MUTATIONS)
def test_mutations_create_no_duplicates(pod: Any, mutations: Mutations) -> None:
    spec = applied(patch_of(pod, mutations), pod)["spec"]
    named = [("volumes", "name", spec)]
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        named += [(field, key, container) for field, key in LISTS]
    for field, key, holder in named:
        values = [entry[key] for entry in holder.get(field) or ()]
        assert len(values) == len(set(values)), field


@given(PODS, MUTATIONS)
def test_only_containers_that_request_cores_get_their_number(pod: Any, mutations: Mutations) -> None:
    operations = patch_of(pod, mutations)
    if not pod_mutation.is_mutation_requested(encoded(pod)):
        assert operations == []
        return
    spec = applied(operations, pod)["spec"]
    for container in (*spec["containers"], *(spec.get("initContainers") or ())):
        amounts = container.get("resources") or {}
        sums = [
            (amounts.get(part) or {}).get(cmk_names.EXCLUSIVE_CORES, 0) for part in ("requests", "limits")
        ]
        if any(str(amount) not in ("0", "") for amount in sums):
            (number,) = [
                variable for variable in container["env"] if variable["name"] == pod_mutation.NUM_CORES
            ]
            assert isinstance(number["value"], str)


@given(st.data())
def test_every_review_gets_an_answer_whatever_is_in_it(data: st.DataObject) -> None:
    pod = data.draw(PODS)
    request = {"uid": "7", "kind": {"kind": "Pod"}, "operation": "CREATE", "object": pod}
    body: Any = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}
    for _ in range(data.draw(st.integers(0, 2))):
        body = corrupted(body, data)
    try:
        answer = pod_mutation.respond_to_review(encoded(body), pod_mutation.default_mutations)
    except BadInput:
        return
    response = json.loads(answer.body)["response"]
    assert response["uid"] == body["request"]["uid"]
    assert response["allowed"] or response["status"]["message"]


def corrupted(value: Any, data: st.DataObject) -> Any:
    """The value with one part replaced."""
    if not isinstance(value, dict | list) or not value or data.draw(st.integers(0, 5)) == 0:
        return data.draw(JSON)
    if isinstance(value, list):
        index = data.draw(st.integers(0, len(value) - 1))
        return [*value[:index], corrupted(value[index], data), *value[index + 1 :]]
    key = data.draw(st.sampled_from(sorted(value)))
    if data.draw(st.booleans()):
        return value | {key: corrupted(value[key], data)}
    return {name: value[name] for name in value if name != key}
