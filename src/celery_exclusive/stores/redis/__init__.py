"""redis://, valkey://: leases on a Redis or Valkey server, one Lua call per verb."""
