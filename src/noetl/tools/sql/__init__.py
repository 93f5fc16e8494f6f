"""What the tools that run SQL have in common: texts cut into statements, bound values, the shape of a result."""
