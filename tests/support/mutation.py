"""Playbooks gone wrong: keys lost, doubled, renamed and retyped, shapes swapped, odd values put in, text and bytes
damaged.  Everything is drawn from a `Random`, so that a case can be repeated and made smaller."""

from __future__ import annotations

import string
from collections.abc import Callable
from copy import deepcopy
from random import Random
from typing import Any

import yaml

from tests.support.corpus import CORPUS

Place = tuple[Any, Any]
"""A container and a key of it."""

_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_DOCUMENTS = {name: yaml.safe_load(text) for name, text in CORPUS.items()}
_WORDS = (
    *("step", "tool", "kind", "next", "loop", "set", "input", "output", "spec", "when", "args", "arcs", "then", "else"),
    *(
        "rules",
        "policy",
        "admit",
        "do",
        "to",
        "attempts",
        "delay",
        "backoff",
        "in",
        "cursor",
        "iterator",
        "mode",
        "auth",
    ),
    *("retry", "code", "url", "name", "workload", "workflow", "keychain", "workbook", "executor", "metadata", "path"),
    *("max_in_flight", "frame", "fanout", "timeout", "script", "uri", "source", "params", "command", "libs", "desc"),
    *(
        "claim",
        "options",
        "failure",
        "result",
        "case",
        "vars",
        "sink",
        "expr",
        "set_vars",
        "eval",
        "apiVersion",
        "limits",
    ),
)
_TEMPLATES = (
    *(
        "{{",
        "{{ }}",
        "{{ a b }}",
        "{{ a",
        "{% for x in y %}",
        "{% endfor %}",
        "{% raw %}{{ x }}",
        "{# open",
        "{{ a.__class__ }}",
    ),
    *("{{ ''.join([]) }}", "{{ x | nofilter }}", "{{ x is notest }}", "{{ f() }}", "{{ self }}", "{{ 'a' * 10 ** 9 }}"),
    *(
        "{{ [1] | random }}",
        "{{ now() }}",
        "{{ token('x') }}",
        "{{ keychain.x }}",
        "{{ " + "(" * 60 + "1" + ")" * 60 + " }}",
    ),
    *(
        "{{ " + " + ".join(["a"] * 3_000) + " }}",
        "{{ x" + ".y" * 500 + " }}",
        "{{ output.status == 'error' }}",
        "{{ ctx }}",
    ),
    *("{% set x = 1 %}{{ x }}", "{% macro m() %}{{ m() }}{% endmacro %}", "{{ 9" * 300 + " }}", "{{ a[1:2, 3] }}"),
    *("{{ {'a': [1, {'b': x}]} }}", "{{ ä ~ 'ß' }}", "{{ x if y }}", "{{ range(10**9) }}", "{{ steps['x'].y[z].w }}"),
)
_SCALARS = (
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        10**30,
        -(10**400),
        1.5,
        1e308,
        "",
        " ",
        "x",
        "null",
        "~",
        "end",
        "previous",
        "noop",
    ),
    *(
        "2024-13-45",
        "{",
        "}",
        "\t",
        "a\nb",
        "\u0000",
        "é",
        "\u2028",
        "😀",
        "\ufeff",
        "a" * 300,
        "<<",
        "*a",
        "&a",
        "!!str",
    ),
)


def mutated(random: Random) -> str:
    """A playbook of the corpus with one to four things wrong."""
    name = random.choice(list(CORPUS))
    text = CORPUS[name]
    changes = random.randint(1, 4)
    if random.random() < 0.75:
        document = deepcopy(_DOCUMENTS[name])
        for _ in range(changes):
            random.choice(_STRUCTURAL)(random, document)
        text = _written(document)
    if random.random() < 0.4:
        for _ in range(changes):
            text = random.choice(_TEXTUAL)(random, text)
    if random.random() < 0.1:
        text = _damaged(random, text)
    return text


def _written(document: object) -> str:
    text: str = yaml.dump(document, Dumper=_DUMPER, sort_keys=False, allow_unicode=True)
    return text


# --- structure -------------------------------------------------------------------------------------------


def _places(value: Any) -> list[Place]:
    found: list[Place] = []
    todo = [value]
    while todo:
        one = todo.pop()
        if isinstance(one, dict | list):
            keys = list(one) if isinstance(one, dict) else range(len(one))
            found += [(one, key) for key in keys]
            todo += [one[key] for key in keys]
    return found


def _some(random: Random, document: Any) -> Place:
    return random.choice(_places(document) or [({"x": None}, "x")])


def _odd(random: Random) -> Any:
    kind = random.randrange(9)
    if kind < 3:
        return random.choice(_SCALARS)
    if kind < 5:
        return random.choice(_TEMPLATES)
    if kind == 5:
        return {random.choice(_WORDS): _odd(random) for _ in range(random.randint(0, 4))}
    if kind == 6:
        return [_odd(random) for _ in range(random.randint(0, 4))]
    return random.choice([_deep, _many, _long])(random)


def _deep(random: Random) -> Any:
    value: Any = "deep"
    for _ in range(random.choice((3, 25, 40))):
        value = [value] if random.random() < 0.5 else {random.choice(_WORDS): value}
    return value


def _many(random: Random) -> Any:
    return [random.choice(("end", "a", {"step": "end"}, {"kind": "noop"}, 1))] * random.choice((50, 300, 3_000))


def _long(random: Random) -> str:
    return random.choice(("x", "{{ a }}", "é ", "[", "- ")) * random.choice((100, 5_000, 50_000))


