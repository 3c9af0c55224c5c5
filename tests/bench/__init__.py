"""`make bench`: the gateway's speed as ratios to peers that run beside it, in the same run on the same machine.

Machines differ and are shared, so an absolute figure says little; a ratio taken in one run says something. Everything
is on loopback and bounded in time and count. Goals are reported, not asserted: only a broken run fails.
"""
