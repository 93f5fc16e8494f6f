"""`keychain` at registration: what is read, what is refused, and where no secret may be mentioned."""

from __future__ import annotations

import pytest

from noetl.core.errors import PlaybookInvalid, Problem
from noetl.core.playbook.checks.credentials import missing_credentials
from noetl.core.playbook.compile import compile_playbook
from noetl.core.playbook.compiled import CompiledPlaybook
from tests.support.playbooks import FILE, document

KINDS = frozenset(("noop", "python", "http", "postgres", "playbook"))
STEP = "workflow: [{step: a, tool: {kind: noop}}]"


def compiled(body: str) -> CompiledPlaybook:
    return compile_playbook(document(body), file=FILE, kinds=KINDS)


def problems(body: str) -> list[Problem]:
    with pytest.raises(PlaybookInvalid) as caught:
        compiled(body)
    return caught.value.problems


def entry(text: str) -> CompiledPlaybook:
    return compiled(f"keychain: [{text}]\n{STEP}")


# --- entries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "{name: a, kind: static, map: {x: 1}}",
        "{name: a, type: STATIC, map: {x: 1}}",
        "{name: a, kind: bearer, token: t, scope: global, auto_renew: true}",
        "{name: a, kind: basic, user: u, password: p, scope: local}",
        "{name: a, kind: api_key, value: k, header_name: X-Key, scope: shared}",
        "{name: a, kind: credential, ref: c}",
        "{name: a, kind: postgres_credential, credential: c}",
        "{name: a, kind: oauth2, endpoint: 'https://x', data: {a: 1}, token_field: t, ttl_field: e, method: POST}",
        "{name: a, kind: oauth2, url: 'https://x', form: 'a=b', description: words}",
    ],
)
def test_every_kind_is_read_without_a_word(text: str) -> None:
    assert entry(text).warnings == ()
    assert list(entry(text).keychain) == ["a"]


@pytest.mark.parametrize("kind", ["secrets", "secret_manager", "google_id_token", "google_oauth"])
def test_a_kind_without_a_provider_is_a_warning(kind: str) -> None:
    found = entry(f"{{name: a, kind: {kind}, provider: x, map: {{y: z}}, anything: '{{{{ no }}}}'}}")
    assert [warning.code for warning in found.warnings] == ["unsupported_keychain_kind"]


@pytest.mark.parametrize(
    ("text", "code", "message"),
    [
        ("{kind: static, map: {x: 1}}", "keychain_name", "mapping with a `name`"),
        ("{name: '', kind: static, map: {x: 1}}", "keychain_name", "mapping with a `name`"),
        ("{name: 7, kind: static, map: {x: 1}}", "keychain_name", "mapping with a `name`"),
        ("{name: ' a', kind: static, map: {x: 1}}", "keychain_name", "one line"),
        ("just text", "keychain_name", "mapping with a `name`"),
        ("{name: a, map: {x: 1}}", "keychain_kind", "'a' needs a kind"),
        ("{name: a, kind: statik, map: {x: 1}}", "keychain_kind", "did you mean 'static'"),
        ("{name: a, kind: static}", "keychain_field", "needs 'map'"),
        ("{name: a, kind: static, map: [1]}", "keychain_field", "map must be a mapping"),
        ("{name: a, kind: bearer}", "keychain_field", "needs 'token' or"),
        ("{name: a, kind: basic, username: u}", "keychain_field", "needs 'password'"),
        ("{name: a, kind: credential}", "keychain_field", "needs 'credential' or 'ref'"),
        ("{name: a, kind: oauth2, data: {}}", "keychain_field", "needs 'endpoint'"),
        ("{name: a, kind: oauth2, endpoint: x, headers: [1]}", "keychain_field", "headers must be a mapping"),
        ("{name: a, kind: static, map: {x: 1}, scope: world}", "keychain_scope", "unknown scope 'world'"),
        ("{name: a, kind: static, map: {x: 1}, auto_renew: maybe}", "keychain_shape", "auto_renew"),
        ("{name: a, kind: bearer, token: t}, {name: a, kind: bearer, token: u}", "duplicate_keychain_entry", "twice"),
        ("{name: a, kind: bearer, token: '{{ keychain.a.x }}'}", "keychain_order", "not declared before it"),
        (
            "{name: a, kind: bearer, token: '{{ keychain.b.x }}'}, {name: b, kind: bearer, token: t}",
            "keychain_order",
            "'a' reads 'b'",
        ),
        (
            "{name: a, kind: bearer, token: \"{{ token('b') }}\"}, {name: b, kind: bearer, token: t}",
            "keychain_order",
            "'a' reads 'b'",
        ),
    ],
)
def test_a_wrong_entry_is_refused_with_its_place(text: str, code: str, message: str) -> None:
    found = problems(f"keychain: [{text}]\n{STEP}")
    assert [problem.code for problem in found] == [code]
    assert message in found[0].message
    assert found[0].line == 4


