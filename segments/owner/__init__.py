"""One owned segment as a whole: takes it over, serves it, seals it, gives it up.

Decides what a segment's owner may answer, and when. Imports `subscription` and below. Begin with `segment`, then the
theories of operation in `take_over` (how an owner restores its predecessor's state) and `sealing` (how a split or merge
ends a segment).
"""
