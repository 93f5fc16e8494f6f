"""What a data source may use that must not stand in its options: credentials, and the rules of the installation.

Options are in the plan, in Spark's UI and in the event log.  So a source is registered as a class made for one session:
Spark sends such a class by value, and what is in it is seen by the processes that plan, read and write, and by nobody
else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from pyspark.sql.datasource import DataSource

from noetl.core.errors import Failure, ToolFailed
from noetl.core.secret import Secret
from noetl.ports.data.sources import SourceAccess
from noetl.ports.secrets import Credential


class Carried:
    """A credential on its way to Spark's processes.  A Secret is never serialised; this is, and shows nothing."""

    __slots__ = ("_data", "name", "type")

    def __init__(self, name: str, type_: str, data: Mapping[str, Any]) -> None:
        self.name = name
        self.type = type_
        self._data = dict(data)

    @classmethod
    def of(cls, credential: Credential) -> Carried:
        return cls(credential.name, credential.type, credential.data.reveal())

    def opened(self) -> Credential:
        return Credential(name=self.name, type=self.type, data=Secret(self._data))

    def __repr__(self) -> str:
        return f"Carried({self.name!r})"


class Resolve(Protocol):
    """Finds a credential at the time of use: one that is registered (`auth`), or a connection string in a variable of
    the environment (`environment`).  Spark sends it by its name, so it is a function of a module."""

    def __call__(self, where: Literal["auth", "environment"], name: str, /) -> Credential: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Given to a source when it is registered."""

    credentials: Mapping[str, Carried] = field(default_factory=dict)
    """By the name that the option `auth` gives."""
    resolve: Resolve | None = None
    """Asked for what is not in `credentials`."""
    http_allow: tuple[str, ...] = ()
    """Addresses beyond the public internet."""
    private_hosts: tuple[str, ...] = ()
    """Socket folders of the control plane's own server."""
    pushes_filters: bool = False
    """Whether the session gives filters to its sources: Spark refuses a source that wants them when it does not."""
    is_one_machine: bool = False
    """Whether all tasks run on the machine of the driver."""
    cores: int = 1
    """How many tasks the session runs at once."""
    own: SourceAccess | None = field(default=None, repr=False)
    """NoETL's own payloads and ledger."""
    own_refusal: str | None = None
    """Why there is no way to them, and what to do."""

    def with_secrets(self, type_: str, secrets: Mapping[str, Mapping[str, Any]]) -> Access:
        """The same and these credentials, by the name that `auth` gives."""
        more = {name: Carried(name, type_, data) for name, data in secrets.items()}
        return replace(self, credentials={**self.credentials, **more})

    def credential(self, options: Mapping[str, str]) -> Credential | None:
        """What `auth` or `dsn_env` names; None when neither is given.  Raises ToolFailed."""
        name, variable = options.get("auth"), options.get("dsn_env")
        if name and variable:
            raise refused("auth and dsn_env are given: one of them names the credential")
        if name:
            carried = self.credentials.get(name)
            return carried.opened() if carried is not None else self._resolved("auth", name)
        return self._resolved("environment", variable) if variable else None

    def _resolved(self, where: Literal["auth", "environment"], name: str) -> Credential:
        if self.resolve is None:
            raise refused(f"{name!r} cannot be resolved here: register the sources by noetl.spark.register(spark)")
        return self.resolve(where, name)


class GrantedSource(DataSource):
    """A source that uses what it was given at its registration."""

    access: ClassVar[Access] = Access()


S = TypeVar("S", bound=GrantedSource)


def granted(source: type[S], access: Access) -> type[S]:
    """The source with this access, as a class that is in no module: so Spark sends all of it by value."""
    return type(f"{source.__name__}Granted", (source,), {"access": access, "__doc__": source.__doc__})


def refused(message: str, code: str = "SOURCE_ACCESS") -> ToolFailed:
    return ToolFailed(Failure(kind="auth", code=code, message=message))
