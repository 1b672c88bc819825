"""Client of the Kubernetes API server: connections, list and watch into a store, writes, leader election and events.

The package is independent of scheduling, metrics and policies. Only `connection_settings`, `connection_renewal`,
`http_client`, `credentials` and `exec_plugin` use httpx2; all other modules use an `api.Api`.
"""
