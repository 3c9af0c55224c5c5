"""Metrics and logs (OPS-1). Imports nothing of ours; everything else may import it, except `protocol`.

Nothing is imported here: only the process that serves `/metrics` should load the Prometheus library.
"""
