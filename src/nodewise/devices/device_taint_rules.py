"""DeviceTaintRules: which devices they select, and those of nodewise, one for each tainted device of a policy. No I/O.

A rule of nodewise has a name that follows from the policy and the device, so that every leader writes the same one, and
a label with the policy. Its selector always names driver, pool and device: without a selector, a rule taints all
devices (Kubernetes 1.37.0), and with only a part of these, several.
"""

import hashlib
import re
from typing import Any, Final, NamedTuple

import msgspec

from nodewise.devices.resource_slices import DeviceId, DeviceTaint
from nodewise.kube.resource_kinds import Resource

FIELD_MANAGER: Final = "nodewise-devices"
NAME_PREFIX: Final = "nodewise-"
POLICY_LABEL: Final = "nodewise.io/device-policy"
"""The label of a rule, and the key of the taint; both have the policy as the value."""
_REASON: Final = "nodewise.io/reason"
_RULE_IDS: Final = "nodewise.io/rule-ids"
_MAX_LABEL_VALUE: Final = 63
_MAX_NAME_PART: Final = 200
_MAX_REASON: Final = 512


class DeviceSelector(msgspec.Struct, frozen=True, gc=False):
    """The selector of a rule. An absent field selects all."""

    driver: str | None = None
    pool: str | None = None
    device: str | None = None

    def selects(self, device: DeviceId) -> bool:
        """Whether the rule taints a device."""
        parts = zip((self.driver, self.pool, self.device), device, strict=True)
        return all(wanted is None or wanted == part for wanted, part in parts)

    @property
    def only_device(self) -> DeviceId | None:
        """The device, if the selector names exactly one."""
        if self.driver is None or self.pool is None or self.device is None:
            return None
        return DeviceId(self.driver, self.pool, self.device)


class RuleOwner(msgspec.Struct, frozen=True, gc=False):
    """An owner reference."""

    kind: str = ""
    name: str = ""
    uid: str = ""


class RuleMetadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The metadata of a DeviceTaintRule that are read."""

    name: str
    namespace: str = ""
    uid: str = ""
    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None
    owner_references: tuple[RuleOwner, ...] | None = None


class TaintRuleSpec(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    taint: DeviceTaint
    device_selector: DeviceSelector | None = None
    """None selects no device from Kubernetes 1.37.1 on, and all devices in 1.37.0."""


class DeviceTaintRule(msgspec.Struct, frozen=True, gc=False):
    """A DeviceTaintRule of the API, of any version."""

    metadata: RuleMetadata
    spec: TaintRuleSpec

    @property
    def policy_label(self) -> str:
        """The policy of a rule of nodewise (`policy_label`); empty for a rule of others."""
        return (self.metadata.labels or {}).get(POLICY_LABEL, "")

    @property
    def device(self) -> DeviceId | None:
        """The device, if the rule selects exactly one."""
        selector = self.spec.device_selector
        return selector.only_device if selector else None

    @property
    def rule_ids(self) -> frozenset[str]:
        """The rules of the policy that the device met (`TaintOfPolicy.rule_ids`)."""
        return frozenset(filter(None, (self.metadata.annotations or {}).get(_RULE_IDS, "").split(",")))

    @property
    def reason(self) -> str:
        """Why the device is tainted, by a rule of nodewise; written by whoever may write such rules."""
        return (self.metadata.annotations or {}).get(_REASON, "")


class TaintOfPolicy(NamedTuple):
    """The taint that a ClusterPlacementPolicy wants for a device."""

    policy: str
    uid: str
    device: DeviceId
    effect: str
    rule_ids: tuple[str, ...]
    """The rules of the policy that the device meets, sorted."""
    reason: str

    @property
    def name(self) -> str:
        """The name of the DeviceTaintRule."""
        identity = hashlib.sha256("\0".join((self.policy, *self.device)).encode()).hexdigest()[:20]
        return f"{NAME_PREFIX}{self.policy[:_MAX_NAME_PART].rstrip('-.')}-{identity}"

    def body(self, resource: Resource, uid: str = "") -> dict[str, Any]:
        """The object of the API; `uid` is that of the object to be changed, empty for a new one.

        The owner reference lets the garbage collector of Kubernetes remove the rule after the policy, also if nodewise
        does not run any more.
        """
        label = policy_label(self.policy)
        driver, pool, device = self.device
        owner = {"apiVersion": "nodewise.io/v1alpha1", "kind": "ClusterPlacementPolicy"}
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {
                "name": self.name,
                "labels": {POLICY_LABEL: label},
                "annotations": {_REASON: self.reason[:_MAX_REASON], _RULE_IDS: ",".join(self.rule_ids)},
                "ownerReferences": [{**owner, "name": self.policy, "uid": self.uid}],
                **({"uid": uid} if uid else {}),
            },
            "spec": {
                "deviceSelector": {"driver": driver, "pool": pool, "device": device},
                "taint": {"key": POLICY_LABEL, "value": label, "effect": self.effect},
            },
        }

    def is_written(self, rule: DeviceTaintRule) -> bool:
        """Whether a rule is what `body` would write."""
        taint, owners = rule.spec.taint, rule.metadata.owner_references or ()
        return (
            rule.device == self.device
            and (taint.key, taint.value, taint.effect)
            == (POLICY_LABEL, policy_label(self.policy), self.effect)
            and (rule.rule_ids, rule.reason) == (frozenset(self.rule_ids), self.reason[:_MAX_REASON])
            and any(owner.uid == self.uid for owner in owners)
        )


def policy_label(policy: str) -> str:
    """The name of a policy as the value of a label, shortened to its limit without being ambiguous."""
    if len(policy) <= _MAX_LABEL_VALUE:
        return policy
    digest = hashlib.sha256(policy.encode()).hexdigest()[:16]
    return f"{policy[: _MAX_LABEL_VALUE - 17].rstrip('-.')}-{digest}"


_PCI_ADDRESS: Final = re.compile(r"([0-9a-f]{1,8}):([0-9a-f]{2}):([0-9a-f]{2})[.]([0-7])")
_GPU_UUID: Final = re.compile(r"gpu-([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})")
_MAX_INDEX_DIGITS: Final = 4
"""A longer number may be a serial number."""


def comparable_identity(text: str) -> str:
    """A value of a label or an attribute in the form in which both are compared: without case, PCI addresses with a
    domain of four digits, because DCGM writes `00000000:3B:00.0` for `0000:3b:00.0`, and UUIDs of GPUs without `GPU-`,
    which nvidia_gpu_exporter leaves out.
    """
    lower = text.lower()
    if uuid := _GPU_UUID.fullmatch(lower):
        return uuid[1]
    match = _PCI_ADDRESS.fullmatch(lower)
    if match is None:
        return lower
    domain, *rest = match.groups()
    return f"{int(domain, 16):04x}:{rest[0]}:{rest[1]}.{rest[2]}"


def is_local_identity(identity: str) -> bool:
    """Whether a comparable value may occur on every node, as an index and a PCI address do."""
    is_index = identity.isdigit() and len(identity) <= _MAX_INDEX_DIGITS
    return is_index or _PCI_ADDRESS.fullmatch(identity) is not None
