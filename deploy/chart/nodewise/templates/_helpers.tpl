{{/*
The value as YAML. toYaml returns nothing for a text with a character that YAML lacks, such as U+007F: all settings beside it
would be missing. It does not escape the separators U+2028 and U+2029, which end a line.
*/}}
{{- define "nodewise.yaml" -}}
{{- $text := toYaml . -}}
{{- if or (not $text) (regexMatch "[\\x{2028}\\x{2029}]" $text) -}}
{{- fail "found a control character or a Unicode line separator in a value, expected printable characters" -}}
{{- end -}}
{{ $text }}
{{- end }}

{{- define "nodewise.image" -}}
{{- $i := .Values.image -}}
{{ $i.repository }}{{ if $i.digest }}@{{ $i.digest }}{{ else }}:{{ $i.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "nodewise.labels" -}}
app.kubernetes.io/name: nodewise
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{/* What never changes, and so may stand in a selector. Call with (dict "root" $ "part" "extender"). */}}
{{- define "nodewise.selector" -}}
app.kubernetes.io/name: nodewise
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .part }}
{{- end }}

{{/* Constraints that spread the replicas of a part over nodes and zones. Call with (dict "root" $ "part" "extender"). */}}
{{- define "nodewise.topologySpread" -}}
{{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
- maxSkew: 1
  topologyKey: {{ . }}
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels: {{- include "nodewise.selector" $ | nindent 6 }}
{{- end }}
{{- end }}

{{/* The agents of the extender, separated by commas, in the order in which they are asked. */}}
{{- define "nodewise.agents" -}}
{{- $on := list -}}
{{- range list "telemetry" "gpu" "load" "safe" "congestion" "pigeon" "learned" -}}
{{- if and (index $.Values.agents .).enabled (not (and (eq . "telemetry") (include "nodewise.controller" $))) -}}
{{- $on = append $on . }}{{ end -}}
{{- end -}}
{{ join "," $on }}
{{- end }}

{{/* Not empty in native mode. The API server changes pods with MutatingAdmissionPolicies since Kubernetes 1.36. */}}
{{- define "nodewise.nativeMode" -}}
{{- $isOld := semverCompare "<1.36-0" .Capabilities.KubeVersion.Version -}}
{{- if eq (toString .Values.nativeMode.enabled) "true" -}}
{{- if $isOld -}}
{{- fail (printf "found nativeMode.enabled: true on Kubernetes %s, expected 1.36 or later" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
{{- if not .Values.agents.telemetry.enabled -}}
{{- fail "found nativeMode.enabled: true and agents.telemetry.enabled: false, expected the agent whose policies native mode enforces" -}}
{{- end -}}
{{- if include "nodewise.leavesExtender" . -}}
{{- fail (printf "found nativeMode.enabled: true for a release whose extender %s kube-scheduler may call, expected nativeMode.keepExtender: true until nodewise is removed from its configuration (docs/native.md)" .Values.name) -}}
{{- end -}}
true
{{- else if and (eq (toString .Values.nativeMode.enabled) "auto") (not $isOld) .Values.agents.telemetry.enabled -}}
{{- $needsExtender := or .Values.scheduler.enabled .Values.podAdmission.addResource .Values.tls.certManager.enabled .Values.tls.renewal.enabled -}}
{{- if not (or $needsExtender (include "nodewise.leavesExtender" .)) }}true{{ end -}}
{{- end -}}
{{- end }}

{{/*
Not empty if native mode would take the agent telemetry from an extender that does not keep labels of nodes yet: pods would
wait for an extender that no longer exists. The ConfigMap in the cluster has the agents of the release before this one.
`helm template` and dry runs of the client do not read the cluster.
*/}}
{{- define "nodewise.leavesExtender" -}}
{{- $before := fromYaml (dig "data" "nodewise.yaml" "" (lookup "v1" "ConfigMap" .Release.Namespace .Values.name)) -}}
{{- $isCalled := has "telemetry" (splitList "," (dig "agents" "" $before)) -}}
{{- if and $isCalled (not (dig "telemetry" "native_mode" false $before)) (not .Values.nativeMode.keepExtender) }}true{{ end -}}
{{- end }}

{{/* Not empty if the agent telemetry runs in `nodewise controller` instead of the extender. */}}
{{- define "nodewise.controller" -}}
{{- if and (include "nodewise.nativeMode" .) (not .Values.nativeMode.keepExtender) }}true{{ end -}}
{{- end }}

{{/* Not empty if the release has the account of the extender and the controller. */}}
{{- define "nodewise.hasAccount" -}}
{{ include "nodewise.agents" . }}{{ include "nodewise.controller" . }}
{{- end }}

{{/* The settings of the agent telemetry, as YAML. */}}
{{- define "nodewise.telemetrySettings" -}}
{{- $own := deepCopy .Values.agents.telemetry.settings -}}
{{- if include "nodewise.nativeMode" . }}{{ $_ := set $own "native_mode" true }}{{ end -}}
{{ include "nodewise.yaml" $own }}
{{- end }}

{{/* The file of --config of the extender. */}}
{{- define "nodewise.config" -}}
{{- $config := merge (dict "agents" (include "nodewise.agents" .)) (deepCopy .Values.settings) -}}
{{- range splitList "," (include "nodewise.agents" .) -}}
{{- $own := "" }}{{ if . }}{{ $own = (index $.Values.agents .).settings }}{{ end -}}
{{- if eq . "telemetry" }}{{ $own = fromYaml (include "nodewise.telemetrySettings" $) }}{{ end -}}
{{- if $own }}{{ $_ := set $config . $own }}{{ end -}}
{{- end -}}
{{ include "nodewise.yaml" $config }}
{{- end }}

{{/* The file of --config of the controller. */}}
{{- define "nodewise.controllerConfig" -}}
{{- $own := dict "telemetry" (fromYaml (include "nodewise.telemetrySettings" .)) }}
{{- if gt (int .Values.nativeMode.shards) 1 }}
{{- $_ := set $own "shards" (int .Values.nativeMode.shards) }}
{{- end }}
{{- include "nodewise.yaml" (merge $own (deepCopy .Values.settings)) }}
{{- end }}

{{- define "nodewise.annotatorConfig" -}}
{{ include "nodewise.yaml" (merge (deepCopy .Values.annotator.settings) (deepCopy .Values.settings)) }}
{{- end }}

{{/* OpenShift assigns the user and the groups from a range of the namespace, and refuses others. */}}
{{- define "nodewise.podSecurity" -}}
runAsNonRoot: true
{{- if not (.Capabilities.APIVersions.Has "security.openshift.io/v1") }}
runAsUser: 65534
runAsGroup: 65534
fsGroup: 65534
{{- end }}
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "nodewise.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "nodewise.pull" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{ include "nodewise.yaml" . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Binds a role to an account of its namespace: name, account, namespace. */}}
{{- define "nodewise.binding" }}
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: {{ .name | quote }}
  namespace: {{ .in | default .namespace | quote }}
  labels: {{- include "nodewise.labels" .root | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: {{ .name | quote }}}
subjects:
- {kind: ServiceAccount, name: {{ .account | quote }}, namespace: {{ .namespace | quote }}}
{{- end }}

{{- define "nodewise.clusterBinding" }}
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: {{ .name | quote }}
  labels: {{- include "nodewise.labels" .root | nindent 4 }}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: {{ .name | quote }}}
subjects:
- {kind: ServiceAccount, name: {{ .account | quote }}, namespace: {{ .namespace | quote }}}
{{- end }}

{{- define "nodewise.account" }}
apiVersion: v1
kind: ServiceAccount
metadata:
  name: {{ .name | quote }}
  namespace: {{ .namespace | quote }}
  labels: {{- include "nodewise.labels" .root | nindent 4 }}
{{- end }}

{{/* The cluster's own version of kube-scheduler, without what a provider adds to it. */}}
{{- define "nodewise.schedulerVersion" -}}
{{ regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version }}
{{- end }}

{{/* What `nodewise configure render-scheduler --one-entry-per-agent` prints of the same settings; a test compares. */}}
{{- define "nodewise.schedulerConfig" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: {{ .Values.scheduler.name | quote }}
  resourceNamespace: {{ .Release.Namespace | quote }}
profiles:
- schedulerName: {{ .Values.scheduler.name | quote }}
extenders:
{{- range $agent := splitList "," (include "nodewise.agents" .) }}
- urlPrefix: https://{{ $.Values.name }}.{{ $.Release.Namespace }}.svc:{{ $.Values.service.port }}/agents/{{ $agent }}
  {{- if has $agent (list "telemetry" "gpu") }}
  filterVerb: filter
  preemptVerb: preempt
  {{- end }}
  prioritizeVerb: prioritize
  {{- if eq $agent "gpu" }}
  bindVerb: bind
  {{- end }}
  weight: {{ $.Values.scheduler.weight }}
  nodeCacheCapable: true
  httpTimeout: {{ eq $agent "gpu" | ternary "5s" "1s" }}
  ignorable: {{ not (has $agent (list "telemetry" "gpu")) }}
  {{- if eq $agent "telemetry" }}
  managedResources:
  - {name: telemetry/scheduling, ignoredByScheduler: true}
  {{- else if eq $agent "gpu" }}
  managedResources:
  {{- range $.Values.scheduler.gpuResources }}
  - {{ toJson . }}
  {{- end }}
  {{- end }}
  enableHTTPS: true
  tlsConfig: {caFile: /etc/nodewise/client/ca.crt, certFile: /etc/nodewise/client/tls.crt, keyFile: /etc/nodewise/client/tls.key}
{{- end }}
{{- end }}

{{/* Not empty if the release has the policies that limit nodewise's writes. Kubernetes has them since 1.30. */}}
{{- define "nodewise.admissionPolicies" -}}
{{- if .Values.admissionPolicies.enabled -}}
{{- if semverCompare "<1.30-0" .Capabilities.KubeVersion.Version -}}
{{- fail (printf "found admissionPolicies.enabled: true on Kubernetes %s, expected 1.30 or later; with false, RBAC alone limits what nodewise writes" .Capabilities.KubeVersion.Version) -}}
{{- end -}}
true
{{- end -}}
{{- end }}
