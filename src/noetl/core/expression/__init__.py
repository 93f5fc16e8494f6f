"""The sandboxed expression engine: the only place of the product that touches Jinja2.

`views` what templates see · `values` plain data · `evaluation` one run and its limits · `operators`,
`text_filters`, `data_filters` what templates can do · `sandbox` the environment and its code · `analysis`,
`writing` trees and their source · `template` compiling and rendering · `atoms` splitting for routing.
"""

from noetl.core.expression.analysis import parse_expression
from noetl.core.expression.atoms import Atom, AtomPlan, Outcome, atoms_of, data_path, evaluate_atom
from noetl.core.expression.parcel import pack, unpack
from noetl.core.expression.template import (
    CompiledValue,
    Template,
    broken_template,
    compile_condition,
    compile_template,
    compile_value,
    free_names,
    literal_template,
    parse_count,
    render,
    render_value,
)
from noetl.core.expression.values import is_true, normalise, plain, to_text
from noetl.core.expression.views import (
    SEEN_TYPES,
    VIEW_TYPES,
    AtomError,
    EventName,
    OutputView,
    ResultView,
    Rows,
    Scalar,
    Scope,
    Undefined,
    view_of,
)

__all__ = [
    "SEEN_TYPES",
    "VIEW_TYPES",
    "Atom",
    "AtomError",
    "AtomPlan",
    "CompiledValue",
    "EventName",
    "Outcome",
    "OutputView",
    "ResultView",
    "Rows",
    "Scalar",
    "Scope",
    "Template",
    "Undefined",
    "atoms_of",
    "broken_template",
    "compile_condition",
    "compile_template",
    "compile_value",
    "data_path",
    "evaluate_atom",
    "free_names",
    "is_true",
    "literal_template",
    "normalise",
    "pack",
    "parse_count",
    "parse_expression",
    "plain",
    "render",
    "render_value",
    "to_text",
    "unpack",
    "view_of",
]
