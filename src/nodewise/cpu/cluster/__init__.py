"""What of the CPU manager is in the API server: nodes that advertise cores, reports, set-up and removal."""
