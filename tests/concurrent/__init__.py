"""Concurrent histories of real stores, and the search for an order in which `step` gives the same answers."""
