"""Every bound of the system, by name.  A queue, batch, retry, cache, payload, template or recursion without
an entry here is a defect."""

from __future__ import annotations

# --- documents -------------------------------------------------------------------------------------------
DOCUMENT_BYTES_MAX = 1_000_000
DOCUMENT_DEPTH_MAX = 32
DOCUMENT_ALIASES_MAX = 100
DOCUMENT_NODES_MAX = 200_000
DOCUMENT_TEMPLATES_MAX = 20_000
DOCUMENT_ERRORS_MAX = 200
DOCUMENT_WARNINGS_MAX = 200
WORKBOOK_ENTRIES_MAX = 1_000
STEPS_MAX = 1_000
# A step's name is part of command ids and transition keys, which are index entries of the ledger.
STEP_NAME_CHARS_MAX = 200
ARCS_PER_STEP_MAX = 200
ARCS_MAX = 20_000
TASKS_PER_STEP_MAX = 200
TASKS_MAX = 10_000
RULES_PER_TASK_MAX = 100

# --- shared limits ---------------------------------------------------------------------------------------
LIMITS_PER_PLAYBOOK_MAX = 100
LIMIT_NAME_CHARS_MAX = 100
LIMIT_RATE_MAX = 1_000_000
LIMIT_CONCURRENCY_MAX = 1_000_000
# One request of a worker, and how many permits it may wait for with it.
PERMIT_USES_MAX = 10_000
PERMITS_WANTED_MAX = 100_000
PERMIT_WAIT_SECONDS_MAX = 20.0
# Permits that one turn deals, for nothing else runs meanwhile; the next turn goes on at once.
PERMITS_PER_TURN_MAX = 500
# Limits that a server takes a turn at side by side: one whose turn waits holds up no others.
PERMIT_TURNS_AT_ONCE_MAX = 4
# Names of limits that metrics tell apart; the others are counted together.
LIMIT_NAMES_COUNTED_MAX = 200

# --- templates -------------------------------------------------------------------------------------------
TEMPLATE_CHARS_MAX = 256_000
TEMPLATE_NODES_MAX = 5_000
TEMPLATE_OUTPUT_CHARS_MAX = 1_000_000
TEMPLATE_SEQUENCE_MAX = 1_000_000
TEMPLATE_RANGE_MAX = 100_000
TEMPLATE_INTEGER_BITS_MAX = 4_096
TEMPLATE_WIDTH_MAX = 10_000
TEMPLATE_SECONDS_MAX = 5.0
# One evaluation inside a server or worker, and one in a child process, where a time limit stands above it.
TEMPLATE_WORK_MAX = 1_000_000
TEMPLATE_WORK_IN_CHILD_MAX = 200_000_000

# --- events and routing ----------------------------------------------------------------------------------
EVENT_RESULT_BYTES_MAX = 8_192
# A failure must always fit into the context of its event.
EVENT_CONTEXT_BYTES_MIN = 4_096
EVENT_BODY_BYTES_MAX = 262_144
ATOM_BYTES_MAX = 1_024
ATOMS_BYTES_MAX = 4_096
CONTROL_BYTES_MAX = 6_144
CONTEXT_ENTRY_BYTES_MAX = 1_024
CONTEXT_INLINE_BYTES_MAX = 65_536
CONTEXT_COUNTER_BYTES_MAX = 64
ERROR_MESSAGE_CHARS_MAX = 1_000
ERROR_DETAILS_BYTES_MAX = 512
WARNINGS_MAX = 20
STEPS_SKIPPED_AT_ONCE_MAX = 1_000
ENV_BYTES_MAX = 8_192
ENV_NAMES_MAX = 100
CALLER_BYTES_MAX = 4_096

# --- appending -------------------------------------------------------------------------------------------
APPEND_BATCH_EVENTS_MAX = 512
APPEND_QUEUE_EVENTS_MAX = 20_000
APPEND_QUEUE_BYTES_MAX = 64 * 1024 * 1024
APPEND_QUEUE_SECONDS_MAX = 5.0
DECIDE_INPUTS_WAITING_MAX = 10_000

