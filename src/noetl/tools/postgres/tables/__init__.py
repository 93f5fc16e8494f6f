"""Rows of a statement as an Arrow table with exact types.  Loaded when the first rows are kept, not before."""
