"""The fault suite: real processes, a workload with an oracle outside the system, faults by a seed, and a checker.

python -m tests.fault.suite            all of it; writes docs/reliability.md and the history
python -m tests.fault.suite F1 F4      some of it, and writes nothing
"""
