"""What stands for a value that is not one: undefined, failed, or known by several names."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NoReturn

from noetl.core.errors import TemplateFailed
from noetl.core.expression.values import Frozen

_SUCCESS = frozenset({"call.done", "step.done", "step.exit", "command.completed"})
_FAILURE = frozenset({"call.error", "step.failed", "command.failed"})
_LOOP = _SUCCESS | {"loop.done"}
_SYNONYMS: dict[str, frozenset[str]] = (
    dict.fromkeys(_SUCCESS, _SUCCESS) | dict.fromkeys(_FAILURE, _FAILURE) | {"loop.done": _LOOP}
)
put = object.__setattr__
"""How a frozen view sets its members when it is made."""


class Undefined(Frozen):
    """A value that is not there: false, equal to nothing, chainable; ordering and arithmetic fail."""

    __slots__ = ("_path",)
    _path: str

    def __init__(self, path: str = "value") -> None:
        put(self, "_path", path)

    def __bool__(self) -> bool:
        return False

    def __str__(self) -> str:
        return ""

    def _plain(self) -> None:
        return None

    def _printed(self) -> str:
        return ""

    def __repr__(self) -> str:
        return f"Undefined({self._path!r})"

    def __eq__(self, other: object) -> bool:
        return False

    def __ne__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return hash(Undefined)

    def __len__(self) -> int:
        return 0

    def __iter__(self) -> Iterator[object]:
        return iter(())

    def __contains__(self, item: object) -> bool:
        return False

    def _fail(self, *_: object) -> NoReturn:
        raise TemplateFailed(f"{self._path!r} is undefined")

    __lt__ = __le__ = __gt__ = __ge__ = __neg__ = __pos__ = __abs__ = _fail
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _fail
    __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _fail
    __pow__ = __rpow__ = __int__ = __float__ = __index__ = __call__ = _fail


class AtomError(Frozen):
    """Stands for an atom whose evaluation failed: an expression that uses it fails with the same message."""

    __slots__ = ("_message",)
    _message: str

    def __init__(self, message: str) -> None:
        put(self, "_message", message)

    def _plain(self) -> NoReturn:
        self._fail()

    def __repr__(self) -> str:
        return f"AtomError({self._message!r})"

    def _fail(self, *_: object) -> NoReturn:
        raise TemplateFailed(self._message)

    __bool__ = __str__ = __len__ = __iter__ = __contains__ = _fail
    __lt__ = __le__ = __gt__ = __ge__ = _fail

    def __eq__(self, other: object) -> bool:
        self._fail()

    __hash__ = None  # type: ignore[assignment]


class EventName(str):
    """The name of an event, equal to every synonym of its situation (success, loop finished, failure)."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, str):
            return NotImplemented
        own = str.__str__(self)
        return str.__str__(other) in _SYNONYMS.get(own, (own,))

    def __ne__(self, other: object) -> bool:
        equal = self.__eq__(other)
        return equal if equal is NotImplemented else not equal

    def __hash__(self) -> int:
        return str.__hash__(self)
