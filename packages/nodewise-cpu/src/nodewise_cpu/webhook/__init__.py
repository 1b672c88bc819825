"""The admission webhook that gives pods what `isolate` needs."""
