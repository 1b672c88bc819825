"""The objects that are compared: the policies of one side in place of those of the other, with the states of nodes."""

import io
from typing import Any

import msgspec

from nodewise.kube import object_files
from nodewise.policies import placement_policy_parser
from nodewise.policies.options import TelemetryOptions
from nodewise.policy_tools import policy_diff, policy_timeline

_STATUS = msgspec.Raw(b'{"mode":"Enforce"}')


def _objects(*names: str) -> Any:
    text = "".join(
        f"---\n{{apiVersion: nodewise.io/v1alpha1, kind: PlacementPolicy, metadata: {{name: {name}}}}}\n"
        for name in names
    )
    files = object_files.read(["-"], io.BytesIO(text.encode()))
    return policy_timeline.objects_of_files(files, TelemetryOptions())


def test_policies_of_new_replace_those_of_old_and_keep_statuses() -> None:
    base = _objects("cool", "other")
    policies = base["placementpolicies"]
    for key, policy in policies.items():
        policies[key] = msgspec.structs.replace(policy, status=_STATUS)
    with_old, with_new = policy_diff.replace_policies(base, _objects("cool"), _objects("cool", "cold"))
    statuses = [
        {name: bytes(policy.status) for (_, name), policy in objects["placementpolicies"].items()}
        for objects in (with_old, with_new)
    ]
    status = bytes(_STATUS)
    assert statuses == [{"other": status, "cool": status}, {"other": status, "cool": status, "cold": b"null"}]
    _, without_old = policy_diff.replace_policies(base, _objects("cool"), {})
    assert [name for _, name in without_old["placementpolicies"]] == ["other"]
    stripped = policy_timeline.without_statuses(with_new)["placementpolicies"].values()
    assert {bytes(policy.status) for policy in stripped} == {b"null"}


def test_a_guard_that_has_stepped_back_hides_no_change() -> None:
    [(key, item)] = _objects("cool")["placementpolicies"].items()
    spec = {
        "podSelector": {},
        "guard": {"maxRejectedShare": "0.5"},
        "avoid": [{"metric": "temp", "above": 80}],
    }
    metadata = msgspec.structs.replace(item.metadata, generation=2)
    status = msgspec.Raw(b'{"steppedBack":{"generation":2}}')
    item = msgspec.structs.replace(item, metadata=metadata, spec=msgspec.Raw(msgspec.json.encode(spec)))
    side = {"placementpolicies": {key: item}}
    base = {"placementpolicies": {key: msgspec.structs.replace(item, status=status)}}
    modes = policy_diff.comparable_modes(side, side)
    stepped_back = [
        placement_policy_parser.parse_policy(
            objects["placementpolicies"][key], "PlacementPolicy"
        ).stepped_back
        for objects in (base, *policy_diff.replace_policies(base, modes.old, modes.new))
    ]
    assert (stepped_back, len(modes.notes)) == ([True, False, False], 1)
