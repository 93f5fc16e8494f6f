"""Where no secret may be: whatever is evaluated for the context or for an event would be recorded."""

from __future__ import annotations

from noetl.core.errors import TemplateInvalid, TemplateRefused
from noetl.core.expression import CompiledValue, Template, compile_template
from noetl.core.playbook.document import Findings, Path

KEYCHAIN = "keychain"
AUTH_FIELDS = ("auth", "credential")
"""The field of a task that names a credential, and its older spelling."""
RECORDED = "what is evaluated here would be recorded"


def reads_secrets(value: CompiledValue | Template) -> bool:
    """Whether a template mentions the keychain or asks for a token."""
    return KEYCHAIN in value.roots or bool(value.tokens)


def entry_meant(auth: object) -> object:
    """`auth: "{{ keychain.name }}"` means the entry, not what is in it: as `auth` it is its name."""
    if not isinstance(auth, str):
        return auth
    try:
        path = compile_template(auth).path
    except (TemplateInvalid, TemplateRefused):
        return auth
    return path[1] if path is not None and len(path) == 2 and path[0] == KEYCHAIN else auth


def refuse_secrets(
    value: CompiledValue | Template,
    where: str,
    place: Path,
    *,
    findings: Findings,
    step: str | None = None,
    reason: str = RECORDED,
) -> None:
    if reads_secrets(value):
        what = "a keychain entry" if KEYCHAIN in value.roots else "token()"
        message = f"{where}: {what} can be used only in the fields of a task, because {reason}"
        findings.error("keychain_server_side", message, place, step=step)
