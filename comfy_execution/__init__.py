"""The graph engine: what a prompt means, which node comes next, what is remembered, what is reported.

No torch in here: nodes work with tensors, the engine only carries them from one to the other.
"""
