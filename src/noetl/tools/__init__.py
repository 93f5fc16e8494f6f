"""Tools: one module or package per kind, behind the `Tool` port."""
