"""Instances of a program's own classes, in processes that do not have these classes."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import partial
from types import SimpleNamespace
from typing import Any

from tconv.sandbox.model_file import LoadedModel, ModelFileError, blamed, of_model_file

_NAMESPACES = (SimpleNamespace, Namespace)
#: The only field of an enum's member.
_MEMBER = "name"


class Unportable(TypeError):
    """A value of a kind that cannot be passed to another process."""


class Record(dict[Any, Any]):
    """An instance of a dataclass, a model file's class, a named tuple, a namespace, an enum or a subclass of dict.

    It stands for that where the class is not known.

    Its fields by name; of a dict its items, of an enum's member its name.

    Args:
        name, module: of the class.
        attributes: of a dict, the record itself where items and attributes are one; None for what is no dict.
    """

    def __init__(
        self, name: str, values: Mapping[Any, Any], module: str = "", attributes: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__(values)
        self.name = name
        self.module = module
        self.attributes = attributes

    def __hash__(self) -> int:  # type: ignore[override]
        """Of what it has, and not of the values: members of enums are keys of dicts."""
        return hash(frozenset(self))

    def also_item(self, name: str) -> bool:
        """Whether a dict's attribute of that name is its item of that name, as where ``d.x`` and ``d["x"]`` are one."""
        return name in self and self[name] is (self.attributes or {})[name]

    def changed(self, change: Callable[[Any], Any]) -> Record:
        """The same of other values."""
        made = Record(self.name, {key: change(item) for key, item in self.items()}, self.module)
        if self.attributes is self:
            made.attributes = made
        elif self.attributes is not None:
            made.attributes = {
                name: made[name] if self.also_item(name) else change(value) for name, value in self.attributes.items()
            }
        return made

    def made(self, kind: type) -> Any:
        """The instance of `kind`, as copying makes one: its constructor does not run.

        Raises:
            Unportable: `kind` is an enum without such a member.
        """
        if issubclass(kind, Enum):
            if self[_MEMBER] not in kind.__members__:
                raise Unportable(f"no {self[_MEMBER]} in {self.name}")
            return kind[self[_MEMBER]]
        if issubclass(kind, tuple):
            return kind(**self)
        made = kind.__new__(kind)
        if self.attributes is None:
            for name, item in self.items():
                object.__setattr__(made, name, item)
            return made
        items: Any = _dict_of(kind)
        for key, item in self.items():
            items.__setitem__(made, key, item)
        if self.attributes is self:
            object.__setattr__(made, "__dict__", made)
        elif self.attributes:
            object.__getattribute__(made, "__dict__").update(self.attributes)
        return made


def record_of(value: Any) -> Record | None:
    """What stands for the value where its class is not known; None for a value of another kind."""
    kind = type(value)
    if issubclass(kind, Enum):
        named = value.name in kind.__members__  # what several flags make together may have no name
        return Record(kind.__qualname__, {_MEMBER: value.name}, kind.__module__) if named else None
    if isinstance(value, Record) or kind is dict:
        return value if isinstance(value, Record) else None
    if not isinstance(value, dict):
        values = fields_of(value)
        return None if values is None else Record(kind.__qualname__, values, kind.__module__)
    record = Record(kind.__qualname__, dict(_dict_of(kind).items(value)), kind.__module__)
    try:
        attributes = object.__getattribute__(value, "__dict__")
    except AttributeError:  # it has slots
        attributes = {}
    record.attributes = record if attributes is value else attributes
    return record


def fields_of(value: Any) -> dict[str, Any] | None:
    """What a dataclass's instance, a named tuple or a namespace has, by name; None for other values."""
    read = _reader_of(type(value))
    return None if read is None else read(value)


def _reader_of(kind: type) -> Callable[[Any], dict[str, Any]] | None:
    """What reads the fields of an instance of a class; None for one without fields, or whose fields nothing tells."""
    if issubclass(kind, tuple) and hasattr(kind, "_fields"):
        return lambda value: dict(zip(value._fields, value, strict=True))
    if issubclass(kind, _NAMESPACES):
        return lambda value: dict(vars(value))
    if is_dataclass(kind):
        names = [field.name for field in fields(kind)]
        return lambda value: {name: getattr(value, name) for name in names if hasattr(value, name)}
    return (lambda value: dict(vars(value))) if _is_plain(kind) else None


def _is_plain(kind: type) -> bool:
    """Whether a model file defines it, of nothing but what it defines: instances have what was assigned to them."""
    own = kind.__mro__[:-1]  # but for `object`
    return bool(own) and all(of_model_file(each) and "__slots__" not in vars(each) for each in own)


def restored(value: Any, classes: Mapping[str, Any]) -> Any:
    """The value with instances of `classes`, or of classes in modules that are loaded, in place of records.

    Raises:
        Unportable: there is no class of a record's name and kind.
    """
    inner = partial(restored, classes=classes)
    if isinstance(value, Record):
        kind = _class_of(value, classes)  # first: what is inside it may be missing, too
        return value.changed(inner).made(kind)
    if type(value) in (list, tuple):
        return type(value)(map(inner, value))
    if type(value) is dict:
        return {inner(key): inner(item) for key, item in value.items()}
    if type(value) is partial:
        return partial(value.func, *map(inner, value.args), **inner(value.keywords))
    return value


def restored_for(file: LoadedModel, value: Any) -> Any:
    """The value with the file's own classes.

    Raises:
        ModelFileError: it lacks one, or that makes no instances without arguments.
    """
    with blamed(file.path, "making what the model file passes to its model"):
        try:
            return restored(value, vars(file.namespace))
        except Unportable as error:
            advice = "which the model file passes to its model: define it at the top level, or import it"
            raise ModelFileError(f"{file.path.name} has {error}, {advice}") from None


def _class_of(record: Record, classes: Mapping[str, Any]) -> type:
    loaded = sys.modules.get(record.module)
    for found in (classes.get(record.name), getattr(loaded, "__dict__", {}).get(record.name)):
        if not isinstance(found, type):
            continue
        if issubclass(found, dict) if record.attributes is not None else _has_fields(found):
            return found
    kind = "class with fields" if record.attributes is None else "subclass of dict"
    raise Unportable(f"no {kind} called {record.name}")


def _has_fields(kind: type) -> bool:
    return issubclass(kind, Enum) or _reader_of(kind) is not None


def _dict_of(kind: type) -> type[dict[Any, Any]]:
    """Whose methods reach the items of that kind of dict, whatever the kind has in place of them."""
    return OrderedDict if issubclass(kind, OrderedDict) else dict
