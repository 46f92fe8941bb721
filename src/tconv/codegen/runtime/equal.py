"""Classes of a generated file compare equal to torch's."""
# mypy: ignore-errors

# ---- copied from here on

# ---- the modules -----------------------------------------------------------------------------------------------------


class _Equal(type):
    """Metaclass: a class with it equals the class of torch that it stands for, and is found in tables by that class."""

    def __eq__(cls, other):
        return cls is other or (isinstance(other, type) and other is vars(cls).get("_stands_for"))

    def __hash__(cls):
        return type.__hash__(vars(cls).get("_stands_for", cls))
