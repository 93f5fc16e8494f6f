"""Encryption of credentials.  The only place that knows the `cryptography` package."""
