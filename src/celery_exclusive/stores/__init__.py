"""Stores: one module or folder per kind, chosen by the scheme of the URL."""
