"""Parsers of what facts are read from. They accept any input: a cluster's objects are written by others. No I/O."""
