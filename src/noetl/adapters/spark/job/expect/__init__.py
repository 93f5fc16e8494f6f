"""Expectations about outputs: rules, how many rows break them, and what becomes of those rows.

Rules are held against the files that were written, so an output is computed once and what is published is what was
looked at."""
