"""What is wrong with a cluster's set-up, and the remedy: facts in, findings out. Nothing here asks anybody anything.

`facts` is what was read of a cluster and what could not be read, `findings` the catalogue of what can be wrong,
`examination` the way from the one to the other. What objects hold is taken from them by `objects`, which knows no
wrong shape, so whatever stands in a cluster is looked at and nothing stops the rest.
"""
