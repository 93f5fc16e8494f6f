"""Where no secret may be in a task of kind `spark`.

Spark keeps the texts of a job: statements and conditions as literals of plans, which stand in its UI and its event log,
settings there too, and arguments in the list of processes.  What a data source needs to enter somewhere goes another
way, by `auth`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from noetl.core.errors import NoetlError
from noetl.core.expression import Template, compile_value, literal_template
from noetl.core.playbook.document import Spot
from noetl.core.playbook.keychain.secrecy import KEYCHAIN, reads_secrets
from noetl.core.playbook.scripts import is_sql_script

SPARK = "spark"
FIELDS = ("sql", "outputs", "expect", "conf", "arguments", "partition_by", "application")
"""The fields whose text Spark keeps."""
REASON = (
    "Spark keeps the texts of a job in plans, in its UI and in its event log. Name the credential in `auth`, and let a "
    "source of `inputs` use it"
)


def check_secrets(fields: Mapping[str, object], spot: Spot) -> None:
    """A finding for each field of a document that asks for a secret."""
    for name in FIELDS:
        if _asks(fields.get(name)):
            spot.error("spark_secret", f"{name} may not read a keychain entry or a token: {REASON}", name)


def asks_for_secrets(kind: str, text: str, name: str) -> bool:
    """Whether a script is such a text, and asks for a secret."""
    return kind == SPARK and is_sql_script(name) and _asks(text)


def kept_texts(fields: Mapping[str, object], script: tuple[str, str] | None) -> Iterator[tuple[str, object]]:
    """Rendered fields whose texts Spark keeps, by name.  A script is given by its name and its text."""
    yield from ((name, fields[name]) for name in FIELDS if fields.get(name) is not None)
    if script is not None and is_sql_script(script[0]):
        yield "script", script[1]


def _asks(value: object) -> bool:
    # Compiling is for those that may: most texts do not have the words.
    text = str(value)
    if KEYCHAIN not in text and "token" not in text:
        return False
    return reads_secrets(compile_value(value, instead=_as_it_stands))


def _as_it_stands(source: str, _place: object, _error: NoetlError) -> Template:
    """What is no template is told elsewhere."""
    return literal_template(source)
