"""One owned segment as a whole: how it is taken over, serves, is sealed, and is given up.

Decides what a segment's owner may answer, and when. Imports `subscription` and below. Begin with `segment`, then
`take_over` (how an owner comes to know what its predecessor knew) and `sealing` (how a split or merge ends it).
"""
