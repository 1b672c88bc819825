"""Node statistics that the scoring agents and the annotator share.

Arrays are by node number and one longer than the index; unknown values are NaN, never 0.
"""
