"""Which names of the context a program or a SQL text reads, so that its command carries these and no others."""

from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Mapping
from functools import lru_cache

from noetl.core.errors import NoetlError
from noetl.core.expression import CompiledValue, Template, compile_value, literal_template
from noetl.core.playbook.needs import Needs, mentions_of, needs_of
from noetl.core.playbook.scripts import is_program

CACHE_PROGRAMS_MAX = 64
NOTHING = Needs(names=frozenset(), everything=False)
EVERYTHING = Needs(names=frozenset(), everything=True)
_MAIN = re.compile(r"^(?:async\s+)?def\s+main\s*\(", re.MULTILINE)
# What `main` gets of the task itself.
_OWN = frozenset(("input_data", "args"))


def needs_of_script(kind: str, text: str, name: str = "") -> Needs:
    """The names that a script of this kind reads."""
    if kind == "spark" and is_program(kind, name):
        return NOTHING  # its `main` gets the inputs of the task and nothing else
    if is_program(kind, name):
        return needs_of_program(text)
    return needs_of(mentions_of(script_template(text)))


def complaint_about(kind: str, text: str, name: str = "") -> str | None:
    """What is wrong with a script as far as that can be told without running it."""
    try:
        if is_program(kind, name):
            ast.parse(text)
        else:
            compile_value(text)
    except SyntaxError as error:
        return f"line {error.lineno}: {error.msg}"
    except (NoetlError, ValueError, RecursionError, MemoryError) as error:
        return str(error) or type(error).__name__
    return None


@lru_cache(maxsize=CACHE_PROGRAMS_MAX)
def script_template(text: str) -> CompiledValue:
    """A script that is rendered.  Text that is no template is taken as it stands."""
    return compile_value(text, instead=_as_it_stands)


def _as_it_stands(source: str, _place: object, _error: NoetlError) -> Template:
    return literal_template(source)


def program_of(fields: Mapping[str, object]) -> str | None:
    """The program in a task's fields: `code_b64` before `code`.  None when it cannot be told what it will be."""
    encoded = fields.get("code_b64")
    if encoded is None:
        return str(fields.get("code", ""))
    try:
        return base64.b64decode(str(encoded), validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None


def needs_of_program(code: str | None) -> Needs:
    """Python that says `context` may read everything; the parameters of its `main` are bound by name."""
    if code is None or "context" in code:
        return EVERYTHING
    return NOTHING if _MAIN.search(code) is None else _needs_of_main(code)


@lru_cache(maxsize=CACHE_PROGRAMS_MAX)
def _needs_of_main(code: str) -> Needs:
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        # A template that becomes a program, or nothing that will ever run.
        return EVERYTHING
    mains = [one for one in body if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name == "main"]
    names = {
        argument.arg for main in mains for argument in (*main.args.posonlyargs, *main.args.args, *main.args.kwonlyargs)
    }
    return Needs(names=frozenset(names - _OWN), everything=False)
