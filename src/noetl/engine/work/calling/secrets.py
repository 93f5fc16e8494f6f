"""Everything secret that one command or frame may ask for: entries of the keychain, stored credentials, tokens,
variables of the worker's environment.  What was given out is known to the redactor."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from noetl.core.errors import Failure, TemplateFailed, TemplateRefused, ToolFailed
from noetl.core.expression import TOKEN_FUNCTION, CompiledValue, Template
from noetl.core.limits import TOKENS_PER_FIELD_MAX
from noetl.core.playbook.compiled import CompiledEntry, CompiledPlaybook
from noetl.core.playbook.keychain.reading import CREDENTIAL_KINDS
from noetl.core.playbook.keychain.secrecy import KEYCHAIN, reads_secrets
from noetl.core.playbook.needs import mentions_of
from noetl.core.secret import Secret
from noetl.engine.work.calling import keychain as entries
from noetl.engine.work.calling.grants import stored_token, token_grant
from noetl.engine.work.calling.keychain import Opened, cache_key, entry_names
from noetl.engine.work.calling.redact import Redactor
from noetl.engine.work.calling.tokens import Answer, TokenRequest, fetch_token
from noetl.engine.work.parts import WorkerParts
from noetl.engine.work.pipeline.rendering import Rendering
from noetl.ports.secrets import Credential
from noetl.ports.session import CommandMessage


class TokenNeeded(Exception):
    """A template asked for a token that has not been fetched yet: rendering cannot wait, so it begins again."""

    def __init__(self, name: str, audience: str | None) -> None:
        super().__init__(name)
        self.name = name
        self.audience = audience


class Secrets:
    """Belongs to one command or frame."""

    def __init__(
        self,
        parts: WorkerParts,
        message: CommandMessage,
        *,
        playbook: CompiledPlaybook,
        names: Mapping[str, object],
        redactor: Redactor,
    ) -> None:
        self._credentials = parts.credentials
        self._environment = parts.environment
        self._tokens = parts.tokens
        self._clock = parts.clock
        self._http = parts.tools.get("http")
        self._message = message
        self._owner = {"tenant_id": message.tenant_id, "organization_id": message.organization_id}
        self._digest = playbook.digest
        self._entries = playbook.keychain
        self._names = names
        self._redactor = redactor
        # What entries warn about is about secrets and is told to nobody.
        self._rendering = Rendering(parts, message, strict=True, warnings=[])
        self._used: set[Hashable] = set()
        self._noted = parts.payloads.used

    def names_in(self, value: CompiledValue) -> set[str]:
        """The names of a field that `render` gives it."""
        return ({KEYCHAIN} if self._entries else set()) | ({"token"} if value.tokens else set())

    # --- credentials, as `auth` asks for them --------------------------------------------------------------

    async def named(self, name: str) -> Credential:
        """An entry of the keychain, else a stored credential.  Raises ToolFailed with kind `auth`."""
        entry = self._entries.get(name)
        return (await self._opened(entry)).credential if entry is not None else await self.stored(name)

    async def stored(self, name: str) -> Credential:
        credential = await self._credentials.open(name, **self._owner)
        self._redactor.learn(credential)
        self._noted.credential(name)
        return credential

    def variable(self, name: str) -> Credential:
        """A variable of this worker's environment, if its operator has let playbooks have it."""
        value = self._environment.get(name)
        if value is None:
            message = (
                f"the environment variable {name!r} is not among those that NOETL_AUTH_ENV_ALLOW names on this worker"
            )
            raise ToolFailed(Failure(kind="auth", code="AUTH_ENV", message=message))
        credential = Credential(name=name, type="secret", data=Secret({"value": value.reveal()}))
        self._redactor.learn(credential)
        self._noted.credential(name)
        return credential

    def learn(self, credential: Credential) -> None:
        self._redactor.learn(credential)

    def refused(self) -> None:
        """Somebody did not accept what was given out: the tokens among it are asked for anew the next time."""
        for key in self._used:
            self._tokens.forget(key)
        self._used.clear()

    # --- fields of tasks -----------------------------------------------------------------------------------

    async def render(
        self, rendering: Rendering, value: CompiledValue | Template, names: Mapping[str, object]
    ) -> object:
        """A field that may read entries and ask for tokens.  Raises ToolFailed when there is no such secret."""
        if not reads_secrets(value):
            return await rendering.render(value, names)
        if value.tokens and value.needs_child:
            raise TemplateRefused(
                "token() is not available in a value with loops: ask for it in `input`, read it there"
            )
        chosen = await self._views(value)
        known: dict[tuple[str, str | None], str] = {}
        scope = {**names, KEYCHAIN: chosen, TOKEN_FUNCTION: _function(known)}
        for _ in range(TOKENS_PER_FIELD_MAX + 1):
            try:
                return await rendering.render(value, scope)
            except TokenNeeded as need:
                known[(need.name, need.audience)] = await self.token(need.name, need.audience)
        raise TemplateRefused(f"a field may ask for at most {TOKENS_PER_FIELD_MAX} tokens")

    async def _views(self, value: CompiledValue | Template) -> dict[str, object]:
        """The entries that a value names; all of them when only its evaluation knows which."""
        asked: set[str] = set()
        for mention in mentions_of(value):
            if mention[0] == KEYCHAIN:
                asked.update(mention[1:2] or self._entries)
        views: dict[str, object] = {}
        for name in sorted(asked):
            entry = self._entries.get(name)
            if entry is None:
                message = f"there is no keychain entry {name!r} in this playbook"
                raise ToolFailed(Failure(kind="auth", code="KEYCHAIN_UNKNOWN", message=message))
            views[name] = (await self._opened(entry)).view()
        return views

    # --- entries -------------------------------------------------------------------------------------------

    async def _opened(self, entry: CompiledEntry) -> Opened:
        opened = await self._made(entry)
        self._redactor.learn(opened.credential)
        self._noted.credential(entry.name)
        return opened

    async def _made(self, entry: CompiledEntry) -> Opened:
        try:
            rendered: Any = await self.render(self._rendering, entry.fields, entry_names(self._names))
        except TemplateFailed as error:
            raise entries.template_failed(entry.name, error) from None
        if entry.kind in CREDENTIAL_KINDS:
            name = str(rendered.get("credential") or rendered.get("ref") or "").strip()
            return entries.of_credential(entry, await self.stored(name))
        if entry.kind != "oauth2":
            return entries.made_of(entry, rendered)
        request = entries.token_request(entry, rendered)
        scope = self._message.execution_id if entry.is_local else self._digest
        key = cache_key(entry, request, owner=tuple(self._owner.values()), scope=scope)
        return entries.of_token(entry, await self._fetched(key, request))

    async def _fetched(self, key: Hashable, request: TokenRequest) -> Answer:
        self._used.add(key)
        return await self._tokens.get(key, lambda: fetch_token(request, self._http, self._message), self._clock)

    # --- tokens --------------------------------------------------------------------------------------------

    async def token(self, name: str, audience: str | None = None) -> str:
        """An access token for a credential (dsl §10.4).  Raises ToolFailed with kind `auth`."""
        credential = await self.named(name)
        held = stored_token(credential)
        if held is None:
            request = token_grant(credential, audience)
            key = (tuple(self._owner.values()), "credential", name, request.digest())
            answer = await self._fetched(key, request)
            granted = Credential(name=name, type="oauth2", data=answer)
            self._redactor.learn(granted)
            held = stored_token(granted)
        if held is None:
            message = f"credential {name!r} gives no token: the answer of its endpoint has none"
            raise ToolFailed(Failure(kind="auth", code="TOKEN_REFUSED", message=message))
        self._redactor.learn_values([held])
        return held


def _function(known: Mapping[tuple[str, str | None], str]) -> Any:
    def token(name: object = None, audience: object = None) -> str:
        if not isinstance(name, str) or not name or not isinstance(audience, str | None):
            raise TemplateFailed("token() takes the name of a credential and, if need be, an audience")
        if (name, audience) not in known:
            raise TokenNeeded(name, audience)
        return known[(name, audience)]

    return token
