"""Encryption of credentials, and of payloads at rest.  The only place that knows the `cryptography` package."""
