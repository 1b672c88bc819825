"""Simulation of load-aware placements: pods with recorded usage on nodes with statistics, for `nodewise simulate load`.

workload.py    pods with their complete future, and the nodes of a run
simulation.py  what chooses among the nodes that fit (the agents' formulas, published ones, and bounds); time, the
               scheduler's filter and scores, and what is measured
"""
