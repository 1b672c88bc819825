"""The admission webhook that gives pods what `isolate` needs.

| file | what lives there |
|---|---|
| `merging.py`, `patch.py` | a partial object merged into a whole one, and what is new in that as a JSON patch |
| `pod_mutation.py` | which pods ask for cores, and what they get besides |
| `admission_review.py` | an AdmissionReview answered: bytes in, bytes out |
| `webhook_config.py` | server.yaml and mutations.yaml, read again when they change |
| `serving.py` | the port |
| `certificate.py`, `objects.py` | what it takes to run it in a cluster |
| `admission.py` | the API server's side of mutual TLS |
"""
