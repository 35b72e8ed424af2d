{{/* Named templates that the manifests share: names, labels, resources, checks of values, mounts. */}}

{{/* Name of the chart, or nameOverride. */}}
{{- define "pierhead.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* Name of the objects. DPF (DOCA Platform Framework) requires the name of the release in every name, so no value replaces the whole name. */}}
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
{{- if not .repository -}}
{{- fail "image.repository: is required, since no image is published. Build one with `cargo xtask dist`, push it with `skopeo copy --all oci:target/dist/image:VERSION docker://REGISTRY/pierhead:VERSION`, and set image.repository=REGISTRY/pierhead" -}}
{{- end -}}
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

{{/* "yes" if clients authenticate with a password of auth.htpasswd. */}}
{{- define "pierhead.needsPassword" -}}
{{- if has .Values.auth.mode (list "htpasswd" "mtls-or-htpasswd") -}}yes{{- end -}}
{{- end -}}

{{/* The Secret with the users, if auth.mode needs one and the values name it. */}}
{{- define "pierhead.htpasswdSecret" -}}
{{- if include "pierhead.needsPassword" . -}}{{ .Values.auth.htpasswdSecretName }}{{- end -}}
{{- end -}}

{{- define "pierhead.scheme" -}}
{{- if .Values.tls.secretName -}}https{{- else -}}http{{- end -}}
{{- end -}}

{{/* "yes" if pierhead listens on all addresses of the pod. If pierhead listens on fewer addresses, the Service may not reach pierhead. */}}
{{- define "pierhead.isOnAllAddresses" -}}
{{- if and (not .Values.network.interface) (has .Values.network.address (list "0.0.0.0" "[::]")) -}}
yes
{{- end -}}
{{- end -}}

{{/* What `helm test` needs and lacks: the name of a value, or a description. Empty if the test can run. */}}
{{- define "pierhead.missingForTest" -}}
{{- $v := .Values -}}
{{- $password := or (include "pierhead.needsPassword" .) (eq $v.auth.mode "pass-through-login") -}}
{{- if not $v.service.enabled -}}
service.enabled
{{- else if not (include "pierhead.isOnAllAddresses" .) -}}
a Service that reaches pierhead, which listens on {{ $v.network.interface | default $v.network.address }} only
{{- else if and $password (not $v.tests.loginSecretName) -}}
tests.loginSecretName
{{- else if and $v.tls.clientCAKey (ne $v.auth.mode "mtls-or-htpasswd") (not $v.tests.clientSecretName) -}}
tests.clientSecretName
{{- end -}}
{{- end -}}

{{/* Labels of the pod of `helm test`. These labels differ from the labels of pierhead's pods, so that the Service does not select the test pod. */}}
{{- define "pierhead.testSelector" -}}
app.kubernetes.io/name: {{ include "pierhead.name" . | trunc 58 | trimSuffix "-" }}-test
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Container settings of the restricted Pod Security Standard, with a read-only root file system. */}}
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
{{- with .Values.securityContext.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/*
Affinity of the pods. A node must match a term of serviceDaemonSet.nodeSelector and a term of the affinity in the values, so
each term of one list is combined with each term of the other list.
*/}}
{{- define "pierhead.affinity" -}}
{{- $affinity := deepCopy .Values.affinity -}}
{{- with .Values.serviceDaemonSet.nodeSelector -}}
{{- $node := $affinity.nodeAffinity | default dict -}}
{{- $required := $node.requiredDuringSchedulingIgnoredDuringExecution | default dict -}}
{{- $terms := list -}}
{{- range $dpfTerm := .nodeSelectorTerms -}}
{{- range $ownTerm := ($required.nodeSelectorTerms | default (list dict)) -}}
{{- $term := dict -}}
{{- with concat ($dpfTerm.matchExpressions | default list) ($ownTerm.matchExpressions | default list) -}}
{{- $_ := set $term "matchExpressions" . -}}
{{- end -}}
{{- with concat ($dpfTerm.matchFields | default list) ($ownTerm.matchFields | default list) -}}
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

