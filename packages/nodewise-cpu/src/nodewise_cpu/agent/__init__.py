"""The node agent: a socket server that allocates CPUs, garbage collection, and publishers for the API server."""
