"""Deliveries: callbacks (ACM-2 .. ACM-4) and compensation hooks (LED-6), signed, guarded, and sent at least once.

`courier` makes a callback's first attempt before its request is processed; the dispatcher (in `background`) makes all
others. Both go through `carrier`, one attempt from address to record. Must not import the store or the vault: both
are handed in.
"""
