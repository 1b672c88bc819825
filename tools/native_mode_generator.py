"""Generates `deploy/native.yaml`: admission policies by which a stock kube-scheduler enforces policies.

PlacementPolicy, ClusterPlacementPolicy and TASPolicy have one MutatingAdmissionPolicy each, with the same text for what
they do to a pod. `make chart` writes the file, and a test compares it.
"""

from typing import Final

from nodewise.policies.native_mode_admission import GATE
from nodewise.policies.node_labels import PREFERENCE_SUFFIX, VERDICT_LABEL_PREFIX
from nodewise.policies.preference_classes import CLASSES
from tools.native_mode_expressions import (
    DENIED_ANNOTATION,
    IS_DENIED,
    IS_SMALL,
    LIMITS,
    NAMED_PODS,
    NOT_OURS,
    PODS,
    POLICY_ANNOTATION,
    PREFERRED,
    REQUIRED,
    SCHEDULED_PODS,
    TERMS,
    add_annotation,
    is_ours,
)

_HEADER: Final = """\
# Made by `make chart` of tools/native_mode_generator.py; do not edit.
#
# A stock kube-scheduler enforces policies without calling nodewise: `nodewise controller` labels each node with the
# verdict of each policy, and the API server adds the matching node affinity or node selector to the pods that a policy
# selects when they are created. Requires Kubernetes 1.36, the definitions in deploy/crds, and deploy/controller.yaml;
# without it selected pods wait for the first labels. Pods of kube-system and of nodewise's namespace, pods that the
# DaemonSet controller creates, and pods with a nodeName are left alone.
#
# An error of a policy with parameters never stops a pod (failurePolicy: Ignore). Of the ValidatingAdmissionPolicies at
# the end, two apply only to pods with the label telemetry-policy, one to selected pods with more node affinity than the
# API server can examine quickly, and one to the removal of nodewise's scheduling gate.
"""
_IS_ENFORCED: Final = "params.?status.?mode.orValue('Enforce') != 'NotEnforced'"
_MODE: Final = "params.spec.?mode.orValue('Enforce') == 'Enforce'"
_HAS_LABEL: Final = "params.?status.?nodeLabel.orValue('not known yet') != ''"
"""False once nodewise has found that the policy needs no label, or that it is beyond the budget of labels."""
_KEY: Final = f"'{VERDICT_LABEL_PREFIX}' + params.metadata.uid"
_MOST_WEIGHT: Final = 100 // (CLASSES - 1)
_MOST_PREFERENCES: Final = 64
"""Preferred terms of a pod to which those of classes are added. Policies have at most 30 labels, each with one term for
`enforcement: Preferred`, so that no pod exceeds the limit of preferred terms by those of classes."""


