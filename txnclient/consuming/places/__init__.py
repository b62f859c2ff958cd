"""Places in topics: where consumers and readers start, where a subscription stands and how far it is behind, seeks.

Decides which positions a start or a seek means. Knows no message and no feed. Begin with `positions`, then `starts`.
"""
