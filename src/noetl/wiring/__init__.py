"""Putting the parts together: the only package that sees both the engine and the adapters.

`tools`, `credentials`, `stores` and `databases` are what a process has; `engine` and `worker` use them."""
