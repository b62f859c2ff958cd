"""The rules of the history checker (`simulation.judges.checker`), a file for each kind of question.

Decides which histories of clients are impossible. Imports `history` and `refusals`. Begin with `facts`, then `values`.
"""
