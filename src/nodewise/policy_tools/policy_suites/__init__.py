"""Suites of tests for policies: YAML files with policies, nodes, pods, series of metrics, and expectations.

| module | content |
|---|---|
| `series_notation.py` | parses the notation of Prometheus' unit tests, `80+1x10 _ stale` |
| `suite.py` | the model of a suite |
| `suite_field_parser.py` | parses values, and collects problems with file, line and field |
| `suite_parser.py` | parses a suite |
| `input_series_source.py` | answers requests for metrics from the series of a test, as Prometheus would |
| `suite_run.py` | runs a test, and compares the expectations with what happens |
| `rule_places.py` | the rules of a policy in its spec, in the order of the parsed policy |
| `rule_coverage.py` | the branches of rules that tests reach |
| `policy_mutants.py` | changed copies of a policy, which good tests detect |
"""
