"""The CPU manager's objects in the API server.

| file | content |
|---|---|
| `blocking_client.py` | a blocking client of the API server |
| `api_versions.py` | the features of API server versions |
| `node_advertisement.py` | a node's extended resources, label and taint |
| `reports.py` | reports about nodes, and the definitions of their kinds |
| `validation.py`, `dry_run.py` | checks of a node, with remedies; a dry run of a pod |
| `setup_objects.py`, `agent_daemonset.py` | the pods and DaemonSets that are created |
| `pod_progress.py`, `object_writer.py` | the progress of pods; idempotent creation and removal of objects |
| `setup.py`, `cluster_reconfiguration.py`, `removal.py` | the commands for several nodes, and removal |
"""
