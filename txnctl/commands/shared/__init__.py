"""What the commands share: their connection to a cluster, their settings, groups of them, output and typed units.

Decides how answers look and how a command ends; knows no command. Begin with `asking` and `output`.
"""
