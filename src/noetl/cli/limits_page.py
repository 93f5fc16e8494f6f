"""docs/reference/limits.md: the limits that whoever writes or runs a playbook can meet, from `core/limits.py`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from noetl.core import limits

# Page section → limit → what it bounds, and what happens there.
VISIBLE: Mapping[str, Mapping[str, str]] = {
    "Playbooks": {
        "DOCUMENT_BYTES_MAX": "bytes of a document, and of what it becomes with its aliases written out; refused",
        "DOCUMENT_DEPTH_MAX": "levels of nesting; refused",
        "DOCUMENT_ALIASES_MAX": "uses of YAML anchors; refused",
        "DOCUMENT_NODES_MAX": "values in a document; refused",
        "DOCUMENT_TEMPLATES_MAX": "texts with templates in a document; refused",
        "DOCUMENT_ERRORS_MAX": "errors that are told about one document",
        "DOCUMENT_WARNINGS_MAX": "warnings that are told about one document",
        "STEPS_MAX": "steps of a playbook; refused",
        "STEP_NAME_CHARS_MAX": "characters of a step's name; refused",
        "ARCS_PER_STEP_MAX": "arcs of one step; refused",
        "ARCS_MAX": "arcs of a playbook; refused",
        "TASKS_PER_STEP_MAX": "tasks of one step; refused",
        "TASKS_MAX": "tasks of a playbook; refused",
        "RULES_PER_TASK_MAX": "policy rules of one task, and rules of admission of one step; refused",
        "WORKBOOK_ENTRIES_MAX": "entries of the workbook; refused",
        "LIMITS_PER_PLAYBOOK_MAX": "shared limits of a playbook; refused",
        "LIMIT_NAME_CHARS_MAX": "characters of a shared limit's name; refused",
        "LIMIT_RATE_MAX": "calls per second that the rate of a shared limit may be; refused",
        "LIMIT_CONCURRENCY_MAX": "calls at a time that a shared limit may allow; refused",
        "KEYCHAIN_ENTRIES_MAX": "entries of the keychain; refused",
        "CATALOG_PATH_CHARS_MAX": "characters of a path in the catalog; refused",
        "SCRIPT_BYTES_MAX": "bytes of one script; refused",
        "SCRIPTS_MAX": "scripts of a playbook; refused",
    },
    "Templates": {
        "TEMPLATE_CHARS_MAX": "characters of one template; longer text is no template, with a warning",
        "TEMPLATE_NODES_MAX": "names, constants and operations of one template; the same",
        "TEMPLATE_OUTPUT_CHARS_MAX": "characters of the text that a template gives; the template fails",
        "TEMPLATE_SEQUENCE_MAX": "elements of a list that a template makes; the template fails",
        "TEMPLATE_RANGE_MAX": "numbers of a `range()`; the template fails",
        "TEMPLATE_INTEGER_BITS_MAX": "bits of a whole number; the template fails",
        "TEMPLATE_WIDTH_MAX": "width of a formatted value; the template fails",
        "TEMPLATE_WORK_MAX": "elements that an expression without loops may look at; the template fails",
        "TEMPLATE_WORK_IN_CHILD_MAX": "the same with `{% for %}` or macros",
        "TEMPLATE_SECONDS_MAX": "seconds that a template with `{% for %}` or macros may take; the template fails",
    },
    "Steps and tasks": {
        "PIPELINE_TASKS_MAX": "task runs of one step run; the step fails with `pipeline_runaway`",
        "TASK_TIMEOUT_SECONDS_DEFAULT": "seconds of a task that says nothing; it fails with kind `timeout`",
        "TIMEOUT_SECONDS_MAX": "seconds that a timeout may be; refused",
        "RETRY_WAIT_SECONDS_MAX": "seconds between two attempts; a longer wait is cut",
        "CHILDREN_DEPTH_MAX": "playbooks that start each other; the task fails",
        "COMMAND_ATTEMPTS_MAX": "lost workers until a command fails",
        "STEPS_SKIPPED_AT_ONCE_MAX": "steps skipped in a row; the execution fails with `routing_error`",
        "CALLER_BYTES_MAX": "bytes of `iter.parent`; values that do not fit are not there",
        "ENV_BYTES_MAX": "bytes of all variables that NOETL_ENV_ALLOW names; the server does not start",
        "JOBS_RECORDED_MAX": "jobs of a step run, or of a frame, whose cost is recorded with its end: the last ones",
        "JOB_RECORDED_BYTES_MAX": "bytes of what is recorded of one of them; what does not fit is left out",
        "JOB_PROGRESS_EVERY_SECONDS": "seconds between two records of a long job's progress",
        "CANCEL_GRACE_SECONDS": "seconds for running tasks to end after a cancel",
    },
    "Loops": {
        "LOOP_IN_FLIGHT_DEFAULT": "items at a time of a parallel loop that says nothing",
        "LOOP_IN_FLIGHT_MAX": "items at a time; the step fails",
        "LOOP_ITEMS_MAX": "items of a collection; the step fails",
        "FRAME_ROWS_MAX": "rows of a frame; refused",
        "PLACE_NAME_CHARS_MAX": "characters of the name of a region, zone, cluster or node; refused",
        "SEED_OUTPUTS_MAX": "pieces in which a retry keeps what succeeded; refused with `retry_too_large`",
        "CURSOR_ROWS_PER_SLOT_DEFAULT": "rows of one slot of a cursor that says nothing; the slot ends with a warning",
        "CURSOR_CLAIM_ROWS_MAX": "rows that one claim may take; it is rolled back and the step fails",
        "CURSOR_CLAIM_IDLE_SECONDS_MAX": "seconds that a claim may stand open; the database rolls it back",
    },
    "Results and context": {
        "RESULT_BYTES_MAX": "bytes of one result; the task fails",
        "RESULT_INLINE_BYTES_MAX": "bytes up to which a result has no `_ref`, unless `inline_max_bytes` says so",
        "CONTEXT_ENTRY_BYTES_MAX": "bytes of a context value in an event; larger ones are kept by reference",
        "ERROR_MESSAGE_CHARS_MAX": "characters of an error's message; longer ones are cut",
        "PYTHON_MEMORY_BYTES_MAX": "bytes of memory of a python task; it fails",
    },
    "Logs": {
        "LOG_COMMAND_BYTES_MAX": "bytes of the log of one attempt at a command or frame; of more only the end is kept",
        "LOG_TAIL_BYTES_MAX": "bytes of that end",
        "LOG_LINE_CHARS_MAX": "characters of one line; the rest is left out",
        "LOG_WAITING_BYTES_MAX": "bytes of a command's log that wait to be written; what comes faster is left out",
        "LOG_FLUSHES_PER_SECOND_MAX": "times per second that a worker writes what was logged",
        "LOG_CHUNK_BYTES_MAX": "bytes of text in one chunk; more makes another one",
        "LOG_BLOCKED_SECONDS_MAX": "seconds that a task waits in all when it prints too fast; then output is lost",
        "LOG_LINES_AT_ONCE_MAX": "lines of one answer",
    },
    "Tools": {
        "TABLE_GIVEN_ROWS_MAX": "rows of one record batch that a tool hands over; the task fails",
        "HTTP_BODY_BYTES_MAX": "bytes of an answer; the task fails",
        "HTTP_REDIRECTS_MAX": "redirects of one request; the task fails",
        "SQL_STATEMENTS_MAX": "statements of one text; the task fails",
        "POSTGRES_CONNECTIONS_MAX": "connections of a worker to one database",
        "DUCKDB_CHILDREN_MAX": "duckdb tasks of a worker at a time; others wait",
        "DUCKDB_MEMORY_BYTES_MAX": "bytes of memory of a duckdb task, or NOETL_DUCKDB_MEMORY_MB; it spills, then fails",
        "DUCKDB_SPILL_BYTES_MAX": "bytes that a duckdb task may spill to disk; it fails",
        "DUCKDB_FILE_BYTES_MAX": "bytes of one file of a duckdb task; it fails",
        "DUCKDB_TABLES_MAX": "tables in the input of a duckdb task; it fails",
        "DUCKDB_REQUEST_BYTES_MAX": "bytes of statements and of plain rows of a duckdb task; it fails",
        "SPARK_INPUTS_MAX": "inputs of a spark task; refused",
        "SPARK_OUTPUTS_MAX": "named outputs of a spark task; refused",
        "SPARK_RULES_MAX": "rules in `expect` of a spark task; refused",
        "SPARK_COLUMNS_MAX": "columns of one of them, and of `partition_by`; refused",
        "SPARK_CONF_MAX": "settings in `conf` of a spark task; refused",
        "SPARK_FILES_MAX": "files of an output that `files` may say; refused",
        "DUCKDB_RUN_SECONDS_MAX": "seconds until files of an execution that nobody ended on a node are removed there",
    },
    "The API": {
        "REQUEST_BYTES_MAX": "bytes of a request; refused",
        "REQUEST_DEPTH_MAX": "levels of nesting of a request; refused",
        "LIST_ROWS_MAX": "rows of a list",
        "EVENTS_ROWS_MAX": "events of one answer",
        "RESULTS_LISTED_MAX": "results of one list",
        "RESULT_PATH_CHARS_MAX": "characters of a path into a result; refused",
        "RESULT_COLUMNS_MAX": "columns of rows that are no table, and members of a mapping in one; refused",
        "RESULT_TYPE_DEPTH_MAX": "levels of lists and mappings in a column of rows that are no table; refused",
        "LOCATOR_CHARS_MAX": "characters of a locator; refused",
        "WAIT_SECONDS_MAX": "seconds that a request may wait for something new",
        "CREDENTIAL_BYTES_MAX": "bytes of a credential; refused",
    },
}


def limits_markdown() -> str:
    lines = [
        "# Limits",
        "",
        "Generated by `noetl.cli.reference` from `core/limits.py`; a test compares.  What is refused is refused when",
        "the playbook is registered or the request is made; the error names the limit, the place and, where it is",
        "known, the value.",
    ]
    for section, entries in VISIBLE.items():
        lines += ["", f"## {section}", "", *_table(entries)]
    return "\n".join(lines) + "\n"


def _table(entries: Mapping[str, str]) -> Iterable[str]:
    yield "| limit | value | of what |"
    yield "|---|---|---|"
    for name, meaning in entries.items():
        yield f"| `{name}` | {_written(getattr(limits, name))} | {meaning} |"


def _written(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:,g}"
