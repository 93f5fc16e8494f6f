"""Where results were made, and from there where something would best be run."""
