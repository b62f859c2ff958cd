#!/bin/sh
# Starts the flights job on Kubernetes, with two executors: `KUBERNETES=https://… examples/kubernetes/spark-submit.sh`, from the
# root of the repository, with a spark-submit of the image's version. Kubernetes does not start a driver again that has died: run this
# once more, and the job goes on from its checkpoint. Where the Spark operator is installed, spark-application.yaml does that by itself.
set -eu
exec spark-submit \
    --master "k8s://${KUBERNETES:?name the address of the Kubernetes API}" \
    --deploy-mode cluster \
    --name flights \
    --conf spark.kubernetes.namespace=shop \
    --conf spark.kubernetes.container.image=txnstore-spark:local \
    --conf spark.kubernetes.container.image.pullPolicy=IfNotPresent \
    --conf spark.kubernetes.authenticate.driver.serviceAccountName=spark \
    --conf spark.kubernetes.driver.podTemplateFile=examples/kubernetes/driver-pod.yaml \
    --conf spark.kubernetes.driver.podTemplateContainerName=spark \
    --conf spark.kubernetes.executor.podTemplateFile=examples/kubernetes/executor-pod.yaml \
    --conf spark.kubernetes.executor.podTemplateContainerName=spark \
    --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.flights.options.claimName=flights \
    --conf spark.kubernetes.driver.volumes.persistentVolumeClaim.flights.mount.path=/shared \
    --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.flights.options.claimName=flights \
    --conf spark.kubernetes.executor.volumes.persistentVolumeClaim.flights.mount.path=/shared \
    --conf spark.driver.memory=1g \
    --conf spark.kubernetes.driver.limit.cores=1 \
    --conf spark.executor.instances=2 \
    --conf spark.executor.cores=1 \
    --conf spark.executor.memory=1g \
    --conf spark.kubernetes.executor.limit.cores=1 \
    local:///opt/spark/jobs/flights.py \
    --service txn://shop-txnstore:6650,shop-txnstore-admin:6650 \
    --flights topic://public/nyc/flights \
    --statistics topic://public/nyc/statistics \
    --airlines /shared/airlines.csv \
    --planes /shared/planes.csv \
    --parquet /shared/statistics.parquet \
    --checkpoint /shared/checkpoint \
    --max-bytes 8m
