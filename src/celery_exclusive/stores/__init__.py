"""Where leases live: one module or folder per kind of store, found by the scheme of its URL."""
