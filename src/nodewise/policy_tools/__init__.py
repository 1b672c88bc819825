"""Programs for authors of policies: checks, tests, differences, and evaluation of the history of metrics."""