# --- payloads --------------------------------------------------------------------------------------------
PAYLOAD_INLINE_BYTES_MAX = 65_536
RESULT_BYTES_MAX = 512 * 1024 * 1024
# Bodies and tables go by in pieces: nothing holds them.
PAYLOAD_BYTES_MAX = 256 * 1024**3
INDEX_PART_BYTES = 262_144
INDEX_READ_BYTES_MAX = 4 * 1024 * 1024
STORED_HELD_BYTES = 32 * 1024 * 1024
STORED_FETCHES_MAX = 8
TABLE_WINDOW_ROWS = 1_024
PYTHON_LANDED_BYTES_MIN = 1_048_576
PYTHON_ROWS_WITH_INPUT_MAX = 10_000
TABLE_MEASURED_BYTES_MAX = 1_048_576
RESULT_INLINE_BYTES_MAX = 65_536
TIER_LARGE_BYTES_MIN = 1024 * 1024
PREVIEW_BYTES_DEFAULT = 1_024
PREVIEW_BYTES_MAX = 65_536
SELECTED_FIELDS_MAX = 50
SELECTED_BYTES_MAX = 3_072

# --- lineage ---------------------------------------------------------------------------------------------
INPUTS_RECORDED_MAX = 32
CREDENTIALS_RECORDED_MAX = 32
REFERENCE_RETURNS_MAX = 3
TRACE_DEPTH_MAX = 100
TRACE_RESULTS_MAX = 500
TRACE_VISITS_MAX = 20_000
TRACE_FRAMES_MAX = 20
RESULT_PARTS_TOLD_MAX = 20

# --- tables ----------------------------------------------------------------------------------------------
# A batch is what is held, compressed and read at once; smaller ones are gathered until they reach the aim.
TABLE_BATCH_ROWS_MAX = 65_536
TABLE_BATCH_BYTES_MAX = 8 * 1024 * 1024
TABLE_BATCH_ROWS_AIM = 16_384
TABLE_BATCH_BYTES_AIM = 1024 * 1024
# Rows of a batch that is handed over: nulls take no bytes, so a few bytes could claim any number of rows.
TABLE_GIVEN_ROWS_MAX = 256 * TABLE_BATCH_ROWS_MAX
TABLE_MESSAGES_MAX = 10_000_000
# Durable bytes that are read at once; a larger table has an index and is read batch by batch.
TABLE_WHOLE_BYTES_MAX = 4 * 1024 * 1024
# What is held in memory after decompression; more goes into a file.
TABLE_DECODED_BYTES_MAX = 64 * 1024 * 1024
TABLE_SPILL_BYTES_MAX = 8 * 1024**3
TABLE_FETCH_SECONDS_MAX = 600.0
# A manifest names every part, and whoever reads it holds it whole.
DATASET_PARTS_MAX = 100_000
# Parts of one dataset that are being hashed and stored, and those that one reader remembers.
DATASET_PARTS_AT_ONCE_MAX = 4
DATASET_PARTS_HELD_MAX = 8
# Rows that are no table, read by a data source: they are held whole and travel with the plan.
SOURCE_ROWS_BYTES_MAX = 64 * 1024**2
SEGMENT_BYTES_MIN = 262_144
SEGMENT_LEASE_SECONDS = 120.0

# --- names -----------------------------------------------------------------------------------------------
LOCATOR_CHARS_MAX = 16_384
LOCATOR_VALUE_CHARS_MAX = 1_000
# The line of a message's subject must fit into what brokers read at once.
SUBJECT_CHARS_MAX = 3_072

# --- commands and tasks ----------------------------------------------------------------------------------
COMMAND_ATTEMPTS_MAX = 10
PIPELINE_TASKS_MAX = 1_000_000
RETRY_WAIT_SECONDS_MAX = 300.0
RETRY_WAIT_IN_WORKER_SECONDS_MAX = 2.0
TASK_TIMEOUT_SECONDS_DEFAULT = 600.0
TASK_TIMEOUT_SECONDS_BY_KIND = {"http": 60.0, "playbook": 3600.0, "spark": 3600.0}
TIMEOUT_SECONDS_MAX = 366 * 86_400.0
CANCEL_GRACE_SECONDS = 10.0
CHILDREN_DEPTH_MAX = 16
STOPS_KEPT_MAX = 1_024
JOB_TEXT_CHARS_MAX = 1_000
JOB_CONF_BYTES_MAX = 4_096
JOB_IDS_MAX = 100
# What is recorded about the jobs of a command stays in the state of its execution.
JOBS_RECORDED_MAX = 20
JOB_RECORDED_BYTES_MAX = 4_096
JOBS_RECORDED_BYTES_MAX = 16_384
# How long a job runs before its progress is recorded, and how far apart records are after that.
JOB_PROGRESS_SECONDS = (1.0, 2.0, 4.0, 8.0)
JOB_PROGRESS_EVERY_SECONDS = 10.0

