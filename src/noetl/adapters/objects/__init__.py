"""Payload stores on files and object stores."""
