"""CEL expressions that several admission policies of `deploy/native.yaml` have in common.

The API server evaluates every match condition of a policy, also after one of them is false, so that each must be cheap
for every pod. It ignores a mutation whose expressions exceed their cost budget (1,000,000 each), so that parts of a pod
are examined only within limits.
"""

from typing import Final

from nodewise.policies.node_labels import VERDICT_LABEL_PREFIX

POLICY_ANNOTATION: Final = "nodewise.io/telemetry-policy"
"""The annotation with the uid of the TASPolicy that a pod named when it was created."""
DENIED_ANNOTATION: Final = "nodewise.io/denied"
"""The annotation by which a mutation has a pod denied, with the reason. No stored pod has it."""
REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
NOT_OURS: Final = (
    "    namespaceSelector: {matchExpressions:"
    " [{key: kubernetes.io/metadata.name, operator: NotIn, values: [kube-system, nodewise]}]}\n"
)
PODS: Final = (
    '    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [pods]}]\n'
    + NOT_OURS
)
NAMED_PODS: Final = "    objectSelector: {matchExpressions: [{key: telemetry-policy, operator: Exists}]}\n"
SCHEDULED_PODS: Final = """\
  - {name: pod-has-no-node, expression: "object.spec.?nodeName.orValue('') == ''"}
  # The creator is compared first: tenants can write owner references, and many of them.
  - name: pod-is-not-of-a-daemonset
    expression: >-
      !(request.userInfo.username in
      ['system:serviceaccount:kube-system:daemon-set-controller', 'system:kube-controller-manager']
      && object.metadata.?ownerReferences.orValue([]).exists(owner, owner.kind == 'DaemonSet'
      && owner.apiVersion.startsWith('apps/') && owner.?controller.orValue(false)))
"""
"""Match conditions. The second user creates the pods of all workloads if kube-controller-manager runs without
`--use-service-account-credentials`."""
TERMS: Final = f"object.spec.?affinity.?nodeAffinity.?{REQUIRED}.?nodeSelectorTerms.orValue([])"
PREFERENCES: Final = f"object.spec.?affinity.?nodeAffinity.?{PREFERRED}.orValue([])"
_MAX_TERMS: Final = 50
_MAX_PREFERENCES: Final = 100
_MAX_EXPRESSIONS: Final = 2000
"""The API server evaluates a macro such as `exists` in a time that grows with the square of the number of elements."""
_MAX_LABELS: Final = 1000
_MAX_GATES: Final = 100
_MAX_OWNERS: Final = 100
_MAX_TOLERATIONS: Final = 1000
_MAX_CONTAINERS: Final = 1000
IS_DENIED: Final = f"'{DENIED_ANNOTATION}' in object.metadata.?annotations.orValue({{}})"
IS_SMALL: Final = f"""\
size({TERMS}) <= {_MAX_TERMS}
      && {TERMS}.map(term, size(term.?matchExpressions.orValue([]))
      + size(term.?matchFields.orValue([]))).sum() <= {_MAX_EXPRESSIONS}
      && size(object.spec.?nodeSelector.orValue({{}})) <= {_MAX_LABELS}"""
"""Whether few enough node selector terms, expressions and labels can be examined in a match condition."""
LIMITS: Final = f"""\
  - name: terms
    expression: >-
      {TERMS}
  - name: preferences
    expression: >-
      {PREFERENCES}
  - name: expressions
    expression: >-
      variables.terms.map(term, size(term.?matchExpressions.orValue([])) + size(term.?matchFields.orValue([]))).sum()
      + variables.preferences.map(term, size(term.preference.?matchExpressions.orValue([]))).sum()
  - {{name: labels, expression: 'object.spec.?nodeSelector.orValue({{}})'}}
  - {{name: gates, expression: 'object.spec.?schedulingGates.orValue([])'}}
  - {{name: owners, expression: 'object.metadata.?ownerReferences.orValue([])'}}
  - {{name: tolerations, expression: 'object.spec.?tolerations.orValue([])'}}
  - {{name: containers, expression: 'object.spec.containers + object.spec.?initContainers.orValue([])'}}
  # What exceeds a limit. The API server would need seconds for a pod with thousands of terms, for each policy. The
  # numbers include what policies add, at most 31 expressions per term.
  - name: excess
    expression: >-
      size(variables.terms) > {_MAX_TERMS} ?
      'found ' + string(size(variables.terms)) + ' node selector terms, expected at most {_MAX_TERMS}'
      : size(variables.preferences) > {_MAX_PREFERENCES} ?
      'found ' + string(size(variables.preferences))
      + ' preferred node selector terms, expected at most {_MAX_PREFERENCES}'
      : variables.expressions > {_MAX_EXPRESSIONS} ?
      'found ' + string(variables.expressions)
      + ' expressions in node selector terms, expected at most {_MAX_EXPRESSIONS}'
      : size(variables.labels) > {_MAX_LABELS} ?
      'found ' + string(size(variables.labels)) + ' labels in the node selector, expected at most {_MAX_LABELS}'
      : size(variables.gates) > {_MAX_GATES} ?
      'found ' + string(size(variables.gates)) + ' scheduling gates, expected at most {_MAX_GATES}'
      : size(variables.owners) > {_MAX_OWNERS} ?
      'found ' + string(size(variables.owners)) + ' owner references, expected at most {_MAX_OWNERS}'
      : size(variables.tolerations) > {_MAX_TOLERATIONS} ?
      'found ' + string(size(variables.tolerations)) + ' tolerations, expected at most {_MAX_TOLERATIONS}'
      : size(variables.containers) > {_MAX_CONTAINERS} ?
      'found ' + string(size(variables.containers)) + ' containers, expected at most {_MAX_CONTAINERS}'
      : ''
"""
"""Variables. `excess` is empty if no part exceeds its limit."""


def is_ours(key: str) -> str:
    """Whether a label key is one of the labels with verdicts."""
    return f"{key}.startsWith('{VERDICT_LABEL_PREFIX}')"


def add_annotation(key: str, value: str) -> str:
    """The list with the JSON patch that sets an annotation."""
    return f"""\
(has(object.metadata.annotations)
        ? [JSONPatch{{op: 'add', path: '/metadata/annotations/' + jsonpatch.escapeKey('{key}'), value: {value}}}]
        : [JSONPatch{{op: 'add', path: '/metadata/annotations', value: {{'{key}': {value}}}}}])"""
