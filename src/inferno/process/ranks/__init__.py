"""Several processes that compute each step together: rank 0 is the engine's own, the others follow.

Rank 0 plans, masks and draws. Followers are sent each step, the drafts that it verifies, and what
the step before it drew; their only answer is their part of the collectives. When one of them ends,
all do: the group is one unit of failure.

Importing this package loads nothing.
"""
