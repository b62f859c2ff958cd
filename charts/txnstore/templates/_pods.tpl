{{/* What tells any process of ours where etcd is: environment variables, which hold for `serve` and `backup` alike. */}}
{{- define "txnstore.etcdEnv" -}}
- name: TXN_ETCD
  value: {{ include "txnstore.etcdEndpoints" . | quote }}
- name: TXN_ETCD_QUOTA_BYTES
  value: {{ ternary .Values.etcd.quotaBytes .Values.externalEtcd.quotaBytes .Values.etcd.enabled | int64 | quote }}
{{- if not .Values.etcd.enabled }}
{{- with .Values.externalEtcd }}
{{- if .prefix }}
- name: TXN_ETCD_PREFIX
  value: {{ .prefix | quote }}
{{- end }}
{{- if .tls.existingSecret }}
- name: TXN_ETCD_CA
  value: /etc/txnstore/etcd-tls/ca.crt
{{- if .tls.clientCertificate }}
- name: TXN_ETCD_CERT
  value: /etc/txnstore/etcd-tls/tls.crt
- name: TXN_ETCD_KEY
  value: /etc/txnstore/etcd-tls/tls.key
{{- end }}
{{- end }}
{{- if .auth.existingSecret }}
- name: TXN_ETCD_USER
  valueFrom:
    secretKeyRef:
      name: {{ .auth.existingSecret }}
      key: username
- name: TXN_ETCD_PASSWORD
  valueFrom:
    secretKeyRef:
      name: {{ .auth.existingSecret }}
      key: password
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "txnstore.etcdTlsMounted" -}}
{{- if and (not .Values.etcd.enabled) .Values.externalEtcd.tls.existingSecret -}}yes{{- end -}}
{{- end -}}

