{{- define "txnstore.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{/* Room is left for the longest suffix of a part, and for the number of a pod or job. */}}
{{- define "txnstore.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 40 | trimSuffix "-" -}}
{{- else if contains (include "txnstore.name" .) .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" .Release.Name (include "txnstore.name" .) | trunc 40 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "txnstore.selector" -}}
app.kubernetes.io/name: {{ include "txnstore.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{/* Labels of an object. Takes [root, component]; an empty component is the release's own. */}}
{{- define "txnstore.labels" -}}
{{- $root := index . 0 -}}
{{- $own := dict
  "app.kubernetes.io/name" (include "txnstore.name" $root)
  "app.kubernetes.io/instance" $root.Release.Name
  "app.kubernetes.io/version" (toString $root.Chart.AppVersion)
  "app.kubernetes.io/managed-by" $root.Release.Service
  "helm.sh/chart" (printf "%s-%s" $root.Chart.Name $root.Chart.Version | replace "+" "_") -}}
{{- if index . 1 -}}{{- $_ := set $own "app.kubernetes.io/component" (index . 1) -}}{{- end -}}
{{- toYaml (merge $own $root.Values.commonLabels) -}}
{{- end -}}

{{/* The metadata of an object. Takes [root, name, component, annotations], and further labels. */}}
{{- define "txnstore.metadata" -}}
{{- $root := index . 0 -}}
name: {{ index . 1 }}
namespace: {{ $root.Release.Namespace }}
labels: {{- include "txnstore.labels" (list $root (index . 2)) | nindent 2 }}
{{- if gt (len .) 4 }}
{{- with index . 4 }}
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- with merge (deepCopy (index . 3)) $root.Values.commonAnnotations }}
annotations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Selects the pods of one component. Takes [root, component]. */}}
{{- define "txnstore.componentSelector" -}}
{{ include "txnstore.selector" (index . 0) }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{- define "txnstore.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "txnstore.fullname" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- default "default" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{/* Takes [image, default tag]. */}}
{{- define "txnstore.image" -}}
{{- $image := index . 0 -}}
{{- if $image.digest -}}
{{- printf "%s@%s" $image.repository $image.digest -}}
{{- else -}}
{{- printf "%s:%s" $image.repository (default (index . 1) $image.tag) -}}
{{- end -}}
{{- end -}}

{{/* Components that run servers, as a JSON object: component → roles. */}}
{{- define "txnstore.servers" -}}
{{- if .Values.rolesTogether -}}
{{- dict "broker" "coordinator,controller,broker,admin" | toJson -}}
{{- else -}}
{{- dict "coordinator" "coordinator" "controller" "controller" "broker" "broker" "admin" "admin" | toJson -}}
{{- end -}}
{{- end -}}

{{/* The component whose pods clients meet first, and the one that answers `txnctl`. */}}
{{- define "txnstore.entrance" -}}{{ ternary "broker" "coordinator" .Values.rolesTogether }}{{- end -}}
{{- define "txnstore.administrator" -}}{{ ternary "broker" "admin" .Values.rolesTogether }}{{- end -}}

{{- define "txnstore.domain" -}}{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}{{- end -}}

{{/* For clients: the Service, then the admin's, which answers what only it does. */}}
{{- define "txnstore.url" -}}
{{- $name := include "txnstore.fullname" . -}}
txn://{{ $name }}.{{ include "txnstore.domain" . }}:{{ .Values.ports.client }},{{ $name }}-admin.{{ include "txnstore.domain" . }}:{{ .Values.ports.client }}
{{- end -}}

{{/* Every member, so that a process may choose. */}}
{{- define "txnstore.etcdEndpoints" -}}
{{- if .Values.etcd.enabled -}}
{{- $name := printf "%s-etcd" (include "txnstore.fullname" .) -}}
{{- $domain := include "txnstore.domain" . -}}
{{- $all := list -}}
{{- range $n := until (int .Values.etcd.replicas) -}}
{{- $all = append $all (printf "http://%s-%d.%s.%s:2379" $name $n $name $domain) -}}
{{- end -}}
{{- join "," $all -}}
{{- else -}}
{{- join "," .Values.externalEtcd.endpoints -}}
{{- end -}}
{{- end -}}
