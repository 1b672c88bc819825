"""The command `isolate`, which runs in containers of workloads."""
