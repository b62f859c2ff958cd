{{/* What the schema cannot say: values that do not work together. Each is refused with what to do. */}}
{{- define "txnstore.refusals" -}}
{{- $root := . -}}
{{- $together := .Values.rolesTogether -}}
{{- $broker := .Values.broker -}}
{{- $many := ternary $broker.autoscaling.maxReplicas $broker.replicas $broker.autoscaling.enabled | int -}}
{{- if and (gt $many 1) (ne $broker.persistence.accessMode "ReadWriteMany") -}}
{{- fail (printf "broker: %d brokers share one data folder, which %s does not let them mount: set broker.persistence.accessMode to ReadWriteMany, or run one broker" $many $broker.persistence.accessMode) -}}
{{- end -}}
{{- if and .Values.backup.enabled (eq $broker.persistence.accessMode "ReadWriteOncePod") -}}
{{- fail "backup.enabled: a backup reads the brokers' claim, and ReadWriteOncePod is for one pod alone; set broker.persistence.accessMode to ReadWriteOnce" -}}
{{- end -}}
{{- if and .Values.etcd.enabled .Values.externalEtcd.endpoints -}}
{{- fail "externalEtcd.endpoints: the release has an etcd of its own; set etcd.enabled to false to use the external one" -}}
{{- end -}}
{{- if not (or .Values.etcd.enabled .Values.externalEtcd.endpoints) -}}
{{- fail "externalEtcd.endpoints: name every member of the external etcd, or set etcd.enabled to true" -}}
{{- end -}}
{{- if not .Values.etcd.enabled -}}
{{- $encrypted := 0 -}}
{{- range .Values.externalEtcd.endpoints -}}{{- if hasPrefix "https://" . -}}{{- $encrypted = add1 $encrypted -}}{{- end -}}{{- end -}}
{{- if and $encrypted (ne (int $encrypted) (len .Values.externalEtcd.endpoints)) -}}
{{- fail "externalEtcd.endpoints: some are http and some https; a process uses one of the two for all" -}}
{{- end -}}
{{- if and .Values.externalEtcd.tls.existingSecret (not $encrypted) -}}
{{- fail "externalEtcd.tls.existingSecret: the endpoints are http, so no certificate is looked at; name them as https" -}}
{{- end -}}
{{- if and $encrypted (not .Values.externalEtcd.tls.existingSecret) -}}
{{- fail "externalEtcd.tls.existingSecret: https endpoints need a Secret with ca.crt, which says who signed etcd's certificate" -}}
{{- end -}}
{{- if .Values.defragmentation.enabled -}}
{{- fail "defragmentation.enabled: an external etcd is defragmented by who runs it (and by the elected coordinator); set it to false" -}}
{{- end -}}
{{- else -}}
{{- range $name := list "tls" "auth" -}}
{{- if (index $root.Values.externalEtcd $name).existingSecret -}}
{{- fail (printf "externalEtcd.%s.existingSecret: it is for an external etcd, and the release has its own; set etcd.enabled to false, or leave it empty" $name) -}}
{{- end -}}
{{- end -}}
{{- if .Values.externalEtcd.prefix -}}
{{- fail "externalEtcd.prefix: it is for an external etcd, and the release has its own; set etcd.enabled to false, or leave it empty" -}}
{{- end -}}
{{- if and .Values.etcd.podDisruptionBudget.enabled (gt (int .Values.etcd.replicas) 1) (gt (mul 2 (int .Values.etcd.podDisruptionBudget.maxUnavailable)) (sub (int .Values.etcd.replicas) 1)) -}}
{{- fail (printf "etcd.podDisruptionBudget.maxUnavailable: %d of %d members away leave no majority" (int .Values.etcd.podDisruptionBudget.maxUnavailable) (int .Values.etcd.replicas)) -}}
{{- end -}}
{{- if lt (int .Values.etcd.electionMs) (mul 5 (int .Values.etcd.heartbeatMs)) -}}
{{- fail (printf "etcd.electionMs: %d is less than five heartbeats of %d ms, which etcd refuses" (int .Values.etcd.electionMs) (int .Values.etcd.heartbeatMs)) -}}
{{- end -}}
{{- end -}}
{{- if lt (int .Values.drain.terminationGracePeriodSeconds) (add 15 (int .Values.drain.seconds)) -}}
{{- fail (printf "drain.terminationGracePeriodSeconds: %d s would kill a server that hands over; give it drain.seconds and 15 more, %d" (int .Values.drain.terminationGracePeriodSeconds) (add 15 (int .Values.drain.seconds))) -}}
{{- end -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) -}}
{{- fail "ingress.hosts: name at least one host, or set ingress.enabled to false" -}}
{{- end -}}
{{- if eq (int .Values.ports.client) (int .Values.ports.http) -}}
{{- fail (printf "ports: client and http are both %d; give each its own" (int .Values.ports.client)) -}}
{{- end -}}
{{- if and $together .Values.coordinator.autoscaling.enabled -}}
{{- fail "coordinator.autoscaling.enabled: with rolesTogether there are no coordinators apart; scale the broker" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.clients) -}}
{{- fail "networkPolicy.clients: nobody could use the cluster; name who may, or set networkPolicy.enabled to false" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled (not .Values.networkPolicy.dns) -}}
{{- fail "networkPolicy.dns: no server would find etcd; say where DNS is" -}}
{{- end -}}
{{- if and .Values.networkPolicy.enabled .Values.serviceMonitor.enabled (not .Values.networkPolicy.monitoring) -}}
{{- fail "networkPolicy.monitoring: serviceMonitor is enabled, and no Prometheus may reach the pods; say where it is" -}}
{{- end -}}
{{- range $component := list "coordinator" "controller" "broker" "admin" "etcd" -}}
{{- $own := index $root.Values $component -}}
{{- range $label, $_ := $own.podLabels -}}
{{- if hasPrefix "app.kubernetes.io/" $label -}}
{{- fail (printf "%s.podLabels: %s is the chart's own; its selectors go by it" $component $label) -}}
{{- end -}}
{{- end -}}
{{- range $own.extraEnv -}}
{{- if or (hasPrefix "TXN_ETCD" .name) (has .name (list "POD_NAME" "POD_IP" "TXN_ROLES" "TXN_ID" "TXN_LISTEN" "TXN_ADVERTISE" "TXN_ADMIN_LISTEN" "TXN_DATA_DIR" "TXN_URL")) -}}
{{- fail (printf "%s.extraEnv: the chart sets %s itself" $component .name) -}}
{{- end -}}
{{- end -}}
{{- range $own.extraVolumes -}}
{{- if has .name (list "tmp" "data" "etcd-tls") -}}
{{- fail (printf "%s.extraVolumes: the chart has a volume %s itself; give it another name" $component .name) -}}
{{- end -}}
{{- end -}}
{{- with $own.autoscaling -}}
{{- if and .enabled (gt (int .minReplicas) (int .maxReplicas)) -}}
{{- fail (printf "%s.autoscaling: minReplicas %d is above maxReplicas %d" $component (int .minReplicas) (int .maxReplicas)) -}}
{{- end -}}
{{- if and .enabled (not .cpuPercent) (not .podMetrics) -}}
{{- fail (printf "%s.autoscaling: neither cpuPercent nor podMetrics says by what to scale" $component) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $label, $_ := .Values.commonLabels -}}
{{- if hasPrefix "app.kubernetes.io/" $label -}}
{{- fail (printf "commonLabels: %s is the chart's own; its selectors go by it" $label) -}}
{{- end -}}
{{- end -}}
{{- end -}}
