"""`limits` of a playbook, and the tasks that are under them."""
