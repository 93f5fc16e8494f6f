"""Binding a playbook to what it counts on outside of its own text, when it is registered or started."""
