"""Certificates and keys: reading, issuing, and reloading of changed files."""
