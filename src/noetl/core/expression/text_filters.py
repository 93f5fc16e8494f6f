"""Filters that make text or numbers.  Each is bounded before it allocates; none returns markup.

Left out of Jinja's own set: `urlize` (its patterns cannot be bounded in time, and it is about HTML pages).
"""

from __future__ import annotations

import json
import math
import re
import textwrap
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from pprint import pformat
from typing import Any
from urllib.parse import quote, quote_plus

from noetl.core.errors import TemplateFailed, TemplateRefused
from noetl.core.expression.evaluation import Evaluation, check_chars
from noetl.core.expression.operators import check_bits, kind_of, printf
from noetl.core.expression.values import normalise
from noetl.core.expression.views import Undefined
from noetl.core.limits import TEMPLATE_WIDTH_MAX

PRECISION_MAX = 400
INDENT_MAX = 16
NUMBER_CHARS_MAX = 4_300
_WORD = re.compile(r"\w+")
_WORD_START = re.compile(r"([-\s({\[<]+)")
_ESCAPES = {"&": "&amp;", "<": "&lt;", ">": "&gt;", "'": "&#39;", '"': "&#34;"}
_ESCAPE_TABLE = str.maketrans(_ESCAPES)
_NOT_AN_ATTRIBUTE = re.compile(r"[\s/>=]", re.ASCII)


def _take(evaluation: Evaluation, value: object, cost: int = 1) -> str:
    """The text of a filter's value, with the work of going through it paid."""
    text = evaluation.text(value)
    evaluation.charge_chars(len(text) * cost)
    return text


def _width(width: object) -> int:
    if type(width) is not int or not 0 <= width <= TEMPLATE_WIDTH_MAX:
        raise TemplateRefused(f"a width must be a whole number from 0 to {TEMPLATE_WIDTH_MAX:,}")
    return width


def _number(value: object) -> Any:
    if isinstance(value, Undefined):
        value._fail()
    if not isinstance(value, int | float):
        raise TemplateFailed(f"a number is needed, not {kind_of(value)}")
    return value


def _capitalize(evaluation: Evaluation, value: object) -> str:
    return _take(evaluation, value).capitalize()


def _center(evaluation: Evaluation, value: object, width: int = 80) -> str:
    return _take(evaluation, value).center(_width(width))


def _escape(evaluation: Evaluation, value: object) -> str:
    text = _take(evaluation, value, 16)
    check_chars(len(text) + sum(text.count(char) * len(code) for char, code in _ESCAPES.items()))
    return text.translate(_ESCAPE_TABLE)


def _format(evaluation: Evaluation, value: object, *args: object, **kwargs: object) -> str:
    if args and kwargs:
        raise TemplateFailed("format takes positional or named values, not both")
    return printf(evaluation, _take(evaluation, value), kwargs or args)


