"""The doctor over an engine."""