def native_manifest() -> str:
    """The content of `deploy/native.yaml`."""
    return _HEADER + "---\n".join(
        [
            _placement_policy("PlacementPolicy"),
            _placement_policy("ClusterPlacementPolicy"),
            _telemetry_policy(),
            _reset(),
            _EXISTENCE_CHECK,
            _named_policy_check(),
            _SIZE_CHECK,
            _GATE_CHECK,
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
        f'  - {{name: pod-is-not-denied, expression: "!({IS_DENIED})"}}\n'
        f'  - {{name: policy-is-enforced, expression: "{_IS_ENFORCED}"}}\n'
        "  - name: policy-has-not-stepped-back\n"
        "    expression: params.?status.?steppedBack.?generation.orValue(0) != params.metadata.generation\n"
        "  - name: policy-mode-enforces\n    expression: >-\n"
        f"      {_MODE} || (params.spec.mode == 'Canary'\n"
        "      && has(params.spec.canary) && has(params.spec.canary.podSelector) &&\n"
        + _selector("params.spec.canary.podSelector", "object.metadata.?labels.orValue({})").rstrip("\n")
        + ")\n"
        "  - name: policy-has-a-node-label\n"
        f"    expression: (has(params.spec.avoid) && {_HAS_LABEL}) || has(params.spec.prefer)\n"
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
    name_of_kind = (
        "'cluster placement policy '"
        if is_cluster
        else "'placement policy ' + params.metadata.namespace + '/'"
    )
    patches = (
        f"variables.avoids && variables.excess != '' ? {_denial(name_of_kind)}\n"
        f"        : {_PREPARATION}\n        + (!variables.avoids ? [] : variables.onlyPrefers ? {_PREFERENCE}\n"
        f"        : {_PATCHES})\n        + {_CLASSES}"
    )
    if is_cluster:
        patches = f"!variables.isSelected ? [] : {patches}"
    return _mutation(
        name,
        f"{{apiVersion: nodewise.io/v1alpha1, kind: {kind}}}",
        conditions,
        namespace
        + _variables(
            rejects,
            f"has(params.spec.avoid) && {_HAS_LABEL}",
            "has(params.spec.prefer)",
            "params.spec.?enforcement.orValue('Required') == 'Preferred'",
            "params.spec.prefer.map(preference, int(preference.?weight.orValue(1))).sum()",
        ),
        patches,
    )


def _telemetry_policy() -> str:
    """The policy for pods that name a TASPolicy. Without a node label it gets the annotation only."""
    conditions = (
        "  - name: pod-names-the-policy\n"
        "    expression: object.metadata.labels['telemetry-policy'] == params.metadata.name\n"
    )
    name_of_kind = "'TASPolicy ' + params.metadata.namespace + '/'"
    patches = f"""\
variables.excess != '' && ({_HAS_LABEL}) ? {_denial(name_of_kind)}
        : {add_annotation(POLICY_ANNOTATION, "params.metadata.uid")}
        + {_PREPARATION}
        + (!variables.avoids ? [] : {_PATCHES})
        + {_CLASSES}"""
    return _mutation(
        "nodewise-native-named",
        "{apiVersion: telemetry.intel.com/v1alpha1, kind: TASPolicy}",
        conditions,
        _variables(_TELEMETRY_REJECTS, _HAS_LABEL, _TELEMETRY_PREFERS),
        patches,
        NAMED_PODS,
    )


_TELEMETRY_PREFERS: Final = "has(params.spec.strategies.scheduleonmetric)"
_TELEMETRY_REJECTS: Final = """\
      has(params.spec.strategies.dontschedule) && (
      params.spec.strategies.dontschedule.?logicalOperator.orValue('anyOf') == 'allOf'
      ? params.spec.strategies.dontschedule.rules.all(rule, rule.?when_missing.orValue('pass') == 'reject')
      : params.spec.strategies.dontschedule.rules.exists(rule, rule.?when_missing.orValue('pass') == 'reject'))
"""


def _variables(
    rejects_missing: str, avoids: str, prefers: str, only_prefers: str = "false", weight: str = "1"
) -> str:
    """The variables of a requirement: the node must not be `violating`, or must be `ok` where missing values reject;
    and those of the terms for classes, whose weights are a multiple of `weight`.
    """
    return f"""\
  - {{name: key, expression: "{_KEY}"}}
{LIMITS}\
  - {{name: avoids, expression: "{avoids}"}}
  - {{name: onlyPrefers, expression: "variables.avoids && {only_prefers}"}}
  - {{name: preferenceKey, expression: "variables.key + '{PREFERENCE_SUFFIX}'"}}
  - {{name: preferenceWeight, expression: "[{_MOST_WEIGHT}, {weight}].min()"}}
  # Preferences never deny a pod: one with many terms gets none.
  - name: prefers
    expression: >-
      {prefers} && variables.excess == ''
      && size(variables.preferences) <= {_MOST_PREFERENCES} && !variables.preferences.exists(term,
      term.preference.?matchExpressions.orValue([]).exists(e, e.key == variables.preferenceKey))
  # Rules that reject nodes without a value also reject nodes that have no label yet.
  - name: rejectsMissing
    expression: >-
{rejects_missing}\
  - {{name: selectsOk, expression: "object.spec.?nodeSelector[variables.key].orValue('') == 'ok'"}}
  - name: hasAffinity
    expression: object.spec.?affinity.?nodeAffinity.?{REQUIRED}.hasValue()
  - name: requirement
    expression: "{{'key': dyn(variables.key), 'operator': dyn('NotIn'), 'values': dyn(['violating'])}}"
  # An empty term matches no node, and would match nodes with a requirement in it. The operator `in` takes much less
  # time than a macro such as `exists`, whose cost the API server counts for each element.
  - name: isComplete
    expression: >-
      variables.terms.map(term,
      size(term.?matchExpressions.orValue([])) + size(term.?matchFields.orValue([])) == 0
      || variables.requirement in term.?matchExpressions.orValue([]))
"""


_PATH: Final = f"/spec/affinity/nodeAffinity/{REQUIRED}"
_ADD_NODE_AFFINITY: Final = """\
(has(object.spec.affinity) ? [] : [JSONPatch{op: 'add', path: '/spec/affinity', value: {}}])
        + (has(object.spec.affinity) && has(object.spec.affinity.nodeAffinity) ? []
        : [JSONPatch{op: 'add', path: '/spec/affinity/nodeAffinity', value: {}}])"""
_PREPARATION: Final = f"""\
(!variables.prefers && !(variables.avoids && (variables.onlyPrefers || !variables.rejectsMissing
        || size(variables.excluded) > 0)) ? [] : {_ADD_NODE_AFFINITY})
        + (!variables.prefers && !variables.onlyPrefers
        || object.spec.?affinity.?nodeAffinity.?{PREFERRED}.hasValue() ? []
        : [JSONPatch{{op: 'add', path: '/spec/affinity/nodeAffinity/{PREFERRED}', value: []}}])"""
"""The list of JSON patches that add the parents of what the following ones add, each once."""
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
        : variables.rejectsMissing
        ? [JSONPatch{{op: 'add', path: '{_PATH}', value: {{'nodeSelectorTerms':
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
        ? [JSONPatch{{op: 'add', path: '{_PATH}',
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
pod. While pods wait, kube-scheduler compares a node selector faster than a term, which it parses again for each change
of a label; but a node selector cannot accept a missing label."""

_ADD_PREFERRED: Final = f"op: 'add', path: '/spec/affinity/nodeAffinity/{PREFERRED}/-'"
_PREFERENCE: Final = f"""\
(variables.preferences
        .exists(term, term.preference.?matchExpressions.orValue([]).exists(e, e.key == variables.key)) ? []
        : [JSONPatch{{{_ADD_PREFERRED}, value: {{'weight': dyn(100),
        'preference': dyn({{'matchExpressions': [variables.requirement]}})}}}}])"""
"""The list of JSON patches that add a preference for nodes that are not `violating`, without a gate."""
_CLASSES: Final = f"""\
(!variables.prefers ? [] : {list(range(1, CLASSES))}.map(number,
        JSONPatch{{{_ADD_PREFERRED}, value: {{
        'weight': dyn(({CLASSES} - number) * variables.preferenceWeight), 'preference': dyn({{'matchExpressions':
        [{{'key': dyn(variables.preferenceKey), 'operator': dyn('In'), 'values': dyn([string(number)])}}]}})}}}}))"""
"""The list of JSON patches that add a preferred term for each class but the last."""


def _denial(kind: str) -> str:
    """The list with the JSON patch by which a pod that exceeds a limit is denied."""
    text = f"variables.excess + ', because ' + {kind} + params.metadata.name + ' selects the pod'"
    return add_annotation(DENIED_ANNOTATION, text)


def _reset() -> str:
    """The mutation that removes what admission added to a pod whose manifest is a copy of another pod."""
    is_ours_in_term = f"term.?matchExpressions.orValue([]).exists(e, {is_ours('e.key')})"
    is_only_ours = f"""size(term.?matchExpressions.orValue([])) > 0
      && size(term.?matchFields.orValue([])) == 0 && term.matchExpressions.all(e, {is_ours("e.key")})"""
    return f"""\
# Removes what the policies above add: the manifest of a pod may be a copy of another pod, for example in a backup, and
# its policies may not exist any more. A tenant could write the annotation itself. Policies have no order. This one is
# evaluated once; the API server evaluates the ones above again after a change, so that the pod then has what they add.
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {{name: nodewise-native-reset}}
spec:
  matchConstraints:
{PODS}\
  failurePolicy: Ignore
  reinvocationPolicy: Never
  matchConditions:
{SCHEDULED_PODS}\
  - name: pod-has-parts-of-native-mode
    expression: >-
      '{POLICY_ANNOTATION}' in object.metadata.?annotations.orValue({{}}) || ({IS_SMALL}
      && (object.spec.?nodeSelector.orValue({{}}).exists(key, {is_ours("key")})
      || {TERMS}.exists(term,
      {is_ours_in_term})))
  variables:
  - name: isSmall
    expression: >-
      {IS_SMALL}
  - {{name: selector, expression: 'variables.isSmall ? object.spec.?nodeSelector.orValue({{}}) : {{}}'}}
  - name: terms
    expression: >-
      variables.isSmall ? {TERMS} : []
  # A term with nothing else accepts every node, and nodes have to match only one term. Requirements are removed one by
  # one, each at its place after those before it: parts of the object cannot be values of a patch since Kubernetes 1.37.
  - name: acceptsEveryNode
    expression: >-
      variables.terms.exists(term, {is_only_ours})
  mutations:
  - patchType: JSONPatch
    jsonPatch:
      expression: >-
        ('{POLICY_ANNOTATION}' in object.metadata.?annotations.orValue({{}})
        ? [JSONPatch{{op: 'remove', path: '/metadata/annotations/' + jsonpatch.escapeKey('{POLICY_ANNOTATION}')}}] : [])
        + variables.selector.transformList(key, value, {is_ours("key")},
        JSONPatch{{op: 'remove', path: '/spec/nodeSelector/' + jsonpatch.escapeKey(key)}})
        + (variables.acceptsEveryNode ? [JSONPatch{{op: 'remove', path: '{_PATH}'}}]
        : variables.terms.transformList(i, term, {is_ours_in_term},
        term.matchExpressions.transformList(at, e, {is_ours("e.key")}, at).transformList(removed, at,
        JSONPatch{{op: 'remove', path: '{_PATH}/nodeSelectorTerms/' + string(i) + '/matchExpressions/'
        + string(at - removed)}})).flatten())
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {{name: nodewise-native-reset}}
spec: {{policyName: nodewise-native-reset}}
"""


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
{PODS}{object_selector}\
  failurePolicy: Ignore
  reinvocationPolicy: IfNeeded
  matchConditions:
{SCHEDULED_PODS}{conditions}\
  variables:
{variables}\
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
    """The policy that denies pods that lack the requirement of the TASPolicy that they name."""
    return f"""\
# Denies a pod that names a TASPolicy if its node selector or a term of its node affinity lacks the requirement. If the
# API server has no parameters, or not yet, the policy above denies the pod.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: nodewise-native-named}}
spec:
  paramKind: {{apiVersion: telemetry.intel.com/v1alpha1, kind: TASPolicy}}
  matchConstraints:
{PODS}{NAMED_PODS}\
  failurePolicy: Ignore
  matchConditions:
{SCHEDULED_PODS}\
  variables:
  - {{name: name, expression: "object.metadata.labels['telemetry-policy']"}}
  - {{name: uid, expression: "object.metadata.?annotations['{POLICY_ANNOTATION}'].orValue('')"}}
{_variables(_TELEMETRY_REJECTS, _HAS_LABEL, _TELEMETRY_PREFERS)}\
  validations:
  - expression: >-
      params.metadata.name != variables.name || (variables.uid == params.metadata.uid && (!({_HAS_LABEL})
      || variables.excess == '' && (variables.rejectsMissing ? variables.selectsOk
      : variables.hasAffinity && variables.isComplete.all(is, is))))
    messageExpression: >-
      variables.excess != '' ? variables.excess + ', because TASPolicy ' + request.namespace + '/' + variables.name
      + ' selects the pod' :
      'found a pod with the label telemetry-policy: ' + variables.name + ', expected ' + (variables.rejectsMissing
      ? variables.key + ': ok in its node selector'
      : variables.key + ' NotIn [violating] in every term of its node affinity')
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: nodewise-native-named}}
spec:
  policyName: nodewise-native-named
  paramRef: {{selector: {{}}, parameterNotFoundAction: Allow}}
  validationActions: [Deny]
"""


_EXISTENCE_CHECK: Final = f"""\
# Denies a pod that names a TASPolicy unless the mutation of the same request has found that policy. It has no
# parameters: the API server looks for them before it evaluates match conditions, so that an error would also stop the
# pods that are left alone, such as the mirror pods of kubelets.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: nodewise-native-named-exists}}
spec:
  matchConstraints:
{PODS}{NAMED_PODS}\
  failurePolicy: Fail
  matchConditions:
{SCHEDULED_PODS}\
  validations:
  - expression: "'{POLICY_ANNOTATION}' in object.metadata.?annotations.orValue({{}})"
    messageExpression: >-
      {IS_DENIED} ? string(object.metadata.annotations['{DENIED_ANNOTATION}'])
      : 'found the pod label telemetry-policy: ' + object.metadata.labels['telemetry-policy']
      + ', expected the name of a TASPolicy in the namespace ' + request.namespace
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: nodewise-native-named-exists}}
spec: {{policyName: nodewise-native-named-exists, validationActions: [Deny]}}
"""
_SIZE_CHECK: Final = f"""\
# Denies a pod that exceeds a limit, if a policy selects it: the mutation then adds only the annotation with the reason.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: nodewise-native-size}}
spec:
  matchConstraints:
{PODS}\
  failurePolicy: Fail
  matchConditions:
  - name: pod-exceeds-a-limit
    expression: "{IS_DENIED}"
  validations:
  - expression: "false"
    messageExpression: string(object.metadata.annotations['{DENIED_ANNOTATION}'])
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: nodewise-native-size}}
spec: {{policyName: nodewise-native-size, validationActions: [Deny]}}
"""
_GATE_CHECK: Final = f"""\
# Only nodewise and cluster administrators remove the gate: whoever may write the status of ClusterPlacementPolicies,
# which says whether all nodes have their labels.
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {{name: nodewise-native-gate}}
spec:
  matchConstraints:
    resourceRules: [{{apiGroups: [""], apiVersions: [v1], operations: [UPDATE], resources: [pods]}}]
{NOT_OURS}\
  failurePolicy: Fail
  matchConditions:
  - name: gate-is-removed
    expression: >-
      oldObject.spec.?schedulingGates.orValue([]).exists(gate, gate.name == '{GATE}')
      && !object.spec.?schedulingGates.orValue([]).exists(gate, gate.name == '{GATE}')
  validations:
  - expression: >-
      authorizer.group('nodewise.io').resource('clusterplacementpolicies').subresource('status').check('patch').allowed()
    message: >-
      found a change that removes the scheduling gate {GATE}, expected that it stays: nodewise removes it
      when every node has the labels of the pod's policies
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {{name: nodewise-native-gate}}
spec: {{policyName: nodewise-native-gate, validationActions: [Deny]}}
"""
