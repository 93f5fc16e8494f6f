"""Executions that begin with the state of another one: what of it holds, how it travels, and how it is folded."""
