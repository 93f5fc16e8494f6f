"""Folded states as bytes that can be checked: an accelerator, never the authority."""
