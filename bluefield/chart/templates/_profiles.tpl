{{/*
Sizing. What it counts with: 60 MB for each worker of bundles while it makes an image ready and 150 MB while it
improves one, limits.answer_memory, 24 MiB of documents under way, cache.memory, and 64 KiB for each TLS connection.
*/}}
{{- define "pierhead.profile" -}}
{{- if eq .Values.profile "small" -}}
resources:
  requests: {cpu: 100m, memory: 128Mi}
  limits: {cpu: 500m, memory: 256Mi}
config:
  bundle: {enabled: false}
  limits: {threads: 1, connections: 512, connections_per_client: 256, answer_memory: 48MiB, answer_memory_per_client: 24MiB, upstream_fetches: 16, upstream_fetches_per_client: 8, upstream_fetches_per_registry: 12}
{{- else if eq .Values.profile "bluefield2" -}}
resources:
  requests: {cpu: 500m, memory: 512Mi}
  limits: {cpu: "2", memory: 1Gi}
config:
  bundle: {workers: 1, cpu: 25}
  limits: {threads: 2}
{{- else if eq .Values.profile "bluefield3" -}}
resources:
  requests: {cpu: "1", memory: 1Gi}
  limits: {cpu: "4", memory: 2Gi}
config:
  cache: {memory: 16MiB}
  bundle: {workers: 2, cpu: 50}
  limits: {threads: 4, answer_memory: 256MiB}
{{- else -}}
resources:
  requests: {cpu: "2", memory: 2Gi}
  limits: {memory: 4Gi}
config:
  cache: {memory: 64MiB}
  bundle: {workers: 4, cpu: 100}
  limits: {threads: 0, connections: 8192, answer_memory: 512MiB, answer_memory_per_client: 128MiB}
{{- end -}}
{{- end -}}
