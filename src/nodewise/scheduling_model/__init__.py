"""A simulated kube-scheduler that calls real extenders over HTTP, an API server in memory, and replays of recordings.

    simulated_cluster          nodes and pods, the scheduler, and the message for an unschedulable pod
    extender_client            an extender: configuration, messages and client
    in_memory_api              an API server in memory
    in_memory_api_http_server  its HTTP server
    recording_replay           a recording answered again, with a comparison of the responses

The simulated scheduler imports no extender. Only `recording_replay` runs the extender's request handler.
"""
