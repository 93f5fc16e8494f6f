"""Values of databases and tables as plain data (dsl §8.6), where Python has no object for them or reads them otherwise.

Whoever reads a row from a server and whoever reads it again from a stored table must see the same."""

from __future__ import annotations

import json
import math
import re
import struct
from decimal import Decimal

from noetl.core.expression.values import normalise

# What the metadata of an Arrow field may say, beside its type.
TYPE_KEY = "noetl.type"
"""The type that a column had where it came from, when Arrow has none for it."""
PLAIN_KEY = "noetl.plain"
"""How plain data is made of its values, when not in the usual way of its type: NUMBERS or WHOLE."""
NUMBERS = "numbers"
"""Texts of numbers: plain as `number_of`."""
WHOLE = "whole"
"""Decimals of which those without a fraction are integers."""

_NUMBER_DIGITS_MAX = 400
_NORMAL_MIN = 2.0**-126
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


# --- numbers ---------------------------------------------------------------------------------------------


def finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def number_of(value: Decimal) -> object:
    """An integer when it has no scale, else a float; what is no number, or too large for one, is null."""
    text = str(value)
    if len(text) <= _NUMBER_DIGITS_MAX:
        if text.lstrip("-").isdigit():
            return int(text)
        if "E" not in text:
            return finite(float(text))
    return normalise(value)


def short_float(value: float) -> float | None:
    """The shortest number that is this one in four bytes: 1.1, not 1.100000023841858."""
    if not math.isfinite(value):
        return None
    # Below the smallest normal number there are fewer than six digits.
    for digits in range(6 if abs(value) >= _NORMAL_MIN else 1, 10):
        short = float(f"{value:.{digits}g}")
        if _in_four_bytes(short) == value:
            return short
        if abs(math.frexp(value)[0]) == 0.5:
            # Above a power of two there is more room than below: the next number away from zero may still be this one.
            mantissa, _, exponent = f"{value:.{digits - 1}e}".partition("e")
            longer = float(f"{Decimal(mantissa) + Decimal(math.copysign(1, value)).scaleb(1 - digits)}e{exponent}")
            if _in_four_bytes(longer) == value:
                return longer
    return float(value)


def _in_four_bytes(value: float) -> float | None:
    try:
        found: float = struct.unpack("!f", struct.pack("!f", value))[0]
    except OverflowError:
        return None
    return found


# --- lengths of time -------------------------------------------------------------------------------------


def interval_text(months: int, days: int, microseconds: int) -> str:
    """ISO 8601, which keeps months, days and seconds apart; a server reads it back."""
    sign = -1 if microseconds < 0 else 1
    seconds, fraction = divmod(abs(microseconds), 1_000_000)
    date = [
        (_sign(months) * (abs(months) // 12), "Y"),
        (_sign(months) * (abs(months) % 12), "M"),
        (days, "D"),
    ]
    time = [(sign * (seconds // 3600), "H"), (sign * (seconds // 60 % 60), "M")]
    text = "P" + "".join(f"{amount}{unit}" for amount, unit in date if amount)
    clock = "".join(f"{amount}{unit}" for amount, unit in time if amount)
    if seconds % 60 or fraction:
        decimals = f".{fraction:06d}".rstrip("0") if fraction else ""
        clock += f"{'-' if sign < 0 else ''}{seconds % 60}{decimals}S"
    return text + (f"T{clock}" if clock else "") if clock or len(text) > 1 else "PT0S"


def _sign(amount: int) -> int:
    return -1 if amount < 0 else 1


# --- JSON that somebody else wrote -----------------------------------------------------------------------


def json_value(text: str) -> object:
    """What a JSON text says.  Numbers that JSON readers do not agree about are null, half characters are replaced.
    Raises ValueError and RecursionError."""
    try:
        value = _DECODER.decode(text)
    except ValueError:
        # A number with thousands of digits, which Python refuses to read.
        value = _PATIENT_DECODER.decode(text)
    return whole_characters(value) if "\\u" in text and _SURROGATE.search(text) else value


def _parsed_float(text: str) -> float | None:
    return finite(float(text))


def _parsed_int(text: str) -> int | None:
    return int(text) if len(text) <= _NUMBER_DIGITS_MAX else None


def _parsed_constant(_name: str) -> None:
    return None


_DECODER = json.JSONDecoder(parse_float=_parsed_float, parse_constant=_parsed_constant)
_PATIENT_DECODER = json.JSONDecoder(parse_float=_parsed_float, parse_int=_parsed_int, parse_constant=_parsed_constant)


def whole_characters(value: object) -> object:
    """Half of a surrogate pair is no text that can be stored."""
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if isinstance(value, list):
        return [whole_characters(item) for item in value]
    if isinstance(value, dict):
        return {whole_characters(key): whole_characters(item) for key, item in value.items()}
    return value
