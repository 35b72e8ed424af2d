{{/* DPF wants the release's name in every name, so there is no way to replace it. */}}
{{- define "pierhead.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "pierhead.fullname" -}}
{{- $name := include "pierhead.name" . -}}
{{- if contains $name .Release.Name -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "pierhead.selector" -}}
app.kubernetes.io/name: {{ include "pierhead.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "pierhead.labels" -}}
{{- $own := dict
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "app.kubernetes.io/part-of" "pierhead" -}}
{{- mergeOverwrite (deepCopy .Values.commonLabels) $own (include "pierhead.selector" . | fromYaml) | toYaml -}}
{{- end -}}

{{- define "pierhead.image" -}}
{{- with .Values.image -}}
{{- if .digest -}}{{ .repository }}@{{ .digest }}
{{- else -}}{{ .repository }}:{{ .tag | default $.Chart.AppVersion }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pierhead.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- .Values.serviceAccount.name | default (include "pierhead.fullname" .) -}}
{{- else -}}
{{- .Values.serviceAccount.name | default "default" -}}
{{- end -}}
{{- end -}}

{{- define "pierhead.scheme" -}}
{{- if .Values.tls.secretName -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{/* Whether a pod can pull through the Service with what the values give it. */}}
{{- define "pierhead.hasTest" -}}
{{- $v := .Values -}}
{{- $login := and (eq $v.auth.mode "htpasswd") $v.tests.loginSecretName -}}
{{- if and $v.service.enabled (or (eq $v.auth.mode "none") (eq $v.auth.mode "pass-through") $login) (or (not $v.tls.clientCAKey) $v.tls.clientOptional) -}}
yes
{{- end -}}
{{- end -}}

{{/* The kubelet asks the first address of the node, unless told otherwise. */}}
{{- define "pierhead.probeHost" -}}
{{- if not (has .Values.network.address (list "0.0.0.0" "[::]")) -}}
, host: {{ .Values.network.address | trimPrefix "[" | trimSuffix "]" | quote }}
{{- end -}}
{{- end -}}

{{/* The container's part of the restricted Pod Security Standard, and a read-only root beyond it. */}}
{{- define "pierhead.containerSecurity" -}}
allowPrivilegeEscalation: false
privileged: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end -}}

{{- define "pierhead.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .Values.securityContext.runAsUser }}
runAsGroup: {{ int64 .Values.securityContext.runAsGroup }}
fsGroup: {{ int64 .Values.securityContext.fsGroup }}
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end -}}

{{/*
Node affinity. Terms of one selector are alternatives, and both selectors must hold: so each term of one is
joined with each of the other.
*/}}
{{- define "pierhead.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- with .Values.serviceDaemonSet.nodeSelector -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $theirs := .nodeSelectorTerms -}}
{{- range $ours := ($required.nodeSelectorTerms | default (list dict)) -}}
{{- $term := dict -}}
{{- with concat ($theirs.matchExpressions | default list) ($ours.matchExpressions | default list) -}}
{{- $_ := set $term "matchExpressions" . -}}
{{- end -}}
{{- with concat ($theirs.matchFields | default list) ($ours.matchFields | default list) -}}
{{- $_ := set $term "matchFields" . -}}
{{- end -}}
{{- $terms = append $terms $term -}}
{{- end -}}
{{- end -}}
{{- $_ := set $node "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms) -}}
{{- $_ := set $affinity "nodeAffinity" $node -}}
{{- end -}}
{{- if $affinity -}}{{ toYaml $affinity }}{{- end -}}
{{- end -}}

{{- define "pierhead.resources" -}}
{{- $profile := include "pierhead.profile" . | fromYaml -}}
{{- $resources := mergeOverwrite (deepCopy $profile.resources) (deepCopy .Values.resources) -}}
{{- range $name, $amount := .Values.serviceDaemonSet.resources -}}
{{- range $side := list "requests" "limits" -}}
{{- $_ := set $resources $side (mergeOverwrite (get $resources $side | default dict) (dict $name $amount)) -}}
{{- end -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{/* `20Gi` in MiB; values.schema.json allows nothing else. */}}
{{- define "pierhead.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $factor := get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) (regexFind "[MGT]i$" .) | int64 -}}
{{- mul $number $factor -}}
{{- end -}}

{{/* What the schema cannot say. Each message names the keys. */}}
{{- define "pierhead.check" -}}
{{- $v := .Values -}}
{{- if and (eq $v.storage.mode "emptyDir") (not $v.storage.size) -}}
{{- fail "storage.size: is needed with storage.mode=emptyDir, so that the cache stays below the limit of the volume" -}}
{{- end -}}
{{- if and (eq $v.storage.mode "ephemeral") (not $v.storage.size) -}}
{{- fail "storage.size: is needed with storage.mode=ephemeral: it is what is asked for of the storage class" -}}
{{- end -}}
{{- if and (eq $v.storage.mode "claim") (not $v.storage.claim.name) -}}
{{- fail "storage.claim.name: is needed with storage.mode=claim" -}}
{{- end -}}
{{- if and (not $v.network.hostNetwork) (not (has $v.network.address (list "0.0.0.0" "[::]"))) -}}
{{- fail "network.address: one address needs network.hostNetwork=true: a pod's own is not known before" -}}
{{- end -}}
{{- if and $v.network.interface (not (has $v.network.address (list "0.0.0.0" "[::]"))) -}}
{{- fail "network.interface: stands for its addresses: not together with one in network.address" -}}
{{- end -}}
{{- if hasPrefix "tmfifo_net" $v.network.interface -}}
{{- fail "network.interface: is the management link of the DPU: image data goes over a representor, or a scalable function" -}}
{{- end -}}
{{- if and (eq $v.tier.kind "pmem") (not $v.tier.hostPath) -}}
{{- fail "tier.hostPath: is needed with tier.kind=pmem: a folder on a DAX file system of the node" -}}
{{- end -}}
{{- if and (eq $v.auth.mode "htpasswd") (not $v.auth.htpasswdSecretName) -}}
{{- fail "auth.htpasswdSecretName: is needed with auth.mode=htpasswd" -}}
{{- end -}}
{{- if and (eq $v.auth.mode "mtls") (not $v.tls.clientCAKey) -}}
{{- fail "tls.clientCAKey: is needed with auth.mode=mtls" -}}
{{- end -}}
{{- if and $v.tls.clientOptional (ne $v.auth.mode "htpasswd") -}}
{{- fail "tls.clientOptional: needs auth.mode=htpasswd, or everybody without a certificate is let in" -}}
{{- end -}}
{{- if and $v.tls.clientCAKey (not $v.tls.secretName) -}}
{{- fail "tls.secretName: is needed with tls.clientCAKey" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled $v.metrics.podMonitor.enabled -}}
{{- fail "metrics.podMonitor.enabled: not together with metrics.serviceMonitor.enabled: everything would be counted twice" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled (not $v.service.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled: needs service.enabled=true; use metrics.podMonitor.enabled" -}}
{{- end -}}
{{- $logins := list -}}
{{- range $name, $upstream := $v.upstreams -}}
{{- if or $upstream.passwordSecret $upstream.identityTokenSecret -}}{{- $logins = append $logins (printf "upstreams.%s" $name) -}}{{- end -}}
{{- if and $upstream.passwordSecret (not $upstream.username) -}}
{{- fail (printf "upstreams.%s.username: is needed with passwordSecret" $name) -}}
{{- end -}}
{{- if and $upstream.url $upstream.addresses -}}
{{- fail (printf "upstreams.%s.url: not together with addresses" $name) -}}
{{- end -}}
{{- end -}}
{{- with $v.dockerConfigSecretName -}}{{- $logins = append $logins "dockerConfigSecretName" -}}{{- end -}}
{{- if and $logins (eq $v.auth.mode "none") (not $v.tls.clientCAKey) (not $v.config.allow_open_proxy_with_credentials) -}}
{{- fail (printf "%s: with a login for an upstream, everybody who reaches the port could pull what it can. Set auth.mode or tls.clientCAKey, or config.allow_open_proxy_with_credentials=true if that is meant" (join ", " $logins)) -}}
{{- end -}}
{{- end -}}

{{/* A name that a volume may have, for one that a registry may have. */}}
{{- define "pierhead.upstreamVolume" -}}
{{- printf "upstream-%s" (sha256sum . | trunc 10) -}}
{{- end -}}
