"""The `keychain` of a playbook (dsl §10.3): its entries read, compiled, and kept away from where they would be
recorded."""
