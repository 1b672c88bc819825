"""Utilities for all layers: errors, settings' options, clocks, quantities, files and YAML of untrusted origin."""
