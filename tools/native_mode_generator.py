"""Generates `deploy/native.yaml`: admission policies by which a stock kube-scheduler enforces policies.

PlacementPolicy, ClusterPlacementPolicy and TASPolicy have one MutatingAdmissionPolicy each, with the same text for what
they do to a pod. `make chart` writes the file, and a test compares it.
"""

from typing import Final

from nodewise.agents.telemetry.node_label_ownership import VERDICT_LABEL_PREFIX
from nodewise.agents.telemetry.unscheduled_pods import GATE

POLICY_ANNOTATION: Final = "nodewise.io/telemetry-policy"
"""The annotation with the uid of the TASPolicy that a pod named when it was created."""

_HEADER: Final = """\
# Made by `make chart` of tools/native_mode_generator.py; do not edit.
#
# A stock kube-scheduler enforces policies without calling nodewise: `nodewise controller` labels each node with the
# verdict of each policy, and the API server adds the matching node affinity or node selector to the pods that a policy
# selects when they are created. Requires Kubernetes 1.36, the definitions in deploy/crds, and deploy/controller.yaml;
# without it selected pods wait for the first labels. Pods of kube-system and of nodewise's namespace, pods of
# DaemonSets, and pods with a nodeName are left alone.
#
# An error of a MutatingAdmissionPolicy never stops a pod (failurePolicy: Ignore). The ValidatingAdmissionPolicy at the
# end applies only to pods with the label telemetry-policy.
"""
_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_NOT_OURS: Final = (
    "    namespaceSelector: {matchExpressions:"
    " [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, nodewise]}]}\n"
)
_PODS: Final = (
    '    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]\n'
    + _NOT_OURS
)
_NAMED_PODS: Final = "    objectSelector: {matchExpressions: [{key: telemetry-policy, operator: Exists}]}\n"
_SCHEDULED_PODS: Final = """\
  - {name: pod-has-no-node, expression: "object.spec.?nodeName.orValue('') == ''"}
  - name: pod-is-not-of-a-daemonset
    expression: "!object.metadata.?ownerReferences.orValue([]).exists(owner, owner.kind == 'DaemonSet')"
"""
_IS_ENFORCED: Final = "params.?status.?mode.orValue('Enforce') != 'NotEnforced'"
_MODE: Final = "params.spec.?mode.orValue('Enforce') == 'Enforce'"
_HAS_LABEL: Final = "params.?status.?nodeLabel.orValue('not known yet') != ''"
"""False once nodewise has found that the policy needs no label, or that it is beyond the budget of labels."""
_KEY: Final = f"'{VERDICT_LABEL_PREFIX}' + params.metadata.uid"


def native_manifest() -> str:
    """The content of `deploy/native.yaml`."""
    return _HEADER + "---\n".join(
        [
            _placement_policy("PlacementPolicy"),
            _placement_policy("ClusterPlacementPolicy"),
            _telemetry_policy(),
            _named_policy_check(),
        ]
    )


def _selector(selector: str, labels: str) -> str:
    """The CEL expression of a label selector, in lines of a folded block. A missing label matches NotIn."""
    return f"""\
      (!has({selector}.matchLabels) || {selector}.matchLabels.all(key,
      key in {labels} && {labels}[key] == {selector}.matchLabels[key]))
      && (!has({selector}.matchExpressions) || {selector}.matchExpressions.all(e,
      e.operator == 'Exists' ? e.key in {labels}
      : e.operator == 'DoesNotExist' ? !(e.key in {labels})
      : e.operator == 'In' ? e.key in {labels} && {labels}[e.key] in e.values
      : e.operator == 'NotIn' && !(e.key in {labels} && {labels}[e.key] in e.values)))
"""


