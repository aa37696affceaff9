-- Renews leases of several keys, and shortens none. An expired lease is renewed if the store still has it.
--
-- keys: base
-- arguments: now key id token ttl
-- reply: found
--
-- now        virtual time for tests, or "" for the server's clock
-- key ...    again for each lease; so is found, 1 or 0
--
-- `due` is left as it is: the reaper comes early once, and finds nothing to do.

-- include clock.lua

-- include room.lua

-- include document.lua

local replies = {}

local function renew(key, id, token, ttl)
  go_to(key)
  local found = redis.call('HMGET', leases, '', id)
  local lease = found[2] and read_lease(id, found[2])
  local is_alive = lease and lease.token == token
  if is_alive then
    lease.expiry = math.max(lease.expiry, now + ttl) -- written even if it is the same: WAIT counts writes only
    read_meta(found[1])
    local is_longest = lease.expiry > maxexp
    maxexp = math.max(maxexp, lease.expiry)
    redis.call('HSET', leases, '', meta(), id, record(lease))
    if holder_count > NAMED then index_expiry(lease.expiry, id) end
    if is_longest and not has_entries() then expire(leases, ends_at()) end
    if lease.part ~= '' and has_entries() then redis.call('PERSIST', base .. 'p:' .. key) end
    if lease.part ~= '' and not has_entries() then expire(base .. 'p:' .. key, ends_at()) end
  end
  replies[#replies + 1] = is_alive and 1 or 0
end

write_when_full()
for first = 2, #ARGV, 4 do
  local answered = #replies
  local problem = try(function()
    local key, id, token, ttl = unpack(ARGV, first, first + 3)
    renew(key, id, token, tonumber(ttl))
  end)
  if problem and not is_damage(problem) then return redis.error_reply(problem) end
  if #replies == answered then replies[answered + 1] = 0 end -- the other leases must not be lost with it
end
return replies
