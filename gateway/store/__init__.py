"""Postgres.

The one place where SQL lives. Statements are in `.sql` files, named and described; Python only runs them.
"""
