"""Every bound of the system, by name.  A queue, batch, retry, cache, payload, template or recursion without
an entry here is a defect."""

from __future__ import annotations

# --- documents -------------------------------------------------------------------------------------------
DOCUMENT_BYTES_MAX = 1_000_000
DOCUMENT_DEPTH_MAX = 32
DOCUMENT_ALIASES_MAX = 100
DOCUMENT_NODES_MAX = 200_000
WORKBOOK_ENTRIES_MAX = 1_000

# --- templates -------------------------------------------------------------------------------------------
TEMPLATE_CHARS_MAX = 256_000
TEMPLATE_NODES_MAX = 5_000
TEMPLATE_OUTPUT_CHARS_MAX = 1_000_000
TEMPLATE_SEQUENCE_MAX = 1_000_000
TEMPLATE_RANGE_MAX = 100_000
TEMPLATE_INTEGER_BITS_MAX = 4_096
TEMPLATE_WIDTH_MAX = 10_000
TEMPLATE_SECONDS_MAX = 5.0

# --- events and routing ----------------------------------------------------------------------------------
EVENT_RESULT_BYTES_MAX = 8_192
EVENT_BODY_BYTES_MAX = 262_144
ATOM_BYTES_MAX = 1_024
ATOMS_BYTES_MAX = 4_096
CONTEXT_ENTRY_BYTES_MAX = 1_024
CONTEXT_INLINE_BYTES_MAX = 65_536
ERROR_MESSAGE_CHARS_MAX = 1_000
ERROR_DETAILS_BYTES_MAX = 512
WARNINGS_MAX = 20

# --- appending -------------------------------------------------------------------------------------------
APPEND_BATCH_EVENTS_MAX = 512
APPEND_QUEUE_EVENTS_MAX = 20_000
DECIDE_INPUTS_WAITING_MAX = 10_000

# --- payloads --------------------------------------------------------------------------------------------
PAYLOAD_INLINE_BYTES_MAX = 65_536
RESULT_BYTES_MAX = 512 * 1024 * 1024

# --- commands and tasks ----------------------------------------------------------------------------------
COMMAND_ATTEMPTS_MAX = 10
PIPELINE_TASKS_MAX = 1_000_000
RETRY_WAIT_SECONDS_MAX = 300.0
RETRY_WAIT_IN_WORKER_SECONDS_MAX = 2.0
TASK_TIMEOUT_SECONDS_DEFAULT = 600.0
TASK_TIMEOUT_SECONDS_BY_KIND = {"http": 60.0, "playbook": 3600.0}
TIMEOUT_SECONDS_MAX = 366 * 86_400.0
CANCEL_GRACE_SECONDS = 10.0
CHILDREN_DEPTH_MAX = 16
STOPS_KEPT_MAX = 1_024

# --- loops -----------------------------------------------------------------------------------------------
LOOP_IN_FLIGHT_DEFAULT = 4
LOOP_IN_FLIGHT_MAX = 10_000
LOOP_ITEMS_MAX = 10_000_000
FRAME_ROWS_MAX = 5_000
FRAME_MS_AIM = 200.0
FRAME_PERSIST_SECONDS = 0.25
FRAME_TAIL_SHARE = 5
FRAME_LANES = 4
FRAME_LANE_ROWS = 8
COLLECTION_CHUNK_ROWS = 1_000
COLLECTION_CHUNK_BYTES = 262_144
COLLECTION_CARRIED_BYTES_MAX = 4 * 1024 * 1024

# --- user Python -----------------------------------------------------------------------------------------
PYTHON_CHILDREN_MAX = 32
PYTHON_CHILD_TASKS_MAX = 1_000
PYTHON_OUTPUT_CHARS_MAX = 32_768
PYTHON_MEMORY_BYTES_MAX = 2 * 1024**3
PYTHON_TRACEBACK_CHARS_MAX = 8_192

# --- credentials and the catalog -------------------------------------------------------------------------
CREDENTIAL_NAME_CHARS_MAX = 200
CREDENTIAL_BYTES_MAX = 65_536
CREDENTIAL_VALUES_MAX = 256
CREDENTIAL_DESCRIPTION_CHARS_MAX = 2_000
CREDENTIAL_TAGS_MAX = 50
CREDENTIAL_TAG_CHARS_MAX = 100
CREDENTIAL_CACHE_MAX = 1_000
CREDENTIAL_CACHE_SECONDS = 5.0
CATALOG_PATH_CHARS_MAX = 300
CATALOG_ROWS_MAX = 1_000
CATALOG_REGISTER_TRIES_MAX = 100

# --- the API ---------------------------------------------------------------------------------------------
REQUEST_BYTES_MAX = 8_000_000
REQUEST_DEPTH_MAX = 100
WAIT_SECONDS_MAX = 30.0
LIST_ROWS_MAX = 1_000
EVENTS_ROWS_MAX = 5_000
IDEMPOTENCY_KEY_CHARS_MAX = 200

# --- worker sessions -------------------------------------------------------------------------------------
FACTS_BYTES_MAX = 32_000_000
FACTS_AT_ONCE_MAX = 1_000
FACT_ANSWERS_KEPT_MAX = 4_096
SESSIONS_MAX = 1_000
SESSION_SLOTS_MAX = 1_024
SESSION_KINDS_MAX = 100

# --- the http tool ---------------------------------------------------------------------------------------
HTTP_BODY_BYTES_IN_MEMORY_MAX = 8 * 1024 * 1024
HTTP_BODY_BYTES_MAX = 8 * 1024**3
HTTP_REDIRECTS_MAX = 10
HTTP_SESSIONS_MAX = 256
HTTP_CONNECTIONS_MAX = 1_000
HTTP_VERDICTS_MAX = 4_096
HTTP_DNS_SECONDS_MAX = 10
HTTP_MEDIA_TYPE_CHARS_MAX = 200

# --- the postgres tool -----------------------------------------------------------------------------------
POSTGRES_POOLS_MAX = 64
POSTGRES_CONNECTIONS_MAX = 10
POSTGRES_IDLE_SECONDS_MAX = 60.0
POSTGRES_CONNECT_SECONDS_MAX = 10.0
POSTGRES_RESET_SECONDS_MAX = 2.0
SQL_STATEMENTS_MAX = 10_000
SQL_CACHED_TEXTS_MAX = 512
SQL_CACHED_CHARS_MAX = 16_384
