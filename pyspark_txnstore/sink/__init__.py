"""The sink: each micro-batch, or each `df.write`, is one named transaction with a writer for each task attempt.

Decides which attempts count. Imports `shared`. Begin with `sink`, then `attempt` and `winners`.
"""
