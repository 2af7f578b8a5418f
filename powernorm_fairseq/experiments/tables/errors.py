"""The one exception of these modules."""


class ReproduceError(Exception):
    """A failure that one sentence explains."""
