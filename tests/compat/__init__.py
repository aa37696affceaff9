"""The recipes as people have them, with their defects, beside ours."""

LOCK_EXPIRE = 9
"""Seconds: what is ten minutes in the recipes is over while a body is open. A slow machine renews it."""