def test_a_keychain_is_a_list_of_a_hundred_at_most() -> None:
    assert problems(f"keychain: {{a: 1}}\n{STEP}")[0].code == "keychain_shape"
    many = ",".join(f"{{name: e{n}, kind: bearer, token: t}}" for n in range(101))
    assert "the limit is 100" in problems(f"keychain: [{many}]\n{STEP}")[0].message
    assert compiled(f"keychain:\n{STEP}").keychain == {}


def test_what_nobody_reads_and_names_that_do_not_exist_there_are_warnings() -> None:
    found = entry("{name: a, kind: bearer, token: '{{ ctx.t }}{{ keychain.zz.t }}', tokn: x}").warnings
    assert {warning.code for warning in found} == {"unknown_key", "keychain_names", "unknown_keychain_entry"}
    body = "workflow: [{step: a, tool: {kind: http, url: x, headers: {X: '{{ keychain.nop.y }}'}}}]"
    (warning,) = compiled("keychain: [{name: nope, kind: bearer, token: t}]\n" + body).warnings
    assert (warning.code, warning.step) == ("unknown_keychain_entry", "a")
    assert "did you mean 'nope'" in warning.message


# --- what a command carries -----------------------------------------------------------------------------------

CHAIN = """
keychain:
  - {name: base, kind: static, map: {id: "{{ workload.client }}"}}
  - {name: made, kind: bearer, token: "{{ keychain.base.id }}-{{ region }}"}
  - {name: other, kind: bearer, token: "{{ unused }}"}
workflow:
  - {step: direct, tool: {kind: http, url: x, headers: {X: "{{ keychain.made }}"}}}
  - {step: by_auth, tool: {kind: http, url: x, auth: made}}
  - {step: by_value, tool: {kind: http, url: x, auth: "{{ keychain.made }}"}}
  - {step: by_alias, tool: {kind: http, url: x, auth: {one: {key: made}}}}
  - {step: by_token, tool: {kind: http, url: x, headers: {X: "{{ token('made') }}"}}}
  - {step: by_template, tool: {kind: http, url: x, auth: "{{ which }}"}}
  - {step: plain, tool: {kind: http, url: x, auth: elsewhere}}
"""


@pytest.mark.parametrize(
    ("step", "names"),
    [
        ("direct", {"client", "region"}),
        ("by_auth", {"client", "region"}),
        ("by_value", {"client", "region"}),
        ("by_alias", {"client", "region"}),
        ("by_token", {"client", "region"}),
        ("by_template", {"client", "region", "unused", "which"}),
        ("plain", set()),
    ],
)
def test_a_command_carries_the_inputs_of_the_entries_that_its_tasks_may_ask_for(step: str, names: set[str]) -> None:
    assert compiled(CHAIN).steps[step].needs.names - {"keychain", "token"} == names


# --- where no secret may be -----------------------------------------------------------------------------------

KEYCHAIN = "keychain: [{name: k, kind: bearer, token: t}]\n"


def step(text: str) -> str:
    return f"workflow: [{{step: a, {text}}}]"


def rule(text: str) -> str:
    return step(f"tool: {{kind: noop, spec: {{policy: {{rules: [{text}]}}}}}}")