def _placement_policy(kind: str) -> str:
    """The policy for pods that a PlacementPolicy or ClusterPlacementPolicy selects."""
    is_cluster = kind == "ClusterPlacementPolicy"
    name = "nodewise-native-cluster" if is_cluster else "nodewise-native"
    conditions = (
        f'  - {{name: policy-is-enforced, expression: "{_IS_ENFORCED}"}}\n'
        "  - name: policy-has-not-stepped-back\n"
        "    expression: params.?status.?steppedBack.?generation.orValue(0) != params.metadata.generation\n"
        "  - name: policy-mode-enforces\n    expression: >-\n"
        f"      {_MODE} || (params.spec.mode == 'Canary'\n"
        "      && has(params.spec.canary) && has(params.spec.canary.podSelector) &&\n"
        + _selector("params.spec.canary.podSelector", "object.metadata.?labels.orValue({})").rstrip("\n")
        + ")\n"
        "  - {name: policy-avoids-nodes, expression: has(params.spec.avoid)}\n"
        f'  - {{name: policy-has-a-node-label, expression: "{_HAS_LABEL}"}}\n'
        "  - name: policy-selects-the-pod\n"
        "    expression: >-\n" + _selector("params.spec.podSelector", "object.metadata.?labels.orValue({})")
    )
    # the labels of the namespace are not known in match conditions
    namespace = (
        "  - {name: namespaceLabels, expression: 'namespaceObject.metadata.?labels.orValue({})'}\n"
        "  - name: isSelected\n    expression: >-\n"
        + _selector("params.spec.namespaceSelector", "variables.namespaceLabels")
        if is_cluster
        else ""
    )
    rejects = """\
      params.spec.avoid.exists(rule, has(rule.all) ? rule.all.all(part, part.?whenMissing.orValue('Allow') == 'Reject')
      : rule.?whenMissing.orValue('Allow') == 'Reject')
"""
    patches = (
        f"params.spec.?enforcement.orValue('Required') == 'Preferred' ? {_PREFERENCE}\n        : {_PATCHES}"
    )
    if is_cluster:
        patches = f"!variables.isSelected ? [] : {patches}"
    return _mutation(
        name,
        f"{{apiVersion: nodewise.io/v1alpha1, kind: {kind}}}",
        conditions,
        namespace + _variables(rejects),
        patches,
    )


def _telemetry_policy() -> str:
    """The policy for pods that name a TASPolicy. Without a node label it gets the annotation only."""
    conditions = (
        "  - name: pod-names-the-policy\n"
        "    expression: object.metadata.labels['telemetry-policy'] == params.metadata.name\n"
    )
    key, uid = f"'{POLICY_ANNOTATION}'", "params.metadata.uid"
    patches = f"""\
(has(object.metadata.annotations)
        ? [JSONPatch{{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey({key}), value: {uid}}}]
        : [JSONPatch{{op: 'add', path: '/metadata/annotations', value: {{{key}: {uid}}}}}])
        + (!({_HAS_LABEL}) ? [] : {_PATCHES})"""
    return _mutation(
        "nodewise-native-named",
        "{apiVersion: telemetry.intel.com/v1alpha1, kind: TASPolicy}",
        conditions,
        _variables(_TELEMETRY_REJECTS),
        patches,
        _NAMED_PODS,
    )


_TELEMETRY_REJECTS: Final = """\
      has(params.spec.strategies.dontschedule) && (
      params.spec.strategies.dontschedule.?logicalOperator.orValue('anyOf') == 'allOf'
      ? params.spec.strategies.dontschedule.rules.all(rule, rule.?when_missing.orValue('pass') == 'reject')
      : params.spec.strategies.dontschedule.rules.exists(rule, rule.?when_missing.orValue('pass') == 'reject'))
"""


def _variables(rejects_missing: str) -> str:
    """The variables of a requirement; the node must not be `violating`, or must be `ok` where missing values reject."""
    return f"""\
  - {{name: key, expression: "{_KEY}"}}
  # Rules that reject nodes without a value also reject nodes that have no label yet.
  - name: rejectsMissing
    expression: >-
{rejects_missing}\
  - {{name: selectsOk, expression: "object.spec.?nodeSelector[variables.key].orValue('') == 'ok'"}}
  - name: hasAffinity
    expression: object.spec.?affinity.?nodeAffinity.?{_REQUIRED}.hasValue()
  - name: terms
    expression: >-
      object.spec.?affinity.?nodeAffinity.?{_REQUIRED}.?nodeSelectorTerms.orValue([])
  # An empty term matches no node, and would match nodes with a requirement in it.
  - name: isComplete
    expression: >-
      variables.terms.map(term,
      size(term.?matchExpressions.orValue([])) + size(term.?matchFields.orValue([])) == 0
      || term.?matchExpressions.orValue([]).exists(e, e.key == variables.key
      && e.operator == 'NotIn' && e.?values.orValue([]) == ['violating']))
"""


