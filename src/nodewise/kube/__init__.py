"""The API server: connect, list and watch into a store, write, elect a leader, record events.

Nothing here knows of scheduling, metrics or policies. Only `connection_settings`, `http_client`,
`credentials` and `exec_plugin` touch httpx2; everybody else holds an `api.Api`.
"""
