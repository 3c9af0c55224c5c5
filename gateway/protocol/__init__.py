"""The rules of 2PHP, pure: nothing here awaits, asks a clock, or knows aiohttp or asyncpg.

Flows ask these modules what to do and then do it; a reader can check each file against the draft on its own.
"""
