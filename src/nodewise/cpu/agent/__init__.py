"""The node agent: a socket for who wants CPUs, sweeps, and what it tells the API server."""
