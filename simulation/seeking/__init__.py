"""One model of a stream subscription that is sought, rewound, joined and left, and what is done to it.

Begin with `seek_model`.
"""
