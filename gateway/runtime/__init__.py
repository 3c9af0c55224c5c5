"""Processes: one supervisor (store, operator listener, background sweeps) and its workers (the data port).

Everything is put together here; no other room imports this one.
"""
