"""The data plane: payloads, tables and what is known about them."""
