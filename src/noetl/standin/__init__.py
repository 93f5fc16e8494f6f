"""The HTTP stand-in: one small server that is the external world of examples, tests and benchmarks.

Deterministic, resettable, and only on loopback.  Nothing of the engine imports it.
"""
