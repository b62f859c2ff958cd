"""The rules of the history checker (`simulation.judges.checker`), a file for each kind of question."""
