"""The hand-written envelope text is the canonical JSON of the envelope, for every event there can be."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from noetl.core.codec import canonical_json
from noetl.core.event import Event, envelope, seal
from noetl.core.kinds import KINDS
from noetl.core.reference import Result

words = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=12)
scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), words)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(words, inner, max_size=3)),
    max_leaves=8,
)
mappings = st.dictionaries(words, values, max_size=4)


@st.composite
def events(draw: st.DrawFn) -> Event:
    kind = draw(st.sampled_from(sorted(KINDS)))
    spec = KINDS[kind]
    maybe = st.one_of(st.none(), words)
    number = st.one_of(st.none(), st.integers(0, 2**63 - 1))
    command, stage, frame = (
        draw(words if spec.aggregate_type == aggregate else maybe) for aggregate in ("command", "stage", "frame")
    )
    return Event(
        execution_id=draw(st.integers(1, 2**63 - 1)),
        event_id=draw(st.integers(0, 2**63 - 1)),
        tenant_id=draw(words),
        organization_id=draw(words),
        event_type=kind,
        event_time=draw(words),
        producer=draw(words),
        transition_key=draw(words),
        correlation_id=draw(words),
        causation_id=draw(number),
        idempotency_key=draw(maybe),
        command_id=command,
        stage_id=stage,
        frame_id=frame,
        parent_event_id=draw(number),
        parent_execution_id=draw(number),
        payload_ref=draw(st.one_of(st.none(), mappings)),
        result=Result(status="ok", context=draw(mappings)).to_json() if spec.has_result else None,
        writes=draw(st.one_of(st.none(), st.lists(mappings, max_size=2))) if spec.has_writes else None,
        meta=draw(mappings),
    )


@given(events())
def test_the_sealed_text_is_the_canonical_json_of_the_envelope(event: Event) -> None:
    assert seal(event).text == canonical_json(envelope(event))
