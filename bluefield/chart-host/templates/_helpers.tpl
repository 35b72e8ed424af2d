{{- define "pierhead-host.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "pierhead-host.fullname" -}}
{{- $name := include "pierhead-host.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pierhead-host.selector" -}}
app.kubernetes.io/name: {{ include "pierhead-host.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pierhead-host.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "pierhead" -}}
{{- mergeOverwrite (deepCopy .Values.commonLabels) $own (include "pierhead-host.selector" . | fromYaml) | toYaml -}}
{{- end -}}

{{- define "pierhead-host.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}
{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Addresses of DPUs by the names of their hosts. */}}
{{- define "pierhead-host.pairs" -}}
{{- $pairs := dict -}}
{{- $it := .Values.discover -}}
{{- if $it.enabled -}}
{{- range (lookup "v1" "Node" "" "").items -}}
{{- $host := get (.metadata.labels | default dict) $it.label -}}
{{- if $host -}}
{{- with get (.metadata.annotations | default dict) $it.annotation -}}
{{- $_ := set $pairs $host (printf "%s://%s:%d" $it.scheme . (int64 $it.port)) -}}
{{- end -}}
{{- range .status.addresses -}}
{{- if eq .type "InternalIP" -}}
{{- $ip := ternary (printf "[%s]" .address) .address (contains ":" .address) -}}
{{- if not (hasKey $pairs $host) -}}
{{- $_ := set $pairs $host (printf "%s://%s:%d" $it.scheme $ip (int64 $it.port)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- mergeOverwrite $pairs (deepCopy .Values.pairs) | toYaml -}}
{{- end -}}

{{/* The authority that hosts are given, as it is at this moment. */}}
{{- define "pierhead-host.ca" -}}
{{- with .Values.caConfigMapName -}}
{{- get ((lookup "v1" "ConfigMap" $.Release.Namespace .).data | default dict) "ca.crt" -}}
{{- end -}}
{{- end -}}

{{- define "pierhead-host.check" -}}
{{- if and .Values.address (or .Values.pairs .Values.discover.enabled) -}}
{{- fail "address: not together with pairs or discover.enabled" -}}
{{- end -}}
{{- if not (or .Values.address .Values.pairs .Values.discover.enabled) -}}
{{- fail "address: how does a host reach its DPU? Set address, pairs or discover.enabled" -}}
{{- end -}}
{{- end -}}
