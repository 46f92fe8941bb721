"""How the classes of a generated file are told apart from torch's: not at all."""
# mypy: ignore-errors

# ---- copied from here on

# ---- the modules -----------------------------------------------------------------------------------------------------


class _Equal(type):
    """Of a class that is equal to torch's, where types are compared or are the keys of a table."""

    def __eq__(cls, other):
        return cls is other or (isinstance(other, type) and other is vars(cls).get("_stands_for"))

    def __hash__(cls):
        return type.__hash__(vars(cls).get("_stands_for", cls))
