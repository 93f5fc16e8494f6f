"""Guards of payloads: they stay, they are there before anybody names them, and they are what was put."""

from __future__ import annotations

from tests.fault.guards.guard import Guard

_FILES = "adapters/objects/filesystem.py"
_SYNCED = "tests/contract/test_syncing.py"
_STORES = "tests/contract/test_payloads.py"

GUARDS = (
    Guard(
        name="sync of a payload's file",
        keeps="after a power failure a payload that has its name has its bytes",
        file=_FILES,
        text="os.fsync(self._file.fileno())",
        instead="pass",
        tests=(f"{_STORES}::test_a_streamed_file_is_synced_before_it_has_its_name",),
        is_quick=True,
    ),
    Guard(
        name="sync of a payload's folder",
        keeps="after a power failure a payload that was answered for still has its name",
        file=_FILES,
        text="for folder in (path.parent, *path.parents[1:4]):",
        instead="for folder in ():",
        tests=(f"{_STORES}::test_a_streamed_file_is_synced_before_it_has_its_name",),
        is_quick=True,
    ),
    Guard(
        name="sync of an adopted file",
        keeps="a file that becomes a payload without a copy is on the disk before it has its name",
        file="adapters/objects/adopting.py",
        text="os.fsync(self._descriptor)",
        instead="pass",
        tests=(f"{_SYNCED}::test_an_adopted_file_is_synced_before_it_has_its_name",),
    ),
    Guard(
        name="sync of a name that was there",
        keeps="what another process renamed and did not sync is synced before it is reused",
        file=_FILES,
        text="        self._sync_folders(path)\n        return True",
        instead="        return True",
        tests=(f"{_SYNCED}::test_what_is_there_already_is_synced_before_it_is_reused",),
    ),
    Guard(
        name="payload before its event",
        keeps="whoever reads an event finds what it names",
        file="engine/payloads/keeping.py",
        text="if store != STORE_SMALL:\n            await self._large.put(payload)",
        instead="if store != STORE_SMALL:\n            asyncio.ensure_future(self._large.put(payload))",
        tests=("tests/simulation/test_payload_order.py::test_no_event_names_a_payload_that_is_not_there",),
        is_quick=True,
    ),
    Guard(
        name="payload with its event",
        keeps="a small payload is in the same commit as the event that names it",
        file="adapters/postgres/advance.py",
        text='    ("payloads", _payload_values, _one_payload),\n',
        instead="",
        tests=("tests/contract/test_ledger_advance.py::test_events_and_all_that_is_derived_arrive_with_one_commit",),
        has_database=True,
    ),
    Guard(
        name="digest of a small payload",
        keeps="damaged bytes of the database are never handed out",
        file="adapters/postgres/payloads.py",
        text="if sha256_hex(content) != sha256:",
        instead="if False:",
        tests=(f"{_STORES}::test_damaged_bytes_are_never_returned",),
        has_database=True,
    ),
    Guard(
        name="digest of a large payload",
        keeps="damaged bytes of a store are never handed out",
        file="adapters/objects/content.py",
        text="if sha256_hex(content) != place.sha256:",
        instead="if False:",
        tests=(f"{_STORES}::test_damaged_bytes_are_never_returned[files]",),
        is_quick=True,
    ),
    Guard(
        name="digest of a stream",
        keeps="a stream of damaged bytes does not end well",
        file="adapters/objects/content.py",
        text="if digest.hexdigest() != reference.sha256:",
        instead="if False:",
        tests=("tests/contract/test_stores.py::test_a_hundred_flipped_bits_are_all_found[file]",),
    ),
    Guard(
        name="digest of a part",
        keeps="damaged bytes are not handed out because only a part was read",
        file="engine/payloads/reading.py",
        text="if sha256_hex(content) != part.sha256:",
        instead="if False:",
        tests=("tests/unit/test_part_digests.py::test_a_part_with_another_value_is_never_returned",),
    ),
)
