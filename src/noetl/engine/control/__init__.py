"""The control plane: inputs in, decisions committed, commands out."""
