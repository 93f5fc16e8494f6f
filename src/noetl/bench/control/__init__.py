"""`control`: what a client sees of executions while the ledger takes thousands of events a second."""
