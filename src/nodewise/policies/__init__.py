"""The policies of the agent telemetry, which avoids and prefers nodes by live metrics as policies configure it.

`nodewise.agents.telemetry` declares the agent. Parsing a policy needs no arrays: commands that only read policies do
not import numpy.
"""