{{/*
Requests and limits of the container. The kernel charges volumes in memory to the container, so their size is added to the
memory of the profile (the preset of sizes in _profiles.tpl).
*/}}
{{- define "pierhead.resources" -}}
{{- $profile := include "pierhead.profile" . | fromYaml -}}
{{- $own := deepCopy $profile.resources -}}
{{- $volumes := include "pierhead.memoryVolumes" . | int64 -}}
{{- range $side := list "requests" "limits" -}}
{{- if $volumes -}}
{{- $of := get $own $side -}}
{{- $_ := set $of "memory" (include "pierhead.quantity" (add $volumes (include "pierhead.mebibytes" $of.memory))) -}}
{{- end -}}
{{- end -}}
{{- if and (eq .Values.storage.mode "emptyDir") (not .Values.storage.emptyDir.medium) -}}
{{- $_ := set $own.requests "ephemeral-storage" .Values.storage.size -}}
{{- end -}}
{{- $resources := mergeOverwrite $own (deepCopy .Values.resources) -}}
{{- range $name, $amount := .Values.serviceDaemonSet.resources -}}
{{- range $side := list "requests" "limits" -}}
{{- $_ := set $resources $side (mergeOverwrite (get $resources $side | default dict) (dict $name $amount)) -}}
{{- end -}}
{{- end -}}
{{ toYaml $resources }}
{{- end -}}

{{/* Size of the volumes in memory, in MiB. */}}
{{- define "pierhead.memoryVolumes" -}}
{{- $sum := 0 -}}
{{- if and (eq .Values.tier.kind "file") (not .Values.tier.hostPath) -}}
{{- $sum = add $sum (include "pierhead.mebibytes" .Values.tier.size) -}}
{{- end -}}
{{- if and (eq .Values.storage.mode "emptyDir") .Values.storage.emptyDir.medium -}}
{{- $sum = add $sum (include "pierhead.mebibytes" .Values.storage.size) -}}
{{- end -}}
{{- $sum -}}
{{- end -}}

{{/* Converts a quantity such as 20Gi to MiB. values.schema.json allows only Mi, Gi and Ti. */}}
{{- define "pierhead.mebibytes" -}}
{{- $number := regexFind "^[0-9]+" . | int64 -}}
{{- $factor := get (dict "Mi" 1 "Gi" 1024 "Ti" 1048576) (regexFind "[MGT]i$" .) | int64 -}}
{{- mul $number $factor -}}
{{- end -}}

{{/* Formats MiB in the canonical form of the API server. */}}
{{- define "pierhead.quantity" -}}
{{- if mod . 1024 }}{{ . }}Mi{{ else }}{{ div . 1024 }}Gi{{ end -}}
{{- end -}}

