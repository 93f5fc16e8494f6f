"""One evaluation of one template: what it may use, what it still may spend, and what it warned about.

Everything a template does that could take time or memory asks here first, so a template without loops is safe
on an event loop.  The unit of work is about 50 ns: one element looked at, or 64 characters copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date, time, timedelta
from decimal import Decimal
from typing import Any, NoReturn
from uuid import UUID

from noetl.core.errors import TemplateFailed, TemplateRefused
from noetl.core.expression.values import key_text, normalise, plain, to_json
from noetl.core.expression.views import (
    SCALAR_TYPES,
    EventName,
    Made,
    MadeDict,
    Undefined,
    View,
    bare,
    is_seen,
)
from noetl.core.limits import (
    TEMPLATE_OUTPUT_CHARS_MAX,
    TEMPLATE_SEQUENCE_MAX,
    TEMPLATE_WORK_IN_CHILD_MAX,
    TEMPLATE_WORK_MAX,
    WARNINGS_MAX,
)

CHARS_PER_WORK = 64
WORK_PER_CONTAINER = 16
_CONTAINERS = (dict, list, tuple, range)
_HOST_TYPES = (date, time, timedelta, Decimal, UUID, bytes, bytearray, set, frozenset)
_WRAPPED = (View, EventName, Undefined)
_PRINTABLE_NUMBERS = SCALAR_TYPES - {str}


class _Plain:
    """What generated code asks about escaping: never."""

    autoescape = False
    volatile = False


class Evaluation:
    """The state of one evaluation.  Generated code uses it as Jinja's context, filters as their meter."""

    __slots__ = (
        "eval_ctx",
        "exported_vars",
        "now",
        "random",
        "resolve_or_missing",
        "strict",
        "token",
        "vars",
        "warnings",
        "work_left",
        "work_max",
    )

    def __init__(
        self,
        *,
        resolve: Callable[[str], Any],
        now: str | None = None,
        strict: bool = False,
        in_child: bool = False,
        warnings: list[str] | None = None,
        random: Callable[[int], int] | None = None,
    ) -> None:
        self.resolve_or_missing = resolve
        self.now = now
        self.strict = strict
        self.warnings = warnings
        self.random = random
        self.token: Callable[..., object] | None = None
        self.work_max = self.work_left = TEMPLATE_WORK_IN_CHILD_MAX if in_child else TEMPLATE_WORK_MAX
        self.eval_ctx = _Plain
        self.vars: dict[str, object] = {}
        self.exported_vars: set[str] = set()

    def charge(self, work: int) -> None:
        """Pay before doing; an evaluation that cannot pay is refused."""
        self.work_left -= work
        if self.work_left < 0:
            raise TemplateRefused(
                f"the expression does too much work, the limit is {self.work_max:,} elements; compute this in a step"
            )

    def charge_chars(self, chars: int) -> None:
        self.charge(chars // CHARS_PER_WORK + 1)

    def visit(self, value: object) -> None:
        """Pay for looking at every element of a value.

        A list that contains one list many times is small in memory and huge to compare, print or copy; so
        what counts is the number of elements met on the way, shared or not.
        """
        stack = [bare(value)]
        while stack:
            item: Any = stack.pop()
            if isinstance(item, _CONTAINERS):
                self.charge(len(item) + WORK_PER_CONTAINER)
                children = item.values() if isinstance(item, dict) else item
                stack.extend([bare(child) for child in children if type(child) not in SCALAR_TYPES])
            else:
                admit(item)

    def measure(self, value: object) -> None:
        """Pay for a value's text, and refuse it when it would be longer than a template may produce."""
        chars, stack = 0, [[value]]
        while stack:
            item: Any = stack.pop()
            self.charge(len(item) + WORK_PER_CONTAINER)
            chars += 2
            if isinstance(item, dict):
                chars += sum([len(key) + 6 if type(key) is str else 10 for key in item])
                item = item.values()
            for child in item:
                kind = type(child)
                if kind is str:
                    chars += len(child) + 4
                elif kind is int:
                    chars += child.bit_length() // 3 + 3
                elif kind in SCALAR_TYPES:
                    chars += 6
                else:
                    self._push(bare(child), stack)
            if chars > TEMPLATE_OUTPUT_CHARS_MAX:
                refuse_text(chars)

    def _push(self, child: Any, stack: list[Any]) -> None:
        if isinstance(child, _CONTAINERS):
            stack.append(child)
        else:
            admit(child)

    def text(self, value: object) -> str:
        """The text of a value, bounded; an undefined value is empty, with a warning or an error if strict."""
        kind = type(value)
        if kind is str:
            return value  # type: ignore[return-value]
        if kind in _PRINTABLE_NUMBERS:
            return str(value)
        if kind is Undefined:
            return self.undefined_text(value)  # type: ignore[arg-type]
        if isinstance(value, View):
            return self.text(bare(value))
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, _CONTAINERS):
            return self.json(value)
        admit(value)
        return str(normalise(value))

    def json(self, value: object, indent: int | None = None) -> str:
        self.measure(value)
        text = to_json(value, indent)
        if len(text) > TEMPLATE_OUTPUT_CHARS_MAX:
            refuse_text(len(text))
        return text

    def undefined_text(self, value: Undefined) -> str:
        if self.strict:
            raise TemplateFailed(f"{value._path!r} is undefined (strict_templates)")
        if self.warnings is not None and len(self.warnings) < WARNINGS_MAX:
            self.warnings.append(f"undefined_in_template: {value._path}")
        return ""

    def join(self, texts: Iterable[str], separator: str = "") -> str:
        """Join texts after their length was checked."""
        parts, chars = [], 0
        for part in texts:
            parts.append(part)
            chars += len(part) + len(separator)
            if chars > TEMPLATE_OUTPUT_CHARS_MAX + len(separator):
                refuse_text(chars)
        self.charge_chars(chars)
        return separator.join(parts)

    def settle(self, value: object) -> object:
        """The result as plain data.  Data is plain already; only what the template made is walked."""
        kind = type(value)
        if kind in SCALAR_TYPES or kind is list:
            return value
        if kind is dict:
            return without_views(value)  # type: ignore[arg-type]
        if kind is Undefined:
            return None
        if isinstance(value, MadeDict):
            self.charge(2 * len(value) + WORK_PER_CONTAINER)
            return {key_text(key): self.settle(item) for key, item in value.items()}
        if isinstance(value, Made | tuple):
            self.charge(2 * len(value) + WORK_PER_CONTAINER)
            return [self.settle(item) for item in value]
        admit(value)
        return plain(value)


def without_views(data: dict[str, object]) -> dict[str, object]:
    """A mapping of data; one that is a name of a template may hold views (`steps`), which become plain."""
    if any(isinstance(item, _WRAPPED) for item in data.values()):
        return {key: plain(item) if isinstance(item, _WRAPPED) else item for key, item in data.items()}
    return data


def refuse_text(chars: int) -> NoReturn:
    raise TemplateRefused(f"the text would have {chars:,} characters, the limit is {TEMPLATE_OUTPUT_CHARS_MAX:,}")


def check_chars(chars: int) -> None:
    if chars > TEMPLATE_OUTPUT_CHARS_MAX:
        refuse_text(chars)


def check_length(length: int) -> None:
    if length > TEMPLATE_SEQUENCE_MAX:
        raise TemplateRefused(f"the list would have {length:,} items, the limit is {TEMPLATE_SEQUENCE_MAX:,}")


def admit(value: object) -> None:
    """Refuse what is no value: a macro, a loop, a namespace, or any other object of the machinery."""
    if not is_seen(value) and not isinstance(value, _HOST_TYPES):
        raise TemplateRefused(f"a {type(value).__name__.lower()} is not a value")