{{/* Where pods of a component are put. Takes [root, component, its values]. */}}
{{- define "txnstore.placement" -}}
{{- $selector := include "txnstore.componentSelector" (list (index . 0) (index . 1)) -}}
{{- with index . 2 -}}
{{- if .affinity }}
affinity: {{- toYaml .affinity | nindent 2 }}
{{- else if eq .antiAffinity "hard" }}
affinity:
  podAntiAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      - topologyKey: kubernetes.io/hostname
        labelSelector:
          matchLabels: {{- $selector | nindent 12 }}
{{- else if eq .antiAffinity "soft" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {{- $selector | nindent 14 }}
{{- end }}
{{- if .spreadOverZones }}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: topology.kubernetes.io/zone
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels: {{- $selector | nindent 8 }}
{{- end }}
{{- with .priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Every pod of ours: no token of Kubernetes, no variables for each Service of the namespace. */}}
{{- define "txnstore.podCommon" -}}
serviceAccountName: {{ include "txnstore.serviceAccount" . }}
automountServiceAccountToken: false
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The metadata of a pod, without the chart's version: a new one alone restarts nothing. Takes [root, component, labels, annotations]. */}}
{{- define "txnstore.podMetadata" -}}
{{- $root := index . 0 -}}
labels:
  {{- include "txnstore.componentSelector" (list $root (index . 1)) | nindent 2 }}
  {{- with merge (deepCopy (index . 2)) $root.Values.commonLabels }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with merge (deepCopy (index . 3)) $root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* The pod of a server. Takes [root, component, roles, its values, the address that it tells others]. */}}
{{- define "txnstore.serverPod" -}}
{{- $root := index . 0 -}}
{{- $component := index . 1 -}}
{{- $roles := index . 2 -}}
{{- $own := index . 3 -}}
{{- $keepsData := has "broker" (splitList "," $roles) -}}
{{- $tls := include "txnstore.etcdTlsMounted" $root -}}
metadata: {{- include "txnstore.podMetadata" (list $root $component $own.podLabels $own.podAnnotations) | nindent 2 }}
spec:
  {{- include "txnstore.podCommon" $root | nindent 2 }}
  {{- include "txnstore.placement" (list $root $component $own) | trim | nindent 2 }}
  securityContext: {{- toYaml $root.Values.podSecurityContext | nindent 4 }}
  terminationGracePeriodSeconds: {{ $root.Values.drain.terminationGracePeriodSeconds }}
  containers:
    - name: {{ $component }}
      image: {{ include "txnstore.image" (list $root.Values.image $root.Chart.AppVersion) }}
      imagePullPolicy: {{ $root.Values.image.pullPolicy }}
      command: [txnctl, serve]
      args:
        - --roles={{ $roles }}
        - --id=$(POD_NAME)
        - --listen={{ $root.Values.listenHost }}:{{ $root.Values.ports.client }}
        - --advertise={{ index . 4 }}:{{ $root.Values.ports.client }}
        - --admin-listen={{ $root.Values.listenHost }}:{{ $root.Values.ports.http }}
        {{- if $keepsData }}
        - --data-dir=/var/lib/txnstore
        {{- end }}
      env:
        - name: POD_NAME
          valueFrom:
            fieldRef:
              fieldPath: metadata.name
        - name: POD_IP
          valueFrom:
            fieldRef:
              fieldPath: status.podIP
        {{- include "txnstore.etcdEnv" $root | nindent 8 }}
        {{- if has "admin" (splitList "," $roles) }}
        # For `txnctl` in this pod.
        - name: TXN_URL
          value: txn://127.0.0.1:{{ $root.Values.ports.client }}
        {{- end }}
        {{- range $name, $value := $root.Values.settings }}
        - name: {{ printf "TXN_%s" (upper $name) }}
          value: {{ include "txnstore.plain" $value | quote }}
        {{- end }}
        {{- with $own.extraEnv }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
      ports:
        - name: client
          containerPort: {{ $root.Values.ports.client }}
        - name: http
          containerPort: {{ $root.Values.ports.http }}
      startupProbe:
        httpGet:
          path: /healthz
          port: http
        {{- toYaml $root.Values.probes.startup | nindent 8 }}
      livenessProbe:
        httpGet:
          path: /healthz
          port: http
        {{- toYaml $root.Values.probes.liveness | nindent 8 }}
      readinessProbe:
        httpGet:
          path: /readyz
          port: http
        {{- toYaml $root.Values.probes.readiness | nindent 8 }}
      lifecycle:
        preStop:
          sleep:
            seconds: {{ $root.Values.drain.seconds }}
      resources: {{- toYaml $own.resources | nindent 8 }}
      securityContext: {{- toYaml $root.Values.containerSecurityContext | nindent 8 }}
      volumeMounts:
        - name: tmp
          mountPath: /tmp
        {{- if $keepsData }}
        - name: data
          mountPath: /var/lib/txnstore
          {{- with $own.persistence.subPath }}
          subPath: {{ . }}
          {{- end }}
        {{- end }}
        {{- if $tls }}
        - name: etcd-tls
          mountPath: /etc/txnstore/etcd-tls
          readOnly: true
        {{- end }}
        {{- with $own.extraVolumeMounts }}
        {{- toYaml . | nindent 8 }}
        {{- end }}
  volumes:
    - name: tmp
      emptyDir: {}
    {{- if $keepsData }}
    - name: data
      persistentVolumeClaim:
        claimName: {{ default (printf "%s-broker" (include "txnstore.fullname" $root)) $own.persistence.existingClaim }}
    {{- end }}
    {{- if $tls }}
    - name: etcd-tls
      secret:
        secretName: {{ $root.Values.externalEtcd.tls.existingSecret }}
    {{- end }}
    {{- with $own.extraVolumes }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end -}}

{{/* Helm reads whole numbers as floats: 1e+09 is no setting. */}}
{{- define "txnstore.plain" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) -}}{{ int64 . }}{{- else -}}{{ . }}{{- end -}}
{{- end -}}
