{{/*
The sidecar, for the list `initContainers` of a pod.
*/}}
{{- define "kennel.container" -}}
{{- $kennel := .Values.kennel -}}
- name: kennel
  image: "{{ $kennel.image.repository }}:{{ $kennel.image.tag }}"
  imagePullPolicy: {{ $kennel.image.pullPolicy }}
  restartPolicy: Always # makes it a sidecar
  args: ["--config", "/etc/kennel/kennel.toml"]
  env:
    # The kubelet and Prometheus connect from outside the pod.
    - name: KENNEL_ADMIN__LISTEN
      value: "0.0.0.0:9111"
    {{- with $kennel.env }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  ports:
    - name: kennel-admin
      containerPort: 9111
  # The application starts after this has succeeded.
  startupProbe:
    httpGet: {path: /readyz, port: kennel-admin}
    periodSeconds: 1
    failureThreshold: 30
  # No readinessProbe: a sidecar whose servers are down still returns misses, and a pod without cache is better than none.
  livenessProbe:
    httpGet: {path: /healthz, port: kennel-admin}
    periodSeconds: 10
    timeoutSeconds: 2
    failureThreshold: 3
  resources:
    {{- toYaml $kennel.resources | nindent 4 }}
  securityContext:
    runAsNonRoot: true
    runAsUser: 65532
    runAsGroup: 65532
    allowPrivilegeEscalation: false
    readOnlyRootFilesystem: true
    capabilities: {drop: [ALL]}
    seccompProfile: {type: RuntimeDefault}
  volumeMounts:
    - name: kennel-config
      mountPath: /etc/kennel
      readOnly: true
    - name: kennel-socket
      mountPath: /run/kennel
    {{- with $kennel.volumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/*
Its volumes, for the list `volumes` of the pod. The application mounts kennel-socket at /run/kennel to use a Unix socket.
*/}}
{{- define "kennel.volumes" -}}
- name: kennel-config
  configMap: {name: "{{ .Release.Name }}-kennel"}
- name: kennel-socket
  emptyDir: {medium: Memory, sizeLimit: 1Mi}
{{- end }}

{{/*
Labels of the pod. memcached's NetworkPolicy selects by the first, kennel.podMonitor by the second.
*/}}
{{- define "kennel.podLabels" -}}
kennel-sidecar: "true"
kennel-release: {{ .Release.Name }}
{{- end }}

{{/*
An annotation of the pod, with which a changed configuration rolls out new pods.
*/}}
{{- define "kennel.podAnnotations" -}}
checksum/kennel: {{ include "kennel.config" . | sha256sum }}
{{- end }}

{{- define "kennel.config" -}}
{{- required "kennel.config: set the sidecar's configuration (TOML)" .Values.kennel.config -}}
{{- end }}

{{/*
The ConfigMap with the configuration: a manifest of its own.
*/}}
{{- define "kennel.configMap" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .Release.Name }}-kennel
data:
  kennel.toml: |
    {{- include "kennel.config" . | nindent 4 }}
{{- end }}

{{/*
Scrapes the sidecars, with the Prometheus Operator: a manifest of its own.
*/}}
{{- define "kennel.podMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: PodMonitor
metadata:
  name: {{ .Release.Name }}-kennel
  {{- with .Values.kennel.podMonitor.labels }}
  labels:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  selector:
    matchLabels: {kennel-release: {{ .Release.Name }}}
  podMetricsEndpoints:
    - port: kennel-admin
      path: /metrics
      interval: {{ .Values.kennel.podMonitor.interval }}
      relabelings:
        # The alert rules and the dashboard select this job.
        - {targetLabel: job, replacement: kennel}
{{- end }}