# --- loops -----------------------------------------------------------------------------------------------
LOOP_IN_FLIGHT_DEFAULT = 4
LOOP_IN_FLIGHT_MAX = 10_000
# Frames of a loop that are held in memory for whoever looks at its items.
LOOP_FRAMES_READ_MAX = 100_000
# An execution that begins with another one's state: bytes of an event that carries a part of it, ranges of rows in one
# output, and outputs of loops in all.
SEED_EVENT_BYTES = 131_072
SEED_RANGES_PER_OUTPUT = 1_000
SEED_OUTPUTS_MAX = 100_000
LOOP_ITEMS_MAX = 10_000_000
FRAME_ROWS_MAX = 5_000
FRAME_ATTEMPTS_MAX = 100
FRAME_TASKS_TOLD_MAX = 100
FRAME_BYTES_MAX = 1024**4
SHARD_RETRIES_MAX = 100
# Only the place with the most rows is asked for.
PLACES_COUNTED_MAX = 16
PLACE_NAME_CHARS_MAX = 100
CURSOR_ROWS_PER_SLOT_DEFAULT = 100_000
CURSOR_CLAIM_ROWS_MAX = 50_000
CURSOR_CLAIM_IDLE_SECONDS_MAX = 60
CURSOR_OTHERS_SECONDS_MIN = 0.01
CURSOR_OTHERS_SECONDS_MAX = 0.5
CURSOR_RETRY_SECONDS = (0.5, 2.0, 5.0)
CURSOR_DOUBT_LOOK_SECONDS = 0.1
CURSOR_DOUBT_SECONDS_MAX = 1.0
CURSOR_DOUBT_ENDED_SECONDS_MAX = 30.0
FRAME_MS_AIM = 120
FRAME_PERSIST_SECONDS = 0.25
FRAME_TAIL_SHARE = 5
STAGE_OUTPUTS_GATHERED = 256
STAGE_OUTPUTS_UNGATHERED_MAX = 1_024
FRAME_LANES = 4
FRAME_LANE_ROWS = 8
COLLECTION_CHUNK_ROWS = 1_000
COLLECTION_CHUNK_BYTES = 262_144
COLLECTION_CARRIED_BYTES_MAX = 4 * 1024 * 1024

# --- what people are shown of an execution ----------------------------------------------------------------
VIEW_STEPS_MAX = 500
VIEW_LOOPS_MAX = 50
VIEW_COMMANDS_MAX = 50
VIEW_JOBS_PER_STEP_MAX = 20
# Over all steps: what a job costs may be some kilobytes.
VIEW_JOBS_WITH_DETAILS_MAX = 50
QUARANTINE_REASON_CHARS_MAX = 1_000
PROJECTED_STATES_MAX = 4_000

# --- user Python -----------------------------------------------------------------------------------------
PYTHON_CHILDREN_MAX = 32
PYTHON_CHILD_TASKS_MAX = 1_000
PYTHON_MEMORY_BYTES_MAX = 2 * 1024**3
PYTHON_TRACEBACK_CHARS_MAX = 8_192

# --- logs ------------------------------------------------------------------------------------------------
LOG_COMMAND_BYTES_MAX = 16 * 1024 * 1024
LOG_TAIL_BYTES_MAX = 65_536
LOG_LINE_CHARS_MAX = 16_384
# What a line counts besides its text: lines without text are bounded too.
LOG_LINE_BYTES = 16
LOG_FLUSHES_PER_SECOND_MAX = 5
LOG_WAITING_BYTES_MAX = 2 * 1024 * 1024
LOG_CHUNK_BYTES_MAX = 262_144
LOG_CHUNKS_AT_ONCE_MAX = 100
LOG_DURABLE_SECONDS_MAX = 5.0
LOG_LINES_AT_ONCE_MAX = 5_000
LOG_PAGE_BYTES_MAX = 4 * 1024 * 1024
# User code that prints faster than its worker reads waits so long in all, and then loses output.
LOG_BLOCKED_SECONDS_MAX = 0.5

