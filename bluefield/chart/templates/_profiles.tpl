{{/*
Made by `cargo xtask chart --write` from crates/host/src/profile/table.rs. The daemon gives its keys the defaults of the
profile, from the limits that it finds itself within.
*/}}
{{- define "pierhead.profile" -}}
{{- if eq .Values.profile "small" -}}
resources:
  requests: {cpu: 100m, memory: 128Mi}
  limits: {cpu: 500m, memory: 256Mi}
{{- else if eq .Values.profile "bluefield2" -}}
resources:
  requests: {cpu: 500m, memory: 512Mi}
  limits: {cpu: "2", memory: 1Gi}
{{- else if eq .Values.profile "bluefield3" -}}
resources:
  requests: {cpu: "1", memory: 1Gi}
  limits: {cpu: "4", memory: 2Gi}
{{- else if eq .Values.profile "server" -}}
resources:
  requests: {cpu: "2", memory: 2Gi}
  limits: {memory: 4Gi}
{{- end }}
config:
  profile: {{ .Values.profile }}
{{- end -}}
