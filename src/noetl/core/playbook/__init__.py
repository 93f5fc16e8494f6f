"""The playbook language: documents, their model, the compiler and the static checks."""
