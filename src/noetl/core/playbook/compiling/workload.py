"""The defaults of a playbook's workload, which are rendered when an execution starts."""

from __future__ import annotations

from noetl.core.errors import NoetlError, TemplateInvalid
from noetl.core.expression import CompiledValue, Template, broken_template, compile_value
from noetl.core.playbook.document import Findings, Path
from noetl.core.playbook.keychain.secrecy import refuse_secrets
from noetl.core.playbook.model import Playbook


def compile_workload(playbook: Playbook, findings: Findings) -> dict[str, CompiledValue]:
    """By key.  Text that is no template is a warning, and fails who starts; a workload is recorded, so it may hold no
    secrets."""
    compiled = {}
    for key, value in playbook.workload.items():
        where, place = f"workload.{key}", ("workload", key)

        def broken(source: str, inside: Path, error: NoetlError, where: str = where, place: Path = place) -> Template:
            note = findings.warn if isinstance(error, TemplateInvalid) else findings.error
            note(error.code, f"{where}: {error}", (*place, *inside))
            return broken_template(source, str(error))

        compiled[key] = compile_value(value, instead=broken)
        refuse_secrets(compiled[key], where, place, findings=findings)
    return compiled
