"""Pinning scripts: the files that a playbook names become content of their own, named by reference."""

from __future__ import annotations

from typing import NamedTuple

from noetl.core.errors import PlaybookInvalid, Problem, ScriptUnavailable
from noetl.core.limits import PLAYBOOK_CHARS_AT_ONCE_MAX, SCRIPT_BYTES_MAX, SCRIPTS_BYTES_MAX, SCRIPTS_MAX
from noetl.core.playbook.compiled import CompiledPlaybook
from noetl.core.playbook.needs import Needs
from noetl.core.playbook.programs import complaint_about, needs_of_script
from noetl.core.playbook.spark.secrecy import REASON, asks_for_secrets
from noetl.core.playbook.uses import Use
from noetl.core.reference import MEDIA_SCRIPT
from noetl.engine.payloads import Payloads
from noetl.engine.pinning.pins import Pins, Source
from noetl.ports.background import Background
from noetl.ports.owner import Owner
from noetl.ports.scripts import ScriptFiles


class _Examined(NamedTuple):
    needs: Needs
    complaint: str | None


class ScriptPinner:
    def __init__(self, files: ScriptFiles, payloads: Payloads, *, background: Background | None = None) -> None:
        self._files = files
        self._payloads = payloads
        self._background = background

    async def pin(self, playbook: CompiledPlaybook, source: Source, owner: Owner) -> Pins:
        """The scripts of a playbook.  Raises PlaybookInvalid when one of them cannot be had."""
        texts = await self._texts(playbook, source)
        scripts, payloads, warnings = {}, [], []
        for use in playbook.scripts:
            if use.name in scripts:
                continue
            text = texts[use.name]
            payload = await self._payloads.keep(
                text.encode("utf-8"),
                tenant_id=owner.tenant_id,
                organization_id=owner.organization_id,
                media_type=MEDIA_SCRIPT,
            )
            payloads.append(payload)
            needs, complaint = await self._examined(use, text)
            names = None if needs.everything else sorted(needs.names)
            scripts[use.name] = {"ref": payload.reference.to_json(), "names": names}
            if complaint is not None:
                message = f"script {use.name!r}: {complaint}"
                warnings.append(use.problem("script_syntax", message, file=source.file, field="script"))
        return Pins(scripts=scripts, payloads=payloads, warnings=tuple(warnings))

    async def _texts(self, playbook: CompiledPlaybook, source: Source) -> dict[str, str]:
        texts: dict[str, str] = {}
        problems: list[Problem] = []
        for use in playbook.scripts:
            if use.name in texts:
                continue
            try:
                texts[use.name] = await self._text(use.name, source)
            except ScriptUnavailable as error:
                message = f"script {use.name!r} cannot be read: {error}; {self._said()}"
                problems.append(use.problem("script_missing", message, file=source.file, field="script"))
        problems = problems or [*_excess(playbook.scripts, texts, source), *_secret(playbook.scripts, texts, source)]
        if problems:
            raise PlaybookInvalid(problems)
        return texts

    async def _text(self, uri: str, source: Source) -> str:
        given = source.scripts.get(uri)
        if given is not None:
            if len(given.encode("utf-8", "replace")) > SCRIPT_BYTES_MAX:
                raise ScriptUnavailable(f"it has more than {SCRIPT_BYTES_MAX:,} bytes")
            return given
        content = await self._files.read(uri)
        try:
            return content.decode("utf-8")
        except UnicodeDecodeError:
            raise ScriptUnavailable("it is not UTF-8 text") from None

    def _said(self) -> str:
        roots = ", ".join(self._files.roots)
        where = f"scripts are looked for next to the playbook's file and below {roots}" if roots else ""
        return where or "scripts are looked for next to the playbook's file; NOETL_SCRIPT_ROOTS names no other place"

    async def _examined(self, use: Use, text: str) -> _Examined:
        if self._background is None or len(text) <= PLAYBOOK_CHARS_AT_ONCE_MAX:
            return _examine(use.kind, text, use.name)
        return await self._background.run(_examine, use.kind, text, use.name)


def _examine(kind: str, text: str, name: str) -> _Examined:
    return _Examined(needs_of_script(kind, text, name), complaint_about(kind, text, name))


def _secret(uses: tuple[Use, ...], texts: dict[str, str], source: Source) -> list[Problem]:
    found = []
    for use in uses:
        if asks_for_secrets(use.kind, texts[use.name], use.name):
            message = f"script {use.name!r} may not read a keychain entry or a token: {REASON}"
            found.append(use.problem("spark_secret", message, file=source.file, field="script"))
    return found


def _excess(uses: tuple[Use, ...], texts: dict[str, str], source: Source) -> list[Problem]:
    total = sum(map(len, texts.values()))
    if len(texts) > SCRIPTS_MAX:
        message = f"the playbook has {len(texts)} scripts, the limit is {SCRIPTS_MAX}"
    elif total > SCRIPTS_BYTES_MAX:
        message = f"the scripts have {total:,} characters together, the limit is {SCRIPTS_BYTES_MAX:,}"
    else:
        return []
    return [uses[-1].problem("too_many_scripts", message, file=source.file, field="script")]
