"""The gpu agent: books for each card, so that a pod goes only where its cards fit, and is told which ones it has.

| file | what lives there |
|---|---|
| `options.py` | settings |
| `profile.py` | whose cards they are: names of resources, and how a node says which cards it has |
| `amounts.py` | amounts of resources, exact or a problem |
| `labels.py` | the grammars of node labels |
| `marks.py` | what telemetry policies say of cards and tiles |
| `cards.py` | a node's cards |
| `demand.py` | what a pod wants of cards |
| `ledger.py` | the entries of a node's Lease |
| `books.py` | who holds what |
| `layout.py` | the cards of all nodes as arrays |
| `fit.py` | whether a pod fits, and on which cards |
| `choosing.py`, `working.py`, `links.py`, `rejections.py` | the parts of a fit |
| `score.py`, `fragmentation.py` | which cards first, and which nodes are liked |
| `tiles.py` | which tiles of a card, at bind |
| `reasons.py` | why a node is rejected, in words |

Takes over from GPU Aware Scheduling 0.5.6.
"""