# --- credentials and the catalog -------------------------------------------------------------------------
CREDENTIAL_NAME_CHARS_MAX = 200
CREDENTIAL_BYTES_MAX = 65_536
CREDENTIAL_VALUES_MAX = 256
CREDENTIAL_DESCRIPTION_CHARS_MAX = 2_000
CREDENTIAL_TAGS_MAX = 50
CREDENTIAL_TAG_CHARS_MAX = 100
CREDENTIAL_CACHE_MAX = 1_000
CREDENTIAL_CACHE_SECONDS = 5.0
KEYCHAIN_ENTRIES_MAX = 100
TOKEN_CACHE_MAX = 1_000
TOKEN_SECONDS_DEFAULT = 300.0
TOKEN_SECONDS_MAX = 86_400.0
TOKEN_MARGIN_SECONDS = 30.0
TOKEN_REQUEST_SECONDS_MAX = 30.0
TOKENS_PER_FIELD_MAX = 20
CATALOG_PATH_CHARS_MAX = 300
CATALOG_ROWS_MAX = 1_000
CATALOG_REGISTER_TRIES_MAX = 100
CATALOG_WARNINGS_MAX = 100
WARNING_CHARS_MAX = 500
DIFF_LINES_MAX = 20_000
PLAYBOOK_CHARS_AT_ONCE_MAX = 5_000
PLAYBOOK_TEMPLATES_AT_ONCE_MAX = 50

# --- scripts ---------------------------------------------------------------------------------------------
SCRIPT_BYTES_MAX = 1_000_000
SCRIPT_URI_CHARS_MAX = 1_000
SCRIPTS_MAX = 100
SCRIPTS_BYTES_MAX = 4_000_000
SCRIPTS_RECORDED_MAX = 20
SCRIPTS_CACHED_MAX = 64

# --- the API ---------------------------------------------------------------------------------------------
RESULT_CHUNK_BYTES = 1024 * 1024
RESULT_CHUNK_ROWS = 4_096
RESULT_PATH_CHARS_MAX = 1_000
RESULT_COLUMNS_MAX = 10_000
RESULT_TYPE_DEPTH_MAX = 20
RESULTS_LISTED_MAX = 1_000
REQUEST_BYTES_MAX = 8_000_000
REQUEST_DEPTH_MAX = 100
WAIT_SECONDS_MAX = 30.0
LIST_ROWS_MAX = 1_000
EVENTS_ROWS_MAX = 5_000
IDEMPOTENCY_KEY_CHARS_MAX = 200
# Requests with a body that are under way; more are refused with 503 until some have ended.
REQUESTS_STARTING_MAX = 256
REQUESTS_STARTING_BYTES_MAX = 64 * 1024 * 1024
REQUESTS_OTHER_MAX = 4_096
REQUESTS_OTHER_BYTES_MAX = 256 * 1024 * 1024
REQUESTS_WAIT_SECONDS_MAX = 2.0
REQUESTS_AGE_SECONDS_MAX = 5.0

# --- worker sessions -------------------------------------------------------------------------------------
FACTS_BYTES_MAX = 32_000_000
FACTS_AT_ONCE_MAX = 1_000
FACT_ANSWERS_KEPT_MAX = 4_096
SESSIONS_MAX = 1_000
SESSION_SLOTS_MAX = 1_024
SESSION_KINDS_MAX = 100
POOL_CHARS_MAX = 100

# --- the http tool ---------------------------------------------------------------------------------------
HTTP_BODY_BYTES_IN_MEMORY_MAX = 8 * 1024 * 1024
HTTP_VALUE_BYTES_MAX = 2 * 1024 * 1024
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
POSTGRES_BATCH_ROWS_MAX = 32_768
POSTGRES_BATCH_BYTES = 8 * 1024 * 1024
SQL_STATEMENTS_MAX = 10_000
SQL_CACHED_TEXTS_MAX = 512
SQL_CACHED_CHARS_MAX = 16_384