SERVER_SIDE = {
    "arc when": step("tool: {kind: noop}, next: {arcs: [{step: end, when: EXPR}]}"),
    "arc set": step("tool: {kind: noop}, next: {arcs: [{step: end, set: {x: {y: [EXPR]}}}]}"),
    "step when": step("tool: {kind: noop}, when: EXPR"),
    "admission": step("tool: {kind: noop}, spec: {policy: {admit: {rules: [{when: EXPR, then: {allow: true}}]}}}"),
    "step set": step("tool: {kind: noop}, set: {ctx.x: EXPR}"),
    "loop in": step("tool: {kind: noop}, loop: {in: EXPR, iterator: i}"),
    "max_in_flight": step(
        "tool: {kind: noop}, loop: {in: [1], iterator: i, spec: {mode: parallel, max_in_flight: EXPR}}"
    ),
    "claim": step("tool: {kind: noop}, loop: {cursor: {auth: x, claim: EXPR}, iterator: i}"),
    "task set": step("tool: {kind: noop, set: {x: EXPR}}"),
    "policy when": rule("{when: EXPR, then: {do: continue}}"),
    "policy set": rule("{else: {then: {do: continue, set: {x: EXPR}}}}"),
    "retry delay": rule("{else: {then: {do: retry, delay: EXPR}}}"),
    "timeout": step("tool: {kind: noop, timeout: EXPR}"),
    "input of a playbook": step("tool: {kind: playbook, path: p, input: {x: EXPR}}"),
    "workload": "workload: {x: {y: EXPR}}\nworkflow: [{step: a, tool: {kind: noop}}]",
}
EXPRESSIONS = ["{{ keychain.k }}", "{{ keychain['k'].token }}", "{{ token('k') }}", "a {{ 'b' ~ token(name) }}"]


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("place", SERVER_SIDE)
def test_a_secret_is_refused_where_it_would_be_recorded(place: str, expression: str) -> None:
    found = problems(KEYCHAIN + SERVER_SIDE[place].replace("EXPR", f'"{expression}"'))
    assert {problem.code for problem in found} == {"keychain_server_side"}
    assert all(problem.line is not None and problem.line > 4 for problem in found)


@pytest.mark.parametrize("place", SERVER_SIDE)
def test_a_value_that_is_called_token_is_no_secret(place: str) -> None:
    assert compiled(KEYCHAIN + SERVER_SIDE[place].replace("EXPR", '"{{ token }}"'))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_the_fields_and_the_input_of_a_task_may_mention_secrets(expression: str) -> None:
    assert compiled(
        KEYCHAIN + f'workflow: [{{step: a, tool: {{kind: http, url: "{expression}", input: {{x: "{expression}"}}}}}}]'
    )


# --- credentials that are named -------------------------------------------------------------------------------

NAMED = """
keychain:
  - {name: mine, kind: credential, credential: stored}
  - {name: made, kind: bearer, token: "{{ keychain.mine.x }}"}
workflow:
  - step: a
    tool:
      - {name: one, kind: http, url: x, auth: plain}
      - {name: two, kind: http, url: x, auth: {type: bearer, key: keyed}}
      - {name: three, kind: http, url: x, auth: {db: {credential: aliased}, web: shorthand}}
      - {name: four, kind: postgres, credential: older, query: SELECT 1}
      - {name: five, kind: http, url: "{{ token('tokened') }}", auth: {source: secret, name: secret_one}}
      - {name: six, kind: http, url: x, auth: mine}
      - {name: seven, kind: http, url: x, auth: "{{ which }}"}
      - {name: eight, kind: http, url: x, auth: {source: env, name: VARIABLE}}
      - {name: nine, kind: http, url: x, auth: {source: inline, fields: {name: y}}}
  - step: b
    loop: {cursor: {kind: postgres, auth: of_a_cursor, claim: SELECT 1}, iterator: r, spec: {mode: cursor}}
    tool: {kind: noop}
"""
NAMES = ["stored", "plain", "keyed", "aliased", "shorthand", "older", "secret_one", "of_a_cursor", "tokened"]


def test_every_name_that_is_written_out_is_listed_with_its_place() -> None:
    uses = compiled(NAMED).credentials
    assert sorted(use.name for use in uses) == sorted(NAMES)
    assert {use.name: use.line for use in uses}["keyed"] == 12
    assert {use.name: use.field for use in uses}["aliased"] == "auth.db.credential"


def test_what_the_store_lacks_is_a_warning_and_what_it_has_is_not() -> None:
    playbook = compiled(NAMED)
    assert missing_credentials(playbook, NAMES) == []
    (problem,) = missing_credentials(playbook, [name for name in NAMES if name != "older"], file="x.yaml")
    assert (problem.code, problem.step, problem.line, problem.file) == ("missing_credential", "a", 14, "x.yaml")
    assert "there is no credential 'older'" in problem.message
    (stored,) = missing_credentials(playbook, NAMES[1:])
    assert (stored.step, stored.line) == (None, 6)
