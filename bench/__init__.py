"""Benchmarks of nodewise on this machine, with real processes and mutual TLS 1.3 on loopback. README.md describes them.

`__main__` runs the parts, one module each, or compares two commits; `cluster`, `hostile_tenant`, `label_writes`,
`native_tenants`, `policy_backtest` and `policy_mutants` are commands of their own. They are not part of the tests.
"""
