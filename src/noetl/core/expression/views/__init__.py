"""What a template sees: plain JSON data, or one of the frozen views of this package.

`absence` what is undefined · `base` looking something up, and what is not here yet · `results` the result of one tool ·
`pipelines`, `loops` results made of others · `envelope` the outcome `output`."""

from noetl.core.expression.views.absence import AtomError, EventName, Undefined
from noetl.core.expression.views.base import (
    MISSING,
    SCALAR_TYPES,
    SEEN_TYPES,
    Absent,
    Group,
    Lazy,
    Made,
    MadeDict,
    Path,
    Scope,
    View,
    bare,
    bytes_min,
    data_of,
    find,
    is_seen,
    loaded,
    lookup,
    operand,
    part_of,
    place_of,
    sample,
    unaliased,
)
from noetl.core.expression.views.envelope import OutputView
from noetl.core.expression.views.loops import LoopView, Record, ResultRows, loop_summary, row_result, row_view
from noetl.core.expression.views.pipelines import (
    FailedView,
    PipelineView,
    failed_view,
    found,
    kept_pipeline,
    pipeline_result,
)
from noetl.core.expression.views.results import ResultView, Rows, Scalar, is_mapping, view_of

VIEW_TYPES: frozenset[type] = frozenset(
    {ResultView, Rows, Scalar, OutputView, Scope, PipelineView, FailedView, ResultRows, LoopView}
)
"""The types of views that are made for templates; stored results have lazy ones of their own."""

__all__ = [
    "MISSING",
    "SCALAR_TYPES",
    "SEEN_TYPES",
    "VIEW_TYPES",
    "Absent",
    "AtomError",
    "EventName",
    "FailedView",
    "Group",
    "Lazy",
    "LoopView",
    "Made",
    "MadeDict",
    "OutputView",
    "Path",
    "PipelineView",
    "Record",
    "ResultRows",
    "ResultView",
    "Rows",
    "Scalar",
    "Scope",
    "Undefined",
    "View",
    "bare",
    "bytes_min",
    "data_of",
    "failed_view",
    "find",
    "found",
    "is_mapping",
    "is_seen",
    "kept_pipeline",
    "loaded",
    "lookup",
    "loop_summary",
    "operand",
    "part_of",
    "pipeline_result",
    "place_of",
    "row_result",
    "row_view",
    "sample",
    "unaliased",
    "view_of",
]
