"""The faults of the list, each a function of a seed and a size."""