def _indent(
    evaluation: Evaluation, value: object, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    text = _take(evaluation, value)
    margin = width if isinstance(width, str) else " " * _width(width)
    lines = (text + "\n").splitlines()
    check_chars(len(text) + len(lines) * len(margin))
    evaluation.charge(len(lines) * 4)
    head = margin if first else ""
    return head + "\n".join(
        [lines[0], *(margin + line if line or blank else line for line in lines[1:])] if lines else []
    )


def _lower(evaluation: Evaluation, value: object) -> str:
    return _take(evaluation, value).lower()


def _replace(evaluation: Evaluation, value: object, old: object, new: object, count: int | None = None) -> str:
    text = _take(evaluation, value, 4)
    target, substitute = evaluation.text(old), evaluation.text(new)
    times = text.count(target) if count is None or count < 0 else min(count, text.count(target))
    grown = len(text) + times * (len(substitute) - len(target))
    if grown > len(text):
        check_chars(grown)
        evaluation.charge_chars(grown)
    return text.replace(target, substitute, times)


def _string(evaluation: Evaluation, value: object) -> str:
    return evaluation.text(value)


def _striptags(evaluation: Evaluation, value: object) -> str:
    text = _take(evaluation, value, 4)
    text = _without(_without(text, "<!--", "-->"), "<", ">")
    return " ".join(text.split())


def _without(text: str, opening: str, closing: str) -> str:
    """The text without every `opening … closing`, in one pass."""
    kept, position = [], 0
    while (start := text.find(opening, position)) >= 0 and (end := text.find(closing, start)) >= 0:
        kept.append(text[position:start])
        position = end + len(closing)
    return "".join([*kept, text[position:]])


def _title(evaluation: Evaluation, value: object) -> str:
    words = _WORD_START.split(_take(evaluation, value, 192))
    return "".join(word[0].upper() + word[1:].lower() for word in words if word)


def _trim(evaluation: Evaluation, value: object, chars: str | None = None) -> str:
    return _take(evaluation, value).strip(None if chars is None else evaluation.text(chars))


def _truncate(  # noqa: PLR0917 - Jinja's signature
    evaluation: Evaluation,
    value: object,
    length: int = 255,
    killwords: bool = False,
    end: str = "...",
    leeway: int = 5,
) -> str:
    text = _take(evaluation, value)
    if length < len(end) or leeway < 0:
        raise TemplateFailed(f"truncate needs a length of at least {len(end)} and no negative leeway")
    if len(text) <= length + leeway:
        return text
    kept = text[: length - len(end)]
    return (kept if killwords else kept.rsplit(" ", 1)[0]) + end


def _upper(evaluation: Evaluation, value: object) -> str:
    return _take(evaluation, value).upper()


def _urlencode(evaluation: Evaluation, value: object) -> str:
    def quoted(part: object, quoter: Callable[[str], str]) -> str:
        text = evaluation.text(part)
        evaluation.charge(len(text) * 2 + 20)
        return quoter(text)

    if isinstance(value, str) or not isinstance(value, Iterable):
        return quoted(value, quote)
    pairs: Iterable[Any] = value.items() if isinstance(value, dict) else value
    parts = (f"{quoted(key, quote_plus)}={quoted(item, quote_plus)}" for key, item in pairs)
    return evaluation.join(parts, "&")


def _wordcount(evaluation: Evaluation, value: object) -> int:
    return len(_WORD.findall(_take(evaluation, value, 32)))


def _wordwrap(  # noqa: PLR0917 - Jinja's signature
    evaluation: Evaluation,
    value: object,
    width: int = 79,
    break_long_words: bool = True,
    wrapstring: str = "\n",
    break_on_hyphens: bool = True,
) -> str:
    text = evaluation.text(value)
    width = max(_width(width), 1)
    lines = text.splitlines()
    # A long word is cut piece by piece, and each cut copies what is left of it.
    evaluation.charge_chars(sum(len(line) * (len(line) // width + 256) for line in lines))
    check_chars(len(text) + (len(text) // width + len(lines)) * len(wrapstring))
    wrapped = (
        textwrap.wrap(
            line,
            width=width,
            expand_tabs=False,
            replace_whitespace=False,
            break_long_words=break_long_words,
            break_on_hyphens=break_on_hyphens,
        )
        for line in lines
    )
    return evaluation.join((evaluation.join(line, wrapstring) for line in wrapped), wrapstring)


def _xmlattr(evaluation: Evaluation, value: object, autospace: bool = True) -> str:
    if not isinstance(value, dict):
        raise TemplateFailed(f"xmlattr needs a mapping, not {kind_of(value)}")
    parts = []
    evaluation.charge(len(value) * 80)
    for key, item in value.items():
        if item is not None and not isinstance(item, Undefined):
            name = evaluation.text(key)
            if _NOT_AN_ATTRIBUTE.search(name):
                raise TemplateFailed(f"{name!r} is no attribute name")
            parts.append(f'{_escape(evaluation, name)}="{_escape(evaluation, item)}"')
    text = evaluation.join(parts, " ")
    return f" {text}" if autospace and text else text


def _tojson(evaluation: Evaluation, value: object, indent: int | None = None) -> str:
    if isinstance(value, Undefined):
        evaluation.undefined_text(value)
        return "null"
    if indent is not None and not 0 <= indent <= INDENT_MAX:
        raise TemplateRefused(f"an indent must be from 0 to {INDENT_MAX}")
    return evaluation.json(value, indent)


def _fromjson(evaluation: Evaluation, value: object) -> object:
    if not isinstance(value, str):
        if isinstance(value, Undefined):
            value._fail()
        return value
    check_chars(len(value))
    evaluation.charge(len(value))
    try:
        return json.loads(value, parse_int=_integer, parse_float=_finite, parse_constant=_nothing)
    except (ValueError, RecursionError) as error:
        raise TemplateFailed("the text is not JSON") from error


def _integer(digits: str) -> int:
    number = int(digits)
    check_bits(number.bit_length())
    return number


def _finite(digits: str) -> float | None:
    number = float(digits)
    return number if math.isfinite(number) else None


def _nothing(_: str) -> None:
    return None


def _pprint(evaluation: Evaluation, value: object) -> str:
    before = evaluation.work_left
    evaluation.measure(value)
    evaluation.charge((before - evaluation.work_left) * 60)
    text = pformat(normalise(value))
    check_chars(len(text))
    return text


def _b64encode(evaluation: Evaluation, value: object) -> str:
    text = _take(evaluation, value, 2)
    check_chars(len(text))
    return b64encode(text.encode("utf-8")).decode("ascii")


def _b64decode(evaluation: Evaluation, value: object) -> str:
    text = _take(evaluation, value, 2)
    try:
        return b64decode(text, validate=True).decode("utf-8")
    except ValueError as error:
        raise TemplateFailed("the text is not base64 of UTF-8") from error


def _abs(_: Evaluation, value: object) -> object:
    return abs(_number(value))


def _int(_: Evaluation, value: object, default: object = 0, base: int = 10) -> object:
    if isinstance(value, Undefined):
        value._fail()
    number: Any = value
    if isinstance(value, str) and len(value) > NUMBER_CHARS_MAX:
        raise TemplateRefused(f"a number must have at most {NUMBER_CHARS_MAX:,} digits")
    try:
        result = int(number, base) if isinstance(number, str) else int(number)
    except (TypeError, ValueError, OverflowError):
        try:
            result = int(float(number))
        except (TypeError, ValueError, OverflowError):
            return default
    check_bits(result.bit_length())
    return result


def _float(_: Evaluation, value: object, default: object = 0.0) -> object:
    if isinstance(value, Undefined):
        value._fail()
    number: Any = value
    try:
        result = float(number)
    except (TypeError, ValueError, OverflowError):
        return default
    return result if math.isfinite(result) else default


def _round(_: Evaluation, value: object, precision: int = 0, method: str = "common") -> object:
    number = _number(value)
    if type(precision) is not int or abs(precision) > PRECISION_MAX:
        raise TemplateRefused(f"a precision must be a whole number of at most {PRECISION_MAX}")
    if method == "common":
        return round(number, precision)
    if method not in ("ceil", "floor"):
        raise TemplateFailed("the method of round is common, ceil or floor")
    scale = 10**precision
    cut = math.ceil if method == "ceil" else math.floor
    return cut(number * scale) / scale


def _filesizeformat(evaluation: Evaluation, value: object, binary: bool = False) -> str:
    size: Any = _float(evaluation, value, None)
    if size is None:
        raise TemplateFailed(f"a number is needed, not {kind_of(value)}")
    base, suffix = (1024, "iB") if binary else (1000, "B")
    if size == 1:
        return "1 Byte"
    if size < base:
        return f"{int(size)} Bytes"
    for prefix in "KMGTPEZ" if binary else "kMGTPEZ":
        size /= base
        if size < base:
            return f"{size:.1f} {prefix}{suffix}"
    return f"{size / base:.1f} Y{suffix}"


TEXT_FILTERS: dict[str, Callable[..., object]] = {
    "abs": _abs,
    "b64decode": _b64decode,
    "b64encode": _b64encode,
    "capitalize": _capitalize,
    "center": _center,
    "e": _escape,
    "escape": _escape,
    "filesizeformat": _filesizeformat,
    "float": _float,
    "forceescape": _escape,
    "format": _format,
    "fromjson": _fromjson,
    "indent": _indent,
    "int": _int,
    "lower": _lower,
    "pprint": _pprint,
    "replace": _replace,
    "round": _round,
    "safe": _string,
    "string": _string,
    "striptags": _striptags,
    "title": _title,
    "tojson": _tojson,
    "trim": _trim,
    "truncate": _truncate,
    "upper": _upper,
    "urlencode": _urlencode,
    "wordcount": _wordcount,
    "wordwrap": _wordwrap,
    "xmlattr": _xmlattr,
}
