"""Hints of a playbook about where results are stored (dsl §8.5).  They never change what a template evaluates to."""
