"""Checks by subject. They compute findings from facts and do no I/O."""
