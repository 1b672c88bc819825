"""The commands of nodewise-scorers."""
