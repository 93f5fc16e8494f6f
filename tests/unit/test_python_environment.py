"""The environment that a python task is given."""

from __future__ import annotations

import pytest

from noetl.core.errors import ToolFailed
from noetl.core.secret import Secret
from noetl.ports.secrets import Credential
from noetl.ports.tool import ToolCall
from noetl.tools.python.environment import environment_of

CANARY = "canary-Zq8fX2"
POSTGRES = Credential(
    name="pg",
    type="postgres",
    data=Secret({"host": "db", "db_port": 5433, "user": "u", "password": CANARY, "dbname": "d"}),
)
AWS = Credential(
    name="s3",
    type="S3",
    data=Secret({"access_key_id": "i", "secret_access_key": CANARY, "region": "eu", "endpoint": ""}),
)


def call(env: object = None, auth: Credential | dict[str, Credential] | None = None) -> ToolCall:
    return ToolCall(
        fields={"env": env},
        input={},
        names={},
        context=None,
        timeout_seconds=1.0,
        tenant_id="a",
        organization_id="b",
        execution_id=1,
        step="s",
        label="t",
        auth=auth,
    )


def test_env_is_text_without_what_is_null() -> None:
    given = {"A": 1, "B": None, "C": {"x": [1]}, "D": "d"}
    assert environment_of(call(given)) == {"A": "1", "C": '{"x": [1]}', "D": "d"}
    assert environment_of(call()) == {}


def test_a_credential_has_the_names_that_libraries_look_for_and_env_stands_above_it() -> None:
    variables = {"PGHOST": "db", "PGPORT": "5433", "PGUSER": "u", "PGPASSWORD": CANARY, "PGDATABASE": "d"}
    assert environment_of(call(auth=POSTGRES)) == variables
    assert environment_of(call({"PGHOST": "other"}, POSTGRES)) == {**variables, "PGHOST": "other"}
    aws = {"AWS_ACCESS_KEY_ID": "i", "AWS_SECRET_ACCESS_KEY": CANARY, "AWS_REGION": "eu", "AWS_DEFAULT_REGION": "eu"}
    assert environment_of(call(auth={"a": AWS, "b": POSTGRES})) == {**aws, **variables}


def test_a_type_without_names_is_refused_with_another_way() -> None:
    token = Credential(name="api", type="bearer", data=Secret({"token": CANARY}))
    with pytest.raises(ToolFailed, match=r"'api' has type 'bearer'.*`input` or `env`") as caught:
        environment_of(call(auth=token))
    assert caught.value.failure.kind == "unsupported"
    assert CANARY not in caught.value.failure.message


@pytest.mark.parametrize("env", [[1], "A=b", 7])
def test_env_that_is_no_mapping_is_refused(env: object) -> None:
    with pytest.raises(ToolFailed, match="env must be a mapping"):
        environment_of(call(env))
