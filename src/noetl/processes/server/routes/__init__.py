"""The routes, one module per noun; each gives a router over the services it needs."""
