#!/opt/spark/bin/python3
"""What Kubernetes starts in this image as Spark asks for it: `driver …` and `executor`; anything else is a command.

Spark tells a driver its address, and an executor everything, by variables of the environment.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

HOME = "/opt/spark/home"
EXECUTOR = "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend"
TOLD = {
    "--driver-url": "SPARK_DRIVER_URL",
    "--executor-id": "SPARK_EXECUTOR_ID",
    "--cores": "SPARK_EXECUTOR_CORES",
    "--app-id": "SPARK_APPLICATION_ID",
    "--hostname": "SPARK_EXECUTOR_POD_IP",
    "--resourceProfileId": "SPARK_RESOURCE_PROFILE_ID",
    "--podName": "SPARK_EXECUTOR_POD_NAME",
}
"""Flag of an executor → the variable with its value."""
JAVA_OPTION = "SPARK_JAVA_OPT_"


def driver(words: Sequence[str], told: Mapping[str, str]) -> list[str]:
    bind = f"spark.driver.bindAddress={told['SPARK_DRIVER_BIND_ADDRESS']}"
    return [f"{HOME}/bin/spark-submit", "--conf", bind, "--deploy-mode", "client", *words]


def executor(told: Mapping[str, str]) -> list[str]:
    numbered = sorted((int(name.removeprefix(JAVA_OPTION)), name) for name in told if name.startswith(JAVA_OPTION))
    conf = told.get("SPARK_CONF_DIR", f"{HOME}/conf")
    paths = [conf, f"{HOME}/jars/*", told.get("SPARK_EXTRA_CLASSPATH", ""), told.get("SPARK_CLASSPATH", "")]
    memory = told["SPARK_EXECUTOR_MEMORY"]
    java = ["java", *(told[name] for _, name in numbered), f"-Xms{memory}", f"-Xmx{memory}"]
    flags = [word for flag, name in TOLD.items() for word in (flag, told[name])]
    return [*java, "-cp", ":".join(filter(None, paths)), EXECUTOR, *flags]


def command(words: Sequence[str], told: Mapping[str, str]) -> list[str]:
    """Raises `KeyError` naming a variable that is missing."""
    match words:
        case ["driver", *rest]:
            return driver(rest, told)
        case ["executor"]:
            return executor(told)
    return list(words)


if __name__ == "__main__":
    try:
        found = command(sys.argv[1:], os.environ)
    except KeyError as error:
        sys.exit(f"the variable {error.args[0]} is missing: Spark sets it in the pods that it makes")
    os.execvp(found[0], found)
