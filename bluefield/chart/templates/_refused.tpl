{{/* Bytes of `1.5GiB`, or a second of `100MB/s`, as pierhead reads them. */}}
{{- define "pierhead.bytes" -}}
{{- $text := trimSuffix "/s" . | trim -}}
{{- $units := dict "" 1.0 "b" 1.0 "k" 1e3 "kb" 1e3 "kib" 1024.0 "m" 1e6 "mb" 1e6 "mib" 1048576.0 "g" 1e9 "gb" 1e9 "gib" 1073741824.0 "t" 1e12 "tb" 1e12 "tib" 1099511627776.0 -}}
{{- mulf (regexFind "^[0-9.]+" $text | float64) (get $units (regexFind "[a-zA-Z]*$" $text | lower)) | printf "%.0f" -}}
{{- end -}}

{{/* Seconds of `1h 30m`, as pierhead reads it; nothing when it has a unit that there is not. */}}
{{- define "pierhead.time" -}}
{{- $units := list (list "nanos|nsec|ns" 1e-9) (list "usec|us" 1e-6) (list "millis|msec|ms" 1e-3) (list "seconds|second|secs|sec|s" 1.0)
  (list "minutes|minute|mins|min|m" 60.0) (list "hours|hour|hrs|hr|h" 3600.0) (list "days|day|d" 86400.0) (list "weeks|week|wks|wk|w" 604800.0)
  (list "months|month|M" 2630016.0) (list "years|year|yrs|yr|y" 31557600.0) -}}
{{- $sum := 0.0 -}}
{{- range regexFindAll "[0-9.]+\\s*[a-zA-Z]+" . -1 -}}
{{- $factor := -1e12 -}}
{{- $unit := regexFind "[a-zA-Z]+$" . -}}
{{- range $units -}}
{{- if regexMatch (printf "^(%s)$" (first .)) $unit -}}{{- $factor = last . -}}{{- end -}}
{{- end -}}
{{- $sum = addf $sum (mulf (regexFind "^[0-9.]+" . | float64) $factor) -}}
{{- end -}}
{{- if ge $sum 0.0 -}}{{ $sum }}{{- end -}}
{{- end -}}

