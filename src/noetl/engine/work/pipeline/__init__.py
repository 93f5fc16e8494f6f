"""The pipeline of one step: its tasks one after the other, their fields, outcomes and policies."""
