"""Parsers of objects and files. They accept any input, because users write a cluster's objects. No I/O."""