{{/* Keys whose text is of the right form, and may still be too little or too much. What has no end has it where 64 bits have theirs. */}}
{{- define "pierhead.checkRanges" -}}
{{- $v := .Values -}}
{{- range list
  (list "config.cache.size" "1B" "")
  (list "config.cache.min_free" "0" "")
  (list "config.eviction.max_written_per_day" "0" "")
  (list "config.bundle.size" "64MiB" "")
  (list "config.limits.upstream_bandwidth" "1B" "")
  (list "config.limits.answer_memory" "1MiB" "1TiB")
  (list "config.limits.memory" "128MiB" "16TiB")
  (list "tier.drain" "1B" "")
-}}
{{- $value := include "pierhead.at" (list $v (first .)) -}}
{{- if hasSuffix "%" $value -}}
{{- $share := regexFind "^[0-9]+" $value | float64 -}}
{{- if or (lt $share 1.0) (gt $share 100.0) -}}
{{- fail (printf "%s: %s is no share: write 1%% to 100%%" (first .) $value) -}}
{{- end -}}
{{- else if not (has $value (list "" "off" "auto")) -}}
{{- $bytes := include "pierhead.bytes" $value | float64 -}}
{{- if or (lt $bytes (include "pierhead.bytes" (index . 1) | float64)) (gt $bytes (include "pierhead.bytes" (last . | default "16777215TiB") | float64)) -}}
{{- fail (printf "%s: %s is out of range: write %s" (first .) $value (ternary (printf "%s to %s" (index . 1) (last .)) (printf "%s or more, and less than 16777216TiB" (index . 1)) (ne (last .) ""))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range list
  (list "config.tags.freshness" "0s" "365d")
  (list "config.limits.answer_within" "100ms" "60s")
  (list "config.limits.connect_timeout" "1ms" "1h")
  (list "config.limits.header_timeout" "1ms" "1h")
  (list "config.limits.stall_timeout" "1ms" "1h")
  (list "config.limits.client_stall" "1s" "1h")
  (list "config.limits.drain" "0s" "1h")
  (list "auth.verdicts" "1s" "1h")
  (list "network.interfaceWait" "0s" "10m")
-}}
{{- $value := include "pierhead.at" (list $v (first .)) -}}
{{- if ne $value "" -}}
{{- $time := include "pierhead.time" $value -}}
{{- if eq $time "" -}}
{{- fail (printf "%s: %s is no time: write a number with a unit, such as 500ms, 60s or 5m" (first .) $value) -}}
{{- end -}}
{{- if or (lt (float64 $time) (include "pierhead.time" (index . 1) | float64)) (gt (float64 $time) (include "pierhead.time" (last .) | float64)) -}}
{{- fail (printf "%s: %s is out of range: write %s to %s" (first .) $value (index . 1) (last .)) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The value of a dotted key; nothing where there is none. */}}
{{- define "pierhead.at" -}}
{{- $it := first . -}}
{{- range splitList "." (last .) -}}
{{- $it = ternary (get $it .) "" (kindIs "map" $it) -}}
{{- end -}}
{{- $it -}}
{{- end -}}

{{/* A registry as pierhead calls it: what two spellings of it have in common. */}}
{{- define "pierhead.registry" -}}
{{- $name := lower . | trimSuffix ":443" -}}
{{- ternary "docker.io" $name (has $name (list "index.docker.io" "registry-1.docker.io" "registry.hub.docker.com")) -}}
{{- end -}}

{{/* Of a key and a name whose form is right. */}}
{{- define "pierhead.checkRegistry" -}}
{{- $name := last . -}}
{{- $host := regexReplaceAll ":[0-9]+$" $name "" -}}
{{- $port := trimPrefix $host $name | trimPrefix ":" -}}
{{- if ne $port "" -}}
{{- if or (lt (float64 $port) 1.0) (gt (float64 $port) 65535.0) -}}
{{- fail (printf "%s: %s: the port is not within 1 to 65535" (first .) $name) -}}
{{- end -}}
{{- end -}}
{{- if hasPrefix "[" $host -}}
{{- include "pierhead.checkIPv6" (list (first .) $host) -}}
{{- else -}}
{{- if or (gt (len $host) 253) (regexMatch "[^.]{64}" $host) -}}
{{- fail (printf "%s: %s: a host has at most 253 bytes, and 63 between its dots" (first .) $name) -}}
{{- end -}}
{{- if and (regexMatch "(^|\\.)([0-9]+|0[xX][0-9a-fA-F]*)$" $host) (not (include "pierhead.isIPv4" $host)) -}}
{{- fail (printf "%s: %s: a host that ends in a number must be an IPv4 address in four decimal parts" (first .) $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "pierhead.isIPv4" -}}
{{- $part := "(25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])" -}}
{{- if regexMatch (printf "^%s(\\.%s){3}$" $part $part) . -}}yes{{- end -}}
{{- end -}}

{{/* Of a key and an address in brackets. */}}
{{- define "pierhead.checkIPv6" -}}
{{- $inner := last . | trimPrefix "[" | trimSuffix "]" -}}
{{- $groups := regexFindAll "[0-9a-fA-F]+" $inner -1 | len -}}
{{- $short := regexFindAll "::" $inner -1 | len -}}
{{- if or (regexMatch "[0-9a-fA-F]{5}|:::|^:[^:]|[^:]:$|[^0-9a-fA-F:]" $inner) (gt $short 1) (gt $groups (sub 8 $short | int)) (and (eq $short 0) (ne $groups 8)) -}}
{{- fail (printf "%s: %s is no IPv6 address" (first .) (last .)) -}}
{{- end -}}
{{- end -}}

{{/* What pierhead would refuse at its start, as far as values say it and the schema does not. Each message names the key, and the mend. */}}
{{- define "pierhead.refused" -}}
{{- $v := .Values -}}
{{- include "pierhead.checkRanges" . -}}
{{- $level := include "pierhead.at" (list $v "config.log.level") -}}
{{- $levels := "(?i:off|error|warn|info|debug|trace|[0-5])" -}}
{{- if and (ne $level "") (not (regexMatch (printf "^(%s|[^=,]*=%s?|[^=,]*(=%s?)?(,[^=,]*(=%s?)?)+)$" $levels $levels $levels $levels) $level)) -}}
{{- fail (printf "config.log.level: %s is no level: write error, warn, info, debug or trace, or such as info,pierhead_remote=debug" $level) -}}
{{- end -}}
{{- with include "pierhead.at" (list $v "config.default_upstream") -}}
{{- include "pierhead.checkRegistry" (list "config.default_upstream" .) -}}
{{- end -}}
{{- range $list := list "allow" "deny" -}}
{{- range get ($v.config.access | default dict) $list | default list -}}
{{- $registry := regexFind "^[^/]+" . -}}
{{- $repository := trimPrefix $registry . | trimPrefix "/" -}}
{{- if not (contains "*" $registry) -}}
{{- include "pierhead.checkRegistry" (list (printf "config.access.%s" $list) $registry) -}}
{{- end -}}
{{- $glob := regexQuoteMeta (include "pierhead.registry" $registry) | replace "\\*\\*" ".*" | replace "\\*" "[^/]*" -}}
{{- if and (regexMatch (printf "^%s$" $glob) "docker.io") (contains "*" $repository) (not (contains "**" $repository)) (not (contains "/" $repository)) -}}
{{- fail (printf "config.access.%s: %s fits nothing of Docker Hub, where every name has two parts: write %s/library/%s or %s/**" $list . $registry $repository $registry) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- with include "pierhead.at" (list $v "config.limits.cores") -}}
{{- range regexFindAll "[0-9]+(-[0-9]+)?" . -1 -}}
{{- $run := splitList "-" . -}}
{{- if or (gt (first $run | int64) (last $run | int64)) (gt (last $run | int64) 1023) -}}
{{- fail (printf "config.limits.cores: %s are no cores: write all, last 4, or numbers up to 1023 such as 4-7 or 2,3" .) -}}
{{- end -}}
{{- end -}}
{{- if eq . "last 0" -}}
{{- fail "config.limits.cores: last 0 names no cores: write all, last 4, or their numbers such as 4-7" -}}
{{- end -}}
{{- end -}}
{{- $profile := include "pierhead.profile" . | fromYaml -}}
{{- $planned := include "pierhead.at" (list $v "config.limits.memory") -}}
{{- if not (has $planned (list "" "off")) -}}
{{- $tier := ternary (include "pierhead.mebibytes" $v.tier.size | int64) 0 (and (eq $v.tier.kind "file") (not $v.tier.hostPath)) -}}
{{- $least := add $tier (include "pierhead.mebibytes" $profile.resources.requests.memory) -}}
{{- if lt (include "pierhead.bytes" $planned | float64) (include "pierhead.bytes" (printf "%dMiB" $least) | float64) -}}
{{- fail (printf "config.limits.memory: %s is below the %dMiB that profile %s%s needs: write more, or choose a smaller profile" $planned $least $v.profile (ternary " with its tier in memory (tier.size)" "" (gt $tier 0))) -}}
{{- end -}}
{{- with (include "pierhead.resources" . | fromYaml).limits.memory -}}
{{- if gt (mulf (include "pierhead.bytes" $planned | float64) 1000.0) (include "pierhead.thousandths" . | float64) -}}
{{- fail (printf "config.limits.memory: %s is above resources.limits.memory, which is %v: write less, or raise that" $planned .) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- $trace := include "pierhead.at" (list $v "config.trace.file") -}}
{{- $folder := trimPrefix "/var/lib/pierhead/" $trace -}}
{{- if or (has $folder (list "cache" "tier")) (hasPrefix "cache/" $folder) -}}
{{- fail (printf "config.trace.file: %s lies in a folder that is made later, or is one: name a file in /var/lib/pierhead itself" $trace) -}}
{{- end -}}
{{- if and (contains "/" (trimPrefix "/" $folder)) (has $v.storage.mode (list "emptyDir" "ephemeral")) -}}
{{- fail (printf "config.trace.file: there is no folder for %s in a new volume: name a file in /var/lib/pierhead itself" $trace) -}}
{{- end -}}
{{- if lt (include "pierhead.mebibytes" $v.tier.size | int64) 32 -}}
{{- fail (printf "tier.size: %s holds no tier: write 32Mi or more" $v.tier.size) -}}
{{- end -}}
{{- /* Taken for as much as fits, which nobody who wrote it meant. */ -}}
{{- if gt (include "pierhead.bytes" $v.tier.limit | float64) (include "pierhead.bytes" (printf "%dMiB" (include "pierhead.mebibytes" $v.tier.size | int64)) | float64) -}}
{{- fail (printf "tier.limit: %s is beyond tier.size, which is %s: write less, or 0 for as much as fits" $v.tier.limit $v.tier.size) -}}
{{- end -}}
{{- if not (regexMatch "[a-z](\\s|$)|=[0-9.]*[1-9]" $v.tier.rules) -}}
{{- fail (printf "tier.rules: no rule of %q has a weight: write such as layer-aware=1, or tier.kind=off" $v.tier.rules) -}}
{{- end -}}
{{- if and $v.storage.size (lt (include "pierhead.mebibytes" $v.storage.size | int64) 2) (not (include "pierhead.at" (list $v "config.cache.size"))) -}}
{{- fail (printf "storage.size: %s leaves a cache of 0 bytes: write more" $v.storage.size) -}}
{{- end -}}
{{- if eq (int64 $v.network.port) (int64 $v.network.adminPort) -}}
{{- fail (printf "network.adminPort: %d is network.port, too: give one of them another" (int64 $v.network.port)) -}}
{{- end -}}
{{- if hasPrefix "[" $v.network.address -}}
{{- include "pierhead.checkIPv6" (list "network.address" $v.network.address) -}}
{{- else if not (include "pierhead.isIPv4" $v.network.address) -}}
{{- fail (printf "network.address: %s is no IPv4 address: write four decimal parts, or IPv6 in brackets" $v.network.address) -}}
{{- end -}}
{{- if gt (len $v.network.interface) 15 -}}
{{- fail (printf "network.interface: %s has more than the 15 bytes of an interface's name" $v.network.interface) -}}
{{- end -}}
{{- if not $v.tls.clientCAKey -}}
{{- range $key := list "clientOptional" "clientNames" "clientCASecretName" -}}
{{- if get $v.tls $key -}}
{{- fail (printf "tls.clientCAKey: is needed with tls.%s" $key) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $v.env -}}
{{- if and (regexMatch "^(https_proxy|HTTPS_PROXY)$" .name) .value (not (regexMatch "^http://[^\\s/]+(/\\S*)?$" .value)) -}}
{{- fail (printf "env: %s is not http://[user:password@]host:port" .name) -}}
{{- end -}}
{{- end -}}
{{- include "pierhead.checkUpstreams" . -}}
{{- end -}}

{{- define "pierhead.checkUpstreams" -}}
{{- $known := dict -}}
{{- range $name, $it := .Values.upstreams -}}
{{- include "pierhead.checkRegistry" (list (printf "upstreams.%s" $name) $name) -}}
{{- $registry := include "pierhead.registry" $name -}}
{{- with get $known $registry -}}
{{- fail (printf "upstreams.%s: is another name of %s: keep one of them" $name .) -}}
{{- end -}}
{{- $_ := set $known $registry $name -}}
{{- if and $it.passwordSecret $it.identityTokenSecret -}}
{{- fail (printf "upstreams.%s.identityTokenSecret: not together with passwordSecret: keep one" $name) -}}
{{- end -}}
{{- if and $it.username (not $it.passwordSecret) -}}
{{- fail (printf "upstreams.%s.passwordSecret: is needed with username" $name) -}}
{{- end -}}
{{- if and $it.loginHosts (not $it.addresses) -}}
{{- fail (printf "upstreams.%s.loginHosts: is for several addresses: remove it" $name) -}}
{{- end -}}
{{- $addresses := list -}}
{{- $own := 0 -}}
{{- $usual := list $registry (ternary "registry-1.docker.io" $registry (eq $registry "docker.io")) -}}
{{- range $it.addresses -}}
{{- $address := trimSuffix "/" . -}}
{{- if has $address $addresses -}}
{{- fail (printf "upstreams.%s.addresses: %s is named twice: keep one" $name .) -}}
{{- end -}}
{{- $addresses = append $addresses $address -}}
{{- $authority := regexReplaceAll "^https?://([^/]*).*$" . "${1}" | lower -}}
{{- if or (has $authority $usual) (has (regexReplaceAll ":[0-9]+$" $authority "") $usual) -}}{{- $own = add $own 1 -}}{{- end -}}
{{- end -}}
{{- /* A password must not be shown to a host just because it is listed beside another. */ -}}
{{- if and (or $it.passwordSecret $it.identityTokenSecret) (gt (len $addresses) 1) (not $it.loginHosts) (ne (int64 $own) 1) -}}
{{- fail (printf "upstreams.%s.loginHosts: is needed: which of the addresses is the login for?" $name) -}}
{{- end -}}
{{- end -}}
{{- end -}}
