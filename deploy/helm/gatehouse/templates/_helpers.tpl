{{/* With "-99" it is a replica's id, which has up to 32 characters and no dot (docs/replicas.md). */}}
{{- define "gatehouse.name" -}}{{ regexReplaceAll "-+$" (.Release.Name | replace "." "-" | trunc 29) "" }}{{- end }}
{{- define "gatehouse.selector" -}}
app.kubernetes.io/name: gatehouse
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}
{{- define "gatehouse.labels" -}}
{{ include "gatehouse.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
{{- define "gatehouse.image" -}}
{{- $repository := .Values.image.repository | default (ternary "gatehouse-cuda" "gatehouse" .Values.gpu.enabled) -}}
{{- if .Values.image.digest }}{{ $repository }}@{{ .Values.image.digest }}{{ else }}{{ $repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
{{/* "1m30s" or 90 as seconds; 0 for what comes from a variable. */}}
{{- define "gatehouse.seconds" -}}
{{- $sum := 0.0 }}
{{- if regexMatch "^[0-9.a-z]+$" (toString .) }}
{{- range regexFindAll "[0-9.]+[a-z]*" (toString .) -1 }}
{{- $sum = addf $sum (mulf (regexFind "^[0-9.]+" .) (get (dict "" 1 "us" 0 "ms" 0.001 "s" 1 "m" 60 "h" 3600 "d" 86400) (regexFind "[a-z]*$" .) | default 0)) }}
{{- end }}
{{- end }}
{{- $sum }}
{{- end }}
{{/* The port of HOST:PORT; empty for no address, and for one from a variable. */}}
{{- define "gatehouse.port" -}}{{ regexFind "^[^$]+:[0-9]+$" (toString .) | regexFind "[0-9]+$" }}{{- end }}
{{/* The listener that kubelet can ask: it has no client certificate and sends no PROXY header. */}}
{{- define "gatehouse.probed" -}}
{{- $listen := .Values.config.listen -}}
{{ ternary "admin" "data" (or (eq (toString $listen.proxy_protocol) "required") (dig "require_client" false ($listen.tls | default dict))) }}
{{- end }}
{{/* Values that do not fit each other. What the configuration says wrong in itself, the gateway's own check finds. */}}
{{- define "gatehouse.check" -}}
{{- $listen := .Values.config.listen }}
{{- if not (regexMatch "^[a-z]" .Release.Name) }}{{ fail "the release's name must begin with a letter: Services have it" }}{{ end }}
{{- if and .Values.autoscaling.enabled (gt (int .Values.autoscaling.min) (int .Values.autoscaling.max)) }}{{ fail "autoscaling.min is greater than autoscaling.max" }}{{ end }}
{{- $replicas := ternary (int .Values.autoscaling.max) (int .Values.replicas) .Values.autoscaling.enabled }}
{{- $store := toString (dig "url" "sqlite" (.Values.config.store | default dict)) }}
{{- if and (gt $replicas 1) (hasPrefix "sqlite" $store) }}
{{- fail (printf "config.store.url is %s, but %d replicas need a PostgreSQL: each SQLite has keys and policies of its own. Give its URL, or set replicas to 1 (and autoscaling.enabled to false)" $store $replicas) }}
{{- end }}
{{- if not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):8080$" (toString $listen.data)) }}
{{- fail "config.listen.data must be 0.0.0.0:8080 or [::]:8080, where Services, probes and policies look for it" }}
{{- end }}
{{- $admin := toString ($listen.admin | default "127.0.0.1:8081") }}
{{- if not (hasSuffix ":8081" $admin) }}{{ fail "config.listen.admin must have the port 8081, which Services and policies name" }}{{ end }}
{{- if not (or $listen.admin_tls (regexMatch "^(127\\.|localhost:|\\[::1\\])" $admin)) }}
{{- fail "config.listen.admin is reached from other pods, so it needs config.listen.admin_tls; or let it listen on 127.0.0.1:8081" }}
{{- end }}
{{- if and $listen.admin_tls (not .Values.adminTls.secretName) }}{{ fail "adminTls.secretName is empty, but config.listen.admin_tls names its files" }}{{ end }}
{{- if and .Values.serviceMonitor.enabled (not (and $listen.admin_tls .Values.adminTls.secretName)) }}
{{- fail "serviceMonitor.enabled needs config.listen.admin_tls and adminTls.secretName: metrics are on the admin listener" }}
{{- end }}
{{- if eq (include "gatehouse.probed" .) "admin" }}
{{- $why := "config.listen.tls.require_client and config.listen.proxy_protocol: required keep Kubernetes' probes from the data listener, so they ask the admin listener" }}
{{- if regexMatch "^(127\\.|localhost:|\\[::1\\])" $admin }}{{ fail (printf "%s: set config.listen.admin to 0.0.0.0:8081 and config.listen.admin_tls" $why) }}{{ end }}
{{- if or (dig "require_client" false ($listen.admin_tls | default dict)) (eq (toString $listen.admin_proxy_protocol) "required") }}
{{- fail (printf "%s, which must then need neither a client certificate nor the PROXY protocol" $why) }}
{{- end }}
{{- end }}
{{- if and .Values.serviceMonitor.enabled (dig "require_client" false ($listen.admin_tls | default dict)) }}
{{- fail "serviceMonitor.enabled: Prometheus has no client certificate for config.listen.admin_tls.require_client" }}
{{- end }}
{{- range $setting, $address := dict "config.listen.grpc" $listen.grpc "config.model_sharing.listen" (dig "listen" "" (.Values.config.model_sharing | default dict)) }}
{{- if and $address (not (regexMatch "^(0\\.0\\.0\\.0|\\[::\\]):[1-9][0-9]*$" (toString $address))) }}{{ fail (printf "%s must be 0.0.0.0:PORT or [::]:PORT, where Services and policies look for it" $setting) }}{{ end }}
{{- end }}
{{- $needed := addf 10 (include "gatehouse.seconds" ($listen.drain_delay | default 0)) (include "gatehouse.seconds" ($listen.drain_timeout | default "30s")) }}
{{- if lt (float64 .Values.terminationGracePeriodSeconds) $needed }}
{{- fail (printf "terminationGracePeriodSeconds is %v, but config.listen.drain_delay, config.listen.drain_timeout and 10 s for the engines need %v" .Values.terminationGracePeriodSeconds $needed) }}
{{- end }}
{{- end }}