_PATH: Final = f"/spec/affinity/nodeAffinity/{_REQUIRED}"
_ADD_NODE_AFFINITY: Final = """\
(has(object.spec.affinity) ? [] : [JSONPatch{op: 'add', path: '/spec/affinity', value: {}}])
        + (has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) ? []
        : [JSONPatch{op: 'add', path: '/spec/affinity/nodeAffinity', value: {}}])"""
_EXCLUSION: Final = "{'key': dyn('metadata.name'), 'operator': dyn('NotIn'), 'values': dyn([name])}"
_EXCLUSIONS: Final = f"""\
(size(variables.excluded) == 0 ? [] : variables.hasAffinity
        ? variables.terms.transformList(i, term,
        size(term.?matchExpressions.orValue([])) + size(term.?matchFields.orValue([])) > 0, has(term.matchFields)
        ? variables.excluded.filter(name, !term.matchFields.exists(field,
        field.key == 'metadata.name' && field.operator == 'NotIn' && name in field.values)).map(name,
        JSONPatch{{op: 'add', path: '{_PATH}/nodeSelectorTerms/'
        + string(i) + '/matchFields/-', value: {_EXCLUSION}}})
        : [JSONPatch{{op: 'add', path: '{_PATH}/nodeSelectorTerms/'
        + string(i) + '/matchFields', value: variables.excluded.map(name, {_EXCLUSION})}}]).flatten()
        : variables.rejectsMissing ? {_ADD_NODE_AFFINITY}
        + [JSONPatch{{op: 'add', path: '{_PATH}', value: {{'nodeSelectorTerms':
        [{{'matchFields': variables.excluded.map(name, {_EXCLUSION})}}]}}}}]
        : [JSONPatch{{op: 'add', path: '{_PATH}/nodeSelectorTerms/0/matchFields',
        value: variables.excluded.map(name, {_EXCLUSION})}}])"""
"""The list of JSON patches that exclude by name the nodes that refuse the label of the policy. They follow those that
add the requirement, which make a term where there is none."""
_PATCHES: Final = f"""\
(variables.rejectsMissing
        ? (variables.selectsOk ? []
        : has(object.spec.nodeSelector)
        ? [JSONPatch{{op: 'add', path: '/spec/nodeSelector/' + jsonpatch.escapeKey(variables.key), value: 'ok'}}]
        : [JSONPatch{{op: 'add', path: '/spec/nodeSelector', value: {{variables.key: 'ok'}}}}])
        : !variables.hasAffinity
        ? {_ADD_NODE_AFFINITY}
        + [JSONPatch{{op: 'add', path: '{_PATH}',
        value: {{'nodeSelectorTerms': [{{'matchExpressions': [variables.requirement]}}]}}}}]
        : variables.terms.transformList(i, term, !variables.isComplete[i], has(term.matchExpressions)
        ? JSONPatch{{op: 'add', path: '{_PATH}/nodeSelectorTerms/'
        + string(i) + '/matchExpressions/-', value: variables.requirement}}
        : JSONPatch{{op: 'add', path: '{_PATH}/nodeSelectorTerms/'
        + string(i) + '/matchExpressions', value: [variables.requirement]}}))
        + {_EXCLUSIONS}
        + (params.?status.?active.orValue(false) ? []
        : !has(object.spec.schedulingGates)
        ? [JSONPatch{{op: 'add', path: '/spec/schedulingGates', value: [{{'name': '{GATE}'}}]}}]
        : object.spec.schedulingGates.exists(gate, gate.name == '{GATE}') ? []
        : [JSONPatch{{op: 'add', path: '/spec/schedulingGates/-', value: {{'name': '{GATE}'}}}}])"""
