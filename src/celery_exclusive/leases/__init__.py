"""Claims and leases: how they are held, renewed, and released."""
