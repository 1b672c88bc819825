"""The admission webhook that gives pods what `isolate` needs.

| file | content |
|---|---|
| `json_merge_and_patch.py` | merging of partial objects, and JSON patches |
| `pod_mutation.py` | the selection of pods, and their mutation |
| `admission_review.py` | the response to an AdmissionReview, from bytes to bytes |
| `webhook_config_files.py` | server.yaml and mutations.yaml, which are read again when they change |
| `https_server.py` | the HTTPS server |
| `manifests.py` | the webhook's objects in a cluster |
| `certificates.py` | its certificate, and the API server's side of mutual TLS |
"""
