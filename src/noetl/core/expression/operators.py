"""The operators of the language, each bounded before it allocates.

Lists and texts grow by `+`, `*`, `~` and `%`; integers by `+`, `*` and `**`.  An undefined operand fails and
names its path; numbers never leave the finite range.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from math import isfinite
from typing import Any

from noetl.core.errors import TemplateFailed, TemplateRefused
from noetl.core.expression.evaluation import Evaluation, check_chars, check_length
from noetl.core.expression.views import MISSING, SCALAR_TYPES, Made, Undefined, View, bare, part_of, sample
from noetl.core.limits import TEMPLATE_INTEGER_BITS_MAX, TEMPLATE_WIDTH_MAX

_NUMBERS = frozenset({int, float, bool})
_PRINTF = re.compile(r"%(?:\(([^)]*)\))?[#0\- +]*(\*|[0-9]+)?(?:\.(\*|[0-9]+)?)?[hlL]?(.)", re.DOTALL)
_NUMBER_CHARS_MAX = TEMPLATE_INTEGER_BITS_MAX // 3 + 10


def binary(evaluation: Evaluation, symbol: str, left: object, right: object) -> object:
    """`left symbol right` for the seven arithmetic operators."""
    left, right = bare(left), bare(right)
    if type(left) in _NUMBERS and type(right) in _NUMBERS:
        return _arithmetic(symbol, left, right)
    if isinstance(left, str) and symbol == "%":
        return printf(evaluation, str.__str__(left), right)
    for operand in (left, right):
        if isinstance(operand, Undefined):
            operand._fail()
    grow = _GROWTH.get(symbol)
    grown = grow(evaluation, left, right) if grow is not None else None
    if grown is None:
        raise TemplateFailed(f"cannot compute {kind_of(left)} {symbol} {kind_of(right)}{_hint(symbol, left, right)}")
    return grown


def unary(symbol: str, value: object) -> object:
    value = bare(value)
    if isinstance(value, Undefined):
        value._fail()
    if type(value) not in _NUMBERS:
        raise TemplateFailed(f"cannot compute {symbol}{kind_of(value)}")
    return -value if symbol == "-" else +value  # type: ignore[operator]


def chain(evaluation: Evaluation, first: object, *rest: Any) -> object:
    """`first op operand op operand …`, from the left."""
    value = first
    for index in range(0, len(rest), 2):
        value = binary(evaluation, rest[index], value, rest[index + 1])
    return value


def compare(evaluation: Evaluation, symbol: str, left: object, right: object) -> bool:
    """`left symbol right` for the eight comparisons."""
    if type(left) in SCALAR_TYPES and type(right) in SCALAR_TYPES and symbol in _COMPARISONS:
        return _ordered(symbol, left, right)
    if symbol in ("in", "notin"):
        return contains(evaluation, left, right) is (symbol == "in")
    left, right = bare(left), bare(right)
    if type(left) not in SCALAR_TYPES and type(right) not in SCALAR_TYPES:
        evaluation.visit(left)
    return _ordered(symbol, left, right)


def contains(evaluation: Evaluation, item: object, container: object) -> bool:
    """`item in container`."""
    item = bare(item)
    if isinstance(item, str) and isinstance(container, View) and isinstance(sample(container), dict):
        return item in container
    container = bare(container)
    if isinstance(item, Undefined) or isinstance(container, Undefined):
        return False
    if isinstance(container, str):
        if not isinstance(item, str):
            raise TemplateFailed(f"only a text can be in a text, not {kind_of(item)}")
        evaluation.charge_chars(len(container) + len(item))
    elif isinstance(container, list | tuple | range):
        evaluation.charge(len(container))
        if type(item) not in SCALAR_TYPES:
            evaluation.visit(container)
    elif not isinstance(container, dict):
        raise TemplateFailed(f"nothing can be in {kind_of(container)}")
    return item in container


def concatenate(evaluation: Evaluation, *parts: object) -> str:
    """`a ~ b ~ c`."""
    return evaluation.join(map(evaluation.text, parts))


def cut(evaluation: Evaluation, subject: object, start: object, stop: object, step: object) -> object:
    """`subject[start:stop:step]`."""
    numbers: list[Any] = [bare(bound) for bound in (start, stop, step)]
    bounds = slice(*numbers)
    part: Any = part_of(subject, bounds)
    if part is not MISSING:
        evaluation.charge_chars(len(part))
        return part
    subject = bare(subject)
    if isinstance(subject, Undefined):
        return subject
    if not isinstance(subject, list | tuple | str):
        raise TemplateFailed(f"cannot take a part of {kind_of(subject)}")
    evaluation.charge_chars(len(subject))
    part = subject[bounds]
    return Made(part) if isinstance(subject, Made | tuple) else part


def printf(evaluation: Evaluation, pattern: str, arguments: object) -> str:
    """`pattern % arguments`, with widths and lengths checked first.  Only a tuple is several arguments."""
    evaluation.charge(20 * pattern.count("%"))
    fields = _PRINTF.findall(pattern)
    named = isinstance(arguments, dict) and any(name for name, *_ in fields)
    given = arguments if named else dict(enumerate(arguments if isinstance(arguments, tuple) else (arguments,)))
    evaluation.charge(20 * len(given))  # type: ignore[arg-type]
    values = {key: _printable(evaluation, value) for key, value in given.items()}  # type: ignore[attr-defined]
    chars = len(pattern) + (0 if named else sum(map(_chars, values.values())))
    for name, width, precision, conversion in fields:
        if "(" in name or "*" in (width, precision) or conversion in ("r", "a"):
            raise TemplateRefused("'*', '%r' and '%a' are not available in a format")
        room = max(int(width or 0), int(precision or 0))
        if room > TEMPLATE_WIDTH_MAX:
            raise TemplateRefused(f"a format width must be at most {TEMPLATE_WIDTH_MAX:,}")
        chars += room + (_chars(values.get(name, "")) if named else 0)
    check_chars(chars)
    evaluation.charge_chars(chars)
    return pattern % (values if named else tuple(values.values()))


def _printable(evaluation: Evaluation, value: object) -> object:
    value = bare(value)
    return value if type(value) in _NUMBERS else evaluation.text(value)


def _chars(value: object) -> int:
    return len(value) if isinstance(value, str) else _NUMBER_CHARS_MAX


def _arithmetic(symbol: str, left: Any, right: Any) -> object:
    if symbol == "**":
        result = _power(left, right)
    elif symbol == "*" and type(left) is int and type(right) is int:
        check_bits(left.bit_length() + right.bit_length() - 1)
        result = left * right
    else:
        try:
            result = _ARITHMETIC[symbol](left, right)
        except ZeroDivisionError as error:
            raise TemplateFailed("division by zero") from error
    if type(result) is int:
        check_bits(result.bit_length())
    elif type(result) is complex or not isfinite(result):
        raise TemplateFailed(f"the result of {symbol!r} is not a finite number")
    return result


def _power(base: Any, exponent: Any) -> Any:
    if type(base) is not float and type(exponent) is not float and exponent > 0:
        check_bits((abs(base).bit_length() - 1) * exponent)
    try:
        return base**exponent
    except (ArithmeticError, ValueError) as error:
        raise TemplateFailed("the result of '**' is not a finite number") from error


def check_bits(bits: int) -> None:
    if bits > TEMPLATE_INTEGER_BITS_MAX:
        raise TemplateRefused(f"an integer must have at most {TEMPLATE_INTEGER_BITS_MAX:,} bits")


def _add(evaluation: Evaluation, left: object, right: object) -> object:
    if isinstance(left, str) and isinstance(right, str):
        check_chars(len(left) + len(right))
        evaluation.charge_chars(len(left) + len(right))
        return str.__str__(left) + str.__str__(right)
    if isinstance(left, list | tuple | range) and isinstance(right, list | tuple | range):
        check_length(len(left) + len(right))
        evaluation.charge((len(left) + len(right)) // 8 + 1)
        return Made([*left, *right])
    return None


def _repeat(evaluation: Evaluation, left: object, right: object) -> object:
    if type(left) is int:
        left, right = right, left
    if type(right) is not int:
        return None
    if isinstance(left, str):
        check_chars(len(left) * right)
        evaluation.charge_chars(len(left) * max(right, 0))
        return str.__str__(left) * right
    if isinstance(left, list | tuple):
        check_length(len(left) * right)
        evaluation.charge(len(left) * max(right, 0) // 8 + 1)
        return Made(list(left) * right)
    return None


def _ordered(symbol: str, left: Any, right: Any) -> bool:
    try:
        return bool(_COMPARISONS[symbol](left, right))
    except TypeError as error:
        raise TemplateFailed(f"cannot compare {kind_of(left)} with {kind_of(right)}") from error


def kind_of(value: object) -> str:
    """A word for the type of a value, for messages."""
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple | range):
        return "a list"
    return _KINDS.get(type(value), type(value).__name__)


def _hint(symbol: str, left: object, right: object) -> str:
    text = isinstance(left, str) or isinstance(right, str)
    return "; use '~' to join texts, or the filter 'int'" if text and symbol == "+" else ""


_KINDS: dict[type, str] = {
    str: "a text",
    int: "a number",
    float: "a number",
    bool: "a truth value",
    type(None): "none",
}
_GROWTH: dict[str, Callable[[Evaluation, object, object], object]] = {"+": _add, "*": _repeat}
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.truediv,
    "//": operator.floordiv,
    "%": operator.mod,
}
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "eq": operator.eq,
    "ne": operator.ne,
    "lt": operator.lt,
    "lteq": operator.le,
    "gt": operator.gt,
    "gteq": operator.ge,
}
