"""Databases that speak SQL: one schema and one class for all of them, a small file for each."""
