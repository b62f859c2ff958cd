"""The rules of the history checker (`simulation.checker`), a file for each kind of question."""
