"""What the collector of unreachable payloads reads and writes in Postgres."""
