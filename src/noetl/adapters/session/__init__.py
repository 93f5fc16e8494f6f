"""Sessions between the control plane and workers."""
