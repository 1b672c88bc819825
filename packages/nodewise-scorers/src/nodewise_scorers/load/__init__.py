"""Load-aware placement: computation on arrays of nodes, without I/O and without a clock.

| module | content |
|---|---|
| `published_formulas.py` | the scores of Trimaran, Koordinator and Volcano |
| `usage_profiles.py` | the usage of pods of the same application, learned from statistics |
| `projected_load.py` | the load of nodes once they are full, and the node for which a pod increases overload least |
"""
