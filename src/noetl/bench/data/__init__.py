"""The data plane: what passing rows, results and bodies from one step to the next costs."""
