"""The rules, as functions from source text to findings, so that each can be shown to fail."""