{{/* Converts a quantity of Kubernetes to thousandths, for comparisons. */}}
{{- define "pierhead.thousandths" -}}
{{- $text := toString . -}}
{{- $number := regexFind "^[0-9.]+([eE][0-9]+)?" $text -}}
{{- $factor := get (dict "m" 0.001 "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0) (trimPrefix $number $text) -}}
{{- mulf (float64 $number) (float64 $factor) 1000.0 | int64 -}}
{{- end -}}

{{/* Converts a size of pierhead such as 1.5GiB to bytes; 0 if the text is not a size. */}}
{{- define "pierhead.bytes" -}}
{{- $units := dict "" 1.0 "b" 1.0 "k" 1e3 "kb" 1e3 "kib" 1024.0 "m" 1e6 "mb" 1e6 "mib" 1048576.0 "g" 1e9 "gb" 1e9 "gib" 1073741824.0 "t" 1e12 "tb" 1e12 "tib" 1099511627776.0 -}}
{{- mulf (regexFind "^[0-9.]+" . | default "0" | float64) (get $units (regexFind "[a-zA-Z]*$" . | lower) | default 0.0) | printf "%.0f" -}}
{{- end -}}

{{/* Rejects values of the chart that contradict each other. The init container config-check checks pierhead.toml, so this template repeats none of its rules. */}}
{{- define "pierhead.check" -}}
{{- $v := .Values -}}
{{- if and (eq $v.storage.mode "emptyDir") (not $v.storage.size) -}}
{{- fail "storage.size: is required with storage.mode=emptyDir, since the cache must fit into the volume" -}}
{{- end -}}
{{- if and (eq $v.storage.mode "ephemeral") (not $v.storage.size) -}}
{{- fail "storage.size: is required with storage.mode=ephemeral: it is the requested size of the volume" -}}
{{- end -}}
{{- if and (eq $v.storage.mode "claim") (not $v.storage.claim.name) -}}
{{- fail "storage.claim.name: is required with storage.mode=claim" -}}
{{- end -}}
{{- if and (not $v.network.hostNetwork) (not (has $v.network.address (list "0.0.0.0" "[::]"))) -}}
{{- fail "network.address: a single address needs network.hostNetwork=true, since the address of a pod is not known in advance" -}}
{{- end -}}
{{- if and (eq $v.tier.kind "pmem") (not $v.tier.hostPath) -}}
{{- fail "tier.hostPath: is required with tier.kind=pmem: a folder on a DAX file system of the node" -}}
{{- end -}}
{{- if and $v.tls.clientCASecretName (not $v.tls.clientCAKey) -}}
{{- fail "tls.clientCAKey: is required with tls.clientCASecretName" -}}
{{- end -}}
{{- $resources := include "pierhead.resources" . | fromYaml -}}
{{- range $name, $limit := $resources.limits -}}
{{- $request := get ($resources.requests | default dict) $name -}}
{{- if and $request (lt (include "pierhead.thousandths" $limit | int64) (include "pierhead.thousandths" $request | int64)) -}}
{{- fail (printf "resources.limits.%s: %v is below the request of %v: choose a smaller profile, or set resources.requests.%s" $name $limit $request $name) -}}
{{- end -}}
{{- end -}}
{{- $profile := include "pierhead.profile" . | fromYaml -}}
{{- $minimum := add (include "pierhead.memoryVolumes" .) (include "pierhead.mebibytes" $profile.resources.requests.memory) -}}
{{- with $resources.limits.memory -}}
{{- if lt (include "pierhead.thousandths" . | int64) (include "pierhead.thousandths" (printf "%dMi" $minimum) | int64) -}}
{{- fail (printf "resources.limits.memory: %v is below the %s that profile %s and the volumes in memory need (tier.size, storage.size)" . (include "pierhead.quantity" $minimum) $v.profile) -}}
{{- end -}}
{{- end -}}
{{- $memory := ($v.config.limits | default dict).memory | default "off" -}}
{{- $bytes := include "pierhead.bytes" $memory | float64 -}}
{{- if and (gt $bytes 0.0) (lt $bytes (include "pierhead.bytes" (printf "%dMiB" $minimum) | float64)) -}}
{{- fail (printf "config.limits.memory: %s is below the %s that profile %s and the volumes in memory need: write more, or choose a smaller profile" $memory (include "pierhead.quantity" $minimum) $v.profile) -}}
{{- end -}}
{{- with $resources.limits.memory -}}
{{- if and (gt $bytes 0.0) (gt (mulf $bytes 1000.0) (include "pierhead.thousandths" . | float64)) -}}
{{- fail (printf "config.limits.memory: %s is above resources.limits.memory, which is %v: write less, or raise resources.limits.memory" $memory .) -}}
{{- end -}}
{{- end -}}
{{- with $v.serviceDaemonSet.updateStrategy.rollingUpdate -}}
{{- if and (not (has (toString (.maxSurge | default 0)) (list "0" "0%"))) (or $v.network.hostNetwork (has $v.storage.mode (list "hostPath" "claim")) (and (ne $v.tier.kind "off") $v.tier.hostPath)) -}}
{{- fail "serviceDaemonSet.updateStrategy.rollingUpdate.maxSurge: the new and the old pod of a node need the same port or folder, so neither would proceed: use maxUnavailable" -}}
{{- end -}}
{{- end -}}
{{- if and $v.networkPolicy.enabled (not $v.networkPolicy.egress) -}}
{{- range $v.env -}}
{{- if and (regexMatch "(?i)^(https?|all)_proxy$" .name) (not .value) -}}
{{- fail (printf "networkPolicy.egress: is required, since the port of the proxy in env %s comes from a reference" .name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled $v.metrics.podMonitor.enabled -}}
{{- fail "metrics.podMonitor.enabled: must be false with metrics.serviceMonitor.enabled, which would count every metric twice" -}}
{{- end -}}
{{- if and $v.metrics.serviceMonitor.enabled (not $v.service.enabled) -}}
{{- fail "metrics.serviceMonitor.enabled: needs service.enabled=true; use metrics.podMonitor.enabled" -}}
{{- end -}}
{{- end -}}

{{/* Volume mounts of the configuration, of files with secrets, and of the data folder. */}}
{{- define "pierhead.mounts" -}}
{{- $v := .Values -}}
- name: config
  mountPath: /etc/pierhead/pierhead.toml
  subPath: pierhead.toml
  readOnly: true
- name: data
  mountPath: /var/lib/pierhead
{{- if ne $v.tier.kind "off" }}
- name: tier
  mountPath: /var/lib/pierhead/tier
{{- end }}
{{- if $v.tls.secretName }}
- {name: tls, mountPath: /etc/pierhead/tls, readOnly: true}
{{- end }}
{{- if $v.tls.clientCASecretName }}
- {name: clients, mountPath: /etc/pierhead/clients, readOnly: true}
{{- end }}
{{- if include "pierhead.htpasswdSecret" . }}
- {name: auth, mountPath: /etc/pierhead/auth, readOnly: true}
{{- end }}
{{- if $v.dockerConfigSecretName }}
- {name: docker, mountPath: /etc/pierhead/docker, readOnly: true}
{{- end }}
{{- range $name, $it := $v.upstreams }}
{{- if or $it.passwordSecret $it.ca }}
- {name: {{ include "pierhead.upstreamVolume" $name }}, mountPath: {{ include "pierhead.upstreamFolder" $name }}, readOnly: true}
{{- end }}
{{- end }}
{{- end -}}

{{/* Name of the volume of an upstream. A hash, since names of registries contain characters that are invalid in a volume name. */}}
{{- define "pierhead.upstreamVolume" -}}
{{- printf "upstream-%s" (sha256sum . | trunc 10) -}}
{{- end -}}

{{/* Folder of the files of an upstream, different for every upstream. */}}
{{- define "pierhead.upstreamFolder" -}}
{{- printf "/etc/pierhead/upstreams/%s" (sha256sum . | trunc 10) -}}
{{- end -}}

{{/* The port of an address (with or without scheme and path), as a key of a YAML map. */}}
{{- define "pierhead.portOf" -}}
{{- $port := regexFind ":[0-9]+$" (regexReplaceAll "^([a-z0-9]+://)?([^/]*).*$" . "${2}") | trimPrefix ":" -}}
{{ $port | default (ternary "80" "443" (hasPrefix "http://" .)) | quote }}: true
{{- end -}}

{{/*
TCP ports to which pierhead connects: 443, the ports in `upstreams`, and the ports of the proxies in `env`. pierhead connects
to the name of an upstream only if the upstream has no addresses. For an upstream with addresses, https://none takes the place
of the name: its port 443 is in the list in any case.
*/}}
{{- define "pierhead.egressPorts" -}}
{{- $ports := dict "443" true -}}
{{- range $name, $it := .Values.upstreams -}}
{{- $addresses := ternary (list $it.addresses) ($it.addresses | default list) (kindIs "string" $it.addresses) -}}
{{- $hosts := concat $addresses ($it.credentialHosts | default list) ($it.trustedHosts | default list) -}}
{{- $hosts = append $hosts (ternary "https://none" $name (not (empty $addresses))) -}}
{{- range $hosts -}}
{{- $ports = merge $ports (include "pierhead.portOf" . | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- range .Values.env -}}
{{- if and (regexMatch "(?i)^(https?|all)_proxy$" .name) .value -}}
{{- $ports = merge $ports (include "pierhead.portOf" .value | fromYaml) -}}
{{- end -}}
{{- end -}}
{{- keys $ports | sortAlpha | join " " -}}
{{- end -}}
