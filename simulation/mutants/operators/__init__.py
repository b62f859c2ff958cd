"""Broken rules of commands, server processes, repairs and Spark, and of the judges themselves."""
