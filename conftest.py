import os

pytest_plugins = ["tests.cluster"]

# Every Spark of a test is over before the better compiler of its JVM would pay: half of its CPU time without it.
os.environ.setdefault("SPARK_SUBMIT_OPTS", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