def _delete(random: Random, document: Any) -> None:
    container, key = _some(random, document)
    del container[key]


def _double(random: Random, document: Any) -> None:
    container, key = _some(random, document)
    copy = deepcopy(container[key])
    if isinstance(container, list):
        container.insert(random.randint(0, len(container)), copy)
    else:
        container[random.choice(_WORDS)] = copy


def _rename(random: Random, document: Any) -> None:
    container, key = _some(random, document)
    if isinstance(container, dict):
        word = random.choice(_WORDS) if random.random() < 0.6 else str(key) + random.choice(string.ascii_letters)
        container[word] = container.pop(key)


def _retype(random: Random, document: Any) -> None:
    container, key = _some(random, document)
    container[key] = _odd(random)


def _wrap(random: Random, document: Any) -> None:
    container, key = _some(random, document)
    value = container[key]
    container[key] = [value] if random.random() < 0.5 else {random.choice(_WORDS): value}


def _unwrap(random: Random, document: Any) -> None:
    container, key = _some(random, document)
    value = container[key]
    if isinstance(value, dict | list) and value:
        container[key] = random.choice(list(value.values()) if isinstance(value, dict) else value)


def _swap(random: Random, document: Any) -> None:
    (one, key), (other, other_key) = _some(random, document), _some(random, document)
    one[key], other[other_key] = deepcopy(other[other_key]), deepcopy(one[key])


def _insert(random: Random, document: Any) -> None:
    container, _ = _some(random, document)
    if isinstance(container, dict):
        container[random.choice(_WORDS)] = _odd(random)
    else:
        container.insert(random.randint(0, len(container)), _odd(random))


def _graft(random: Random, document: Any) -> None:
    container, key = _some(random, document)
    other, other_key = _some(random, random.choice(list(_DOCUMENTS.values())))
    container[key] = deepcopy(other[other_key])


def _share(random: Random, document: Any) -> None:
    """The same object twice: an anchor and an alias in the text."""
    container, key = _some(random, document)
    other, other_key = _some(random, document)
    if not isinstance(container[key], dict | list):
        other[other_key] = container[key]


_STRUCTURAL: tuple[Callable[[Random, Any], None], ...] = (
    *(_delete, _double, _rename, _retype, _retype, _retype, _wrap, _unwrap, _swap, _insert, _insert, _graft, _share),
)


# --- text ------------------------------------------------------------------------------------------------

_PIECES = (
    *(
        "\x00",
        "\t",
        "\ufeff",
        "\x85",
        "\u2028",
        "\ud800",
        "\r",
        "\r\n",
        "'",
        '"',
        "{",
        "}",
        "[",
        "]",
        ": ",
        "- ",
        "? ",
        ",",
    ),
    *(
        "&a ",
        "*a",
        "<<: *a\n",
        "<<: [*a, *b]\n",
        "!!binary ",
        "!!python/object:os.system ",
        "!!set ",
        "!x ",
        "%YAML 9.9\n",
    ),
    *(
        "---\n",
        "...\n",
        "# note\n",
        "|\n",
        ">-\n",
        "{{ ",
        " }}",
        "{% ",
        " %}",
        "0x_",
        "1e999",
        ".inf",
        ".nan",
        "~",
        "@",
        "`",
    ),
    *("\n", "\n  ", "  ", "a: &a {b: *a}\n", "x: &x [1]\ny: [" + "*x, " * 120 + "1]\n"),
)


def _slice(random: Random, text: str) -> tuple[int, int]:
    start = random.randint(0, len(text))
    return start, min(len(text), start + random.choice((1, 1, 3, 20, 200)))


def _cut(random: Random, text: str) -> str:
    start, end = _slice(random, text)
    return text[:start] + text[end:]


def _put(random: Random, text: str) -> str:
    start, _ = _slice(random, text)
    return text[:start] + random.choice(_PIECES) + text[start:]


def _repeat(random: Random, text: str) -> str:
    start, end = _slice(random, text)
    return text[:end] + text[start:end] * random.choice((1, 3, 50)) + text[end:]


def _line(random: Random, text: str) -> str:
    lines = text.splitlines(keepends=True) or [""]
    number = random.randrange(len(lines))
    change = random.randrange(4)
    if change == 0:
        del lines[number]
    elif change == 1:
        lines.insert(number, lines[random.randrange(len(lines))])
    elif change == 2:
        lines[number] = " " * random.randint(1, 5) + lines[number]
    else:
        lines[number] = lines[number].lstrip(" ")
    return "".join(lines)


def _template(random: Random, text: str) -> str:
    places = [number for number in range(len(text)) if text.startswith("{{", number)]
    if not places:
        return text
    start = random.choice(places)
    end = text.find("}}", start)
    return text[:start] + random.choice(_TEMPLATES) + text[end + 2 if end > 0 else start :]


_TEXTUAL: tuple[Callable[[Random, str], str], ...] = (_cut, _put, _put, _repeat, _line, _line, _template)


def _damaged(random: Random, text: str) -> str:
    content = bytearray(text.encode("utf-8", "surrogatepass"))
    for _ in range(random.randint(1, 8)):
        content[random.randrange(len(content) or 1) : random.randrange(len(content) or 1)] = bytes(
            [random.randrange(256)]
        )
        if not content:
            break
    return content.decode(*random.choice((("utf-8", "replace"), ("utf-8", "surrogateescape"), ("latin-1", "strict"))))
