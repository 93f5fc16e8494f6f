"""Verbs about payloads: what is stored, and what may go."""
