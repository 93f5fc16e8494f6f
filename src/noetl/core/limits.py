"""Every bound of the system, by name.  A queue, batch, retry, cache, payload, template or recursion without
an entry here is a defect."""

from __future__ import annotations

# --- documents -------------------------------------------------------------------------------------------
DOCUMENT_BYTES_MAX = 1_000_000
DOCUMENT_DEPTH_MAX = 32
DOCUMENT_ALIASES_MAX = 100
DOCUMENT_NODES_MAX = 200_000

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

# --- user Python -----------------------------------------------------------------------------------------
PYTHON_CHILDREN_MAX = 32
PYTHON_CHILD_TASKS_MAX = 1_000
PYTHON_OUTPUT_CHARS_MAX = 32_768
PYTHON_MEMORY_BYTES_MAX = 2 * 1024**3
PYTHON_TRACEBACK_CHARS_MAX = 8_192
