"""The protocol as stories, one file each; only these know the order of things.

They import the rules and the ports, never a room that implements one.
"""
