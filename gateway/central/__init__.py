"""The central ledger (tier 3): many services' entries in one place, to be read (LED-2 .. LED-5, COR-1 .. COR-4).

The same program in another role. Nothing that a service does for its callers ever waits for it.
"""
