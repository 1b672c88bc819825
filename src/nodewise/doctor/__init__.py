"""Finds problems of an installation in a live cluster: `nodewise doctor`. Nothing here changes the cluster.

| module | what it contains |
|---|---|
| `facts.py` | the facts that checks need, as typed values, and facts that could not be read |
| `findings.py` | findings and the report, the catalogue of all findings, and the declaration of checks |
| `checks/` | the checks: facts in, findings out; no I/O |
| `collectors/` | one collector for each fact, which reads the API server, files of this host, or a server |
| `parsing/` | parsers of objects and files; no I/O |
| `check_runner.py` | the selection of checks and facts, and the report |

A check gets only the facts that it declares, and only facts that some check needs are collected. A fact that could not
be read makes the checks that need it `not-looked-at`; it never counts as sound.
"""
