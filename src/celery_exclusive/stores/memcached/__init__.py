"""memcached://: leases in one memcached server, without lines."""
