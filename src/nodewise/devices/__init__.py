"""Devices of Dynamic Resource Allocation (DRA): what drivers offer, what claims hold, and what is free by node."""
