"""The CPU manager's objects in the API server, its checks of nodes, and the commands for several nodes."""