"""The list of JSON patches that add the requirement to the node selector or to each term, and the gate. A pod without
required affinity gets a term with the requirement. Values are plain maps: a list of objects with a type would stop the
pod. kube-scheduler compares a node selector in a tenth of the time of a term, but it cannot accept a missing label."""

_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_PREFERRED_TERMS: Final = f"object.spec.?affinity.?nodeAffinity.?{_PREFERRED}"
_PREFERENCE: Final = f"""\
({_PREFERRED_TERMS}.orValue([])
        .exists(term, term.preference.?matchExpressions.orValue([]).exists(e, e.key == variables.key)) ? []
        : {_ADD_NODE_AFFINITY}
        + ({_PREFERRED_TERMS}.hasValue() ? []
        : [JSONPatch{{op: 'add', path: '/spec/affinity/nodeAffinity/{_PREFERRED}', value: []}}])
        + [JSONPatch{{op: 'add', path: '/spec/affinity/nodeAffinity/{_PREFERRED}/-', value: {{'weight': dyn(100),
        'preference': dyn({{'matchExpressions': [variables.requirement]}})}}}}])"""
"""The list of JSON patches that add a preference for nodes that are not `violating`, without a gate."""


def _mutation(
    name: str, param_kind: str, conditions: str, variables: str, patches: str, object_selector: str = ""
) -> str:
    return f"""\
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {{name: {name}}}
spec:
  paramKind: {param_kind}
  matchConstraints:
{_PODS}{object_selector}\
  failurePolicy: Ignore
  reinvocationPolicy: IfNeeded
  matchConditions:
{_SCHEDULED_PODS}{conditions}\
  variables:
{variables}\
  - name: requirement
    expression: "{{'key': dyn(variables.key), 'operator': dyn('NotIn'), 'values': dyn(['violating'])}}"
  - {{name: excluded, expression: 'params.?status.?excludedNodes.orValue([])'}}
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        {patches}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: {name}}}
spec:
  policyName: {name}
  paramRef: {{selector: {{}}, parameterNotFoundAction: Allow}}
"""


def _named_policy_check() -> str:
    """The policy that denies pods that name a TASPolicy that does not exist, or whose requirement is missing."""
    return f"""\
# Denies a pod that names a TASPolicy if there is no such policy, or if its node selector or a term of its node affinity
# lacks the requirement.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: nodewise-native-named}}
spec:
  paramKind: {{apiVersion: telemetry.intel.com/v1alpha1, kind: TASPolicy}}
  matchConstraints:
{_PODS}{_NAMED_PODS}\
  failurePolicy: Fail
  matchConditions:
{_SCHEDULED_PODS}\
  variables:
  - {{name: name, expression: "object.metadata.labels['telemetry-policy']"}}
  - {{name: uid, expression: "object.metadata.?annotations['{POLICY_ANNOTATION}'].orValue('')"}}
{_variables(_TELEMETRY_REJECTS)}\
  validations:
  - expression: variables.uid != ''
    messageExpression: >-
      'found the pod label telemetry-policy: ' + variables.name + ', expected the name of a TASPolicy in the namespace '
      + request.namespace
  - expression: >-
      params.metadata.name != variables.name || (variables.uid == params.metadata.uid && (!({_HAS_LABEL})
      || (variables.rejectsMissing ? variables.selectsOk
      : variables.hasAffinity && variables.isComplete.all(is, is))))
    messageExpression: >-
      'found a pod with the label telemetry-policy: ' + variables.name + ', expected ' + (variables.rejectsMissing
      ? variables.key + ': ok in its node selector'
      : variables.key + ' NotIn [violating] in every term of its node affinity')
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: nodewise-native-named}}
spec:
  policyName: nodewise-native-named
  paramRef: {{selector: {{}}, parameterNotFoundAction: Deny}}
  validationActions: [Deny]
"""