# --- the duckdb tool -------------------------------------------------------------------------------------
DUCKDB_CHILDREN_MAX = 4
DUCKDB_MEMORY_BYTES_MAX = 1024**3
DUCKDB_THREADS_MAX = 2
DUCKDB_SPILL_BYTES_MAX = 32 * 1024**3
DUCKDB_FILE_BYTES_MAX = 128 * 1024**3
DUCKDB_TABLES_MAX = 200
DUCKDB_REQUEST_BYTES_MAX = 256 * 1024 * 1024
DUCKDB_ANSWER_BYTES_MAX = 8 * 1024 * 1024
DUCKDB_BATCH_ROWS = 65_536
DUCKDB_NAME_CHARS_MAX = 400
DUCKDB_INTERRUPT_SECONDS = 2.0
DUCKDB_SPARE_SECONDS = 60.0
DUCKDB_RUN_SECONDS_MAX = 7 * 86_400.0
TOOL_FILES_LOOK_SECONDS = 30.0

# --- the spark tool --------------------------------------------------------------------------------------
SPARK_INPUTS_MAX = 100
SPARK_OUTPUTS_MAX = 100
SPARK_RULES_MAX = 200
SPARK_COLUMNS_MAX = 200
SPARK_CONF_MAX = 200
SPARK_FILES_MAX = 10_000
SPARK_NAME_CHARS_MAX = 40
SPARK_RULE_NAME_CHARS_MAX = 120
# A value that `main` returned, as JSON; more is for a DataFrame.
SPARK_VALUE_BYTES_MAX = 16 * 1024 * 1024
# How often rows are set aside because those that they refer to were.
SPARK_QUARANTINE_ROUNDS_MAX = 20

# --- Spark drivers ---------------------------------------------------------------------------------------
SPARK_MESSAGE_BYTES_MAX = 64 * 1024 * 1024
SPARK_DRIVERS_WARM_MAX = 2
SPARK_START_SECONDS_MAX = 180.0
# User code that does not end so long after a cancel is ended with its driver.
SPARK_CANCEL_SECONDS_MAX = 5.0
SPARK_STOP_SECONDS_MAX = 8.0
SPARK_PROGRESS_SECONDS = 0.5
SPARK_JOBS_TOLD_MAX = 100
SPARK_STAGES_LOOKED_AT_MAX = 20
SPARK_CONF_TOLD_MAX = 60
SPARK_CONF_VALUE_CHARS_MAX = 200
SPARK_LAST_WORDS_CHARS_MAX = 4_000
SPARK_OUTPUT_BYTES_MAX = 16 * 1024 * 1024
SPARK_RESTARTS_MAX = 3

# --- collecting payloads ---------------------------------------------------------------------------------
COLLECTOR_PAGE_PAYLOADS = 500
COLLECTOR_NAMES_REMEMBERED_MAX = 1_000
COLLECTOR_DELETES_AT_ONCE_MAX = 8
COLLECTOR_DAMAGES_TOLD_MAX = 20

# --- data sources of Spark for databases and web services -------------------------------------------------
SOURCE_PARTITIONS_MAX = 1_000
SOURCE_PARTITION_BYTES = 64 * 1024 * 1024
SOURCE_BATCH_BYTES = 2 * 1024 * 1024
SOURCE_BATCHES_AHEAD_MAX = 2
SOURCE_CONNECT_SECONDS_MAX = 10.0
SOURCE_STAGE_STALE_SECONDS = 86_400.0
SOURCE_WRITES_KEPT_DAYS = 30
SOURCE_COMMIT_TRIES_MAX = 3
SOURCE_PAGES_MAX = 1_000_000
SOURCE_PAGE_BYTES_MAX = 64 * 1024 * 1024
SOURCE_HTTP_PARTITIONS = 8
SOURCE_HTTP_RETRIES = 5
SOURCE_HTTP_WAIT_SECONDS_MAX = 120.0
SOURCE_HTTP_SECONDS_MAX = 300.0
CHECKPOINT_ROWS_MAX = 1_000
"""Checkpoints of a shard that have a row.  Each of them stays an event."""
