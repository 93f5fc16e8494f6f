"""Every port in memory, for tests and simulation: the rules of the real adapters, and able to misbehave."""
