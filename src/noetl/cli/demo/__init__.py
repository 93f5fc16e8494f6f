"""The demo: a playbook that fetches from an API, loads into Postgres and summarises."""
