"""The outputs of a loop's frames, also of those that were written down on the way."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from noetl.engine.payloads import Payloads


async def with_gathered(
    payloads: Payloads, stage: Mapping[str, Any], *, tenant_id: str, organization_id: str
) -> dict[str, Any]:
    """What a `seal` command says of its stage, with the outputs of all frames in item order: whoever looks for rows
    that never ran must see all that did."""
    outputs = list(stage["outputs"])
    for reference in stage.get("gathered", ()):
        document = await payloads.read_json(reference, tenant_id=tenant_id, organization_id=organization_id)
        outputs += document["frames"]
    outputs.sort(key=lambda output: int(output["first"]))
    return {**stage, "outputs": outputs}
