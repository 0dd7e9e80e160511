{{- define "gitmount.selector" -}}
app.kubernetes.io/name: gitmount
app.kubernetes.io/component: {{ . }}
{{- end }}

{{- define "gitmount.labels" -}}
app.kubernetes.io/name: gitmount
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
{{- end }}

{{- define "gitmount.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}
{{ .repository }}@{{ .digest }}
{{- else -}}
{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end }}

{{- define "gitmount.listen" -}}
{{ .Values.listenAddress | default (ternary "127.0.0.1" "0.0.0.0" .Values.hostNetwork) }}
{{- end }}

{{/* Where the kubelet asks: it cannot reach a loopback address at the pod's own. */}}
{{- define "gitmount.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ .port }}
  {{- $listen := include "gitmount.listen" .root }}
  {{- if or (hasPrefix "127." $listen) (eq $listen "[::1]") }}
  host: {{ $listen | trimPrefix "[" | trimSuffix "]" | quote }}
  {{- end }}
{{- end }}

{{/* What all pods have in common. */}}
{{- define "gitmount.pod" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{- define "gitmount.podMetadata" -}}
labels:
  {{- include "gitmount.selector" .component | nindent 2 }}
  {{- with .root.Values.podLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.podAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* A container that needs nothing but files and sockets of root. */}}
{{- define "gitmount.unprivileged" -}}
runAsUser: 0
runAsGroup: 0
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
seccompProfile:
  type: RuntimeDefault
{{- with .Values.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
