{{/* Templates of pierhead.toml, the configuration file in the ConfigMap. */}}

{{/* A TOML value. Helm parses every number as a float; the keys of pierhead are integers. */}}
{{- define "pierhead.toml" -}}
{{- if kindIs "string" . -}}{{ toJson . }}
{{- else if kindIs "bool" . -}}{{ . }}
{{- else if kindIs "slice" . -}}[{{ range $i, $it := . }}{{ if $i }}, {{ end }}{{ toJson $it }}{{ end }}]
{{- else -}}{{ int64 . }}
{{- end -}}
{{- end -}}

{{- define "pierhead.config" -}}
{{- include "pierhead.check" . -}}
{{- $v := .Values -}}
{{- $profile := include "pierhead.profile" . | fromYaml -}}
{{- $config := mergeOverwrite (deepCopy $profile.config) (deepCopy $v.config) -}}
{{- $sized := dict -}}
{{- /* On the disk of the node, pierhead keeps 12 % free, since the kubelet evicts pods at 10 %. On a separate volume, pierhead keeps nothing free. */ -}}
{{- if or (eq $v.storage.mode "hostPath") (and (eq $v.storage.mode "emptyDir") (not $v.storage.emptyDir.medium)) -}}
{{- $_ := set $sized "cache" (dict "min_free" "12%") -}}
{{- else if $v.storage.size -}}
{{- $_ := set $sized "cache" (dict "min_free" "0") -}}
{{- end -}}
{{- /* Defaults: 75 % of the volume for blobs, and 10 % for bundles. */ -}}
{{- with $v.storage.size -}}
{{- $mebibytes := include "pierhead.mebibytes" . | int64 -}}
{{- $packs := div (mul $mebibytes 10) 100 -}}
{{- /* 64 MiB is the minimum of bundle.size. */ -}}
{{- $bundle := ternary (dict "size" (printf "%dMiB" $packs)) (dict "size" "off") (ge $packs 64) -}}
{{- $sized = mergeOverwrite $sized (dict "cache" (dict "size" (printf "%dMiB" (div (mul $mebibytes 75) 100))) "bundle" $bundle) -}}
{{- end -}}
{{- $config = mergeOverwrite $sized $config -}}
listen = ["{{ $v.network.address }}:{{ int64 $v.network.port }}"]
{{- /* The admin listener is on all addresses, because probes and monitors use other addresses of the node. The cache API of the admin listener accepts only loopback clients. */}}
admin = "{{ ternary "[::]" "0.0.0.0" (hasPrefix "[" $v.network.address) }}:{{ int64 $v.network.adminPort }}"
data = "/var/lib/pierhead/cache"
{{- with $v.dockerConfigSecretName }}
docker_config = "/etc/pierhead/docker/config.json"
{{- end }}
{{- range $key, $value := $config }}
{{- if not (kindIs "map" $value) }}
{{ $key }} = {{ include "pierhead.toml" $value }}
{{- end }}
{{- end }}
{{- range $section, $keys := $config }}
{{- if and (kindIs "map" $keys) $keys }}

[{{ $section }}]
{{- range $key, $value := $keys }}
{{ $key }} = {{ include "pierhead.toml" $value }}
{{- end }}
{{- end }}
{{- end }}
{{- with $v.network.interface }}

[network]
interface = {{ toJson . }}
{{- end }}

[tier]
kind = {{ toJson $v.tier.kind }}
{{- if ne $v.tier.kind "off" }}
path = "/var/lib/pierhead/tier/pierhead.tier"
{{- end }}
size = "{{ include "pierhead.mebibytes" $v.tier.size }}MiB"
placement = {{ toJson $v.tier.placement }}
write_back_rate = {{ toJson $v.tier.writeBackRate }}
{{- if or $v.tls.secretName $v.tls.clientCAKey $v.tls.clientNames }}

[tls]
{{- if $v.tls.secretName }}
cert = "/etc/pierhead/tls/tls.crt"
key = "/etc/pierhead/tls/tls.key"
{{- end }}
{{- with $v.tls.clientCAKey }}
client_ca = "/etc/pierhead/{{ if $v.tls.clientCASecretName }}clients{{ else }}tls{{ end }}/{{ . }}"
{{- end }}
{{- with $v.tls.clientNames }}
client_names = {{ include "pierhead.toml" . }}
{{- end }}
{{- end }}

[auth]
mode = {{ toJson $v.auth.mode }}
cache_ttl = {{ toJson $v.auth.cacheTTL }}
{{- if include "pierhead.htpasswdSecret" . }}
htpasswd = "/etc/pierhead/auth/htpasswd"
{{- end }}
{{- range $name, $it := $v.upstreams }}

[upstreams.{{ toJson $name }}]
{{- with $it.addresses }}
addresses = {{ include "pierhead.toml" . }}
{{- end }}
{{- with $it.credentialHosts }}
credential_hosts = {{ include "pierhead.toml" . }}
{{- end }}
{{- with $it.username }}
username = {{ toJson . }}
{{- end }}
{{- with $it.passwordSecret }}
password_file = "{{ include "pierhead.upstreamFolder" $name }}/password"
{{- end }}
{{- with $it.ca }}
ca = "{{ include "pierhead.upstreamFolder" $name }}/ca.crt"
{{- end }}
{{- with $it.trustedHosts }}
trusted_hosts = {{ include "pierhead.toml" . }}
{{- end }}
{{- with $it.keepDeleted }}
keep_deleted = true
{{- end }}
{{- end }}
{{- end -}}
