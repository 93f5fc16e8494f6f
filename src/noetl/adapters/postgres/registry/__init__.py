"""What users register, in Postgres: credentials and the catalog."""
