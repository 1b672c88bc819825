"""The CPU manager's objects in the API server.

| file | content |
|---|---|
| `blocking_client.py` | a blocking client of the API server |
| `api_server_features.py` | the features of API server versions |
| `exclusive_core_advertisement.py` | a node's extended resources, label and taint |
| `report_custom_resources.py` | reports about nodes, and the definitions of their kinds |
| `node_validation.py`, `pod_dry_run.py` | checks of a node, with remedies; a dry run of a pod |
| `node_setup_objects.py`, `agent_daemonset.py` | the pods and DaemonSets that are created |
| `pod_progress.py`, `object_writer.py` | the progress of pods; idempotent creation and removal of objects |
| `node_setup.py`, `cluster_reconfiguration.py`, `cpu_manager_removal.py` | the commands for several nodes, and
removal |
"""
