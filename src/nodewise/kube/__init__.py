"""Client of the Kubernetes API server: connections, list and watch into a store, writes, leader election and events.

The package is independent of scheduling, metrics and policies. Only `api_client_creation`, `http_transport`,
`http_client` and `credentials` use httpx2; all other modules use an `api_server_interface.Api`.
"""
