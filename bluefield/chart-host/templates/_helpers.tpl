{{/* Named templates that the manifests share: names, labels, the addresses of hosts, checks of values. */}}

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
{{- if not .repository -}}
{{- fail "image.repository: is required, since no image is published. Build one with `cargo xtask dist`, push it with `skopeo copy --all oci:target/dist/image:VERSION docker://REGISTRY/pierhead:VERSION`, and set image.repository=REGISTRY/pierhead" -}}
{{- end -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}
{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Map from the name of a host to the address of pierhead on its DPU. */}}
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

{{/* The CA in the ConfigMap caConfigMapName, for a checksum: when the CA changes, the pods are replaced. */}}
{{- define "pierhead-host.ca" -}}
{{- with .Values.caConfigMapName -}}
{{- get ((lookup "v1" "ConfigMap" $.Release.Namespace .).data | default dict) "ca.crt" -}}
{{- end -}}
{{- end -}}

{{- define "pierhead-host.check" -}}
{{- if and .Values.address (or .Values.pairs .Values.discover.enabled) -}}
{{- fail "address: must be empty with pairs or discover.enabled" -}}
{{- end -}}
{{- if not (or .Values.address .Values.pairs .Values.discover.enabled) -}}
{{- fail "address: set address, pairs or discover.enabled, so that each host has the address of its DPU" -}}
{{- end -}}
{{- /* Rejects addresses that `pierhead setup` rejects and the schema accepts. */ -}}
{{- $addresses := list -}}
{{- with .Values.address -}}{{- $addresses = append $addresses (list "address" .) -}}{{- end -}}
{{- range $host, $address := .Values.pairs -}}{{- $addresses = append $addresses (list (printf "pairs.%s" $host) $address) -}}{{- end -}}
{{- range $addresses -}}
{{- include "pierhead-host.checkPort" . -}}
{{- if and $.Values.caConfigMapName (hasPrefix "http://" (last .)) -}}
{{- fail (printf "caConfigMapName: needs addresses with https, and %s is %s" (first .) (last .)) -}}
{{- end -}}
{{- end -}}
{{- if and .Values.caConfigMapName .Values.discover.enabled (eq .Values.discover.scheme "http") -}}
{{- fail "caConfigMapName: needs addresses with https, and discover.scheme is http" -}}
{{- end -}}
{{- range .Values.registries -}}
{{- include "pierhead-host.checkPort" (list "registries" .) -}}
{{- $host := regexReplaceAll ":[0-9]+$" . "" -}}
{{- if and (regexMatch "(^|\\.)([0-9]+|0[xX][0-9a-fA-F]*)$" $host) (not (regexMatch "^((25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])\\.){3}(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])$" $host)) -}}
{{- fail (printf "registries: %s: a host that ends in a number must be an IPv4 address in four decimal parts" .) -}}
{{- end -}}
{{- if or (gt (len $host) 253) (regexMatch "[^.]{64}" $host) -}}
{{- fail (printf "registries: %s: a host name has at most 253 bytes, and each label at most 63" .) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* Checks the port of an address. The argument is a list of a key and an address. */}}
{{- define "pierhead-host.checkPort" -}}
{{- $port := regexFind ":[0-9]+$" (last .) | trimPrefix ":" -}}
{{- if ne $port "" -}}
{{- if or (lt (float64 $port) 1.0) (gt (float64 $port) 65535.0) -}}
{{- fail (printf "%s: %s: the port must be 1 to 65535" (first .) (last .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
