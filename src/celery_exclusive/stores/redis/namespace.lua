-- Keeps the namespace for a broker, unless it belongs to another, and the record of a worker of this broker.
--
-- keys: base
-- arguments: now broker life adopts worker forgotten
-- reply: owner
--
-- life       microseconds for which it is kept
-- adopts     1: also if it belongs to another broker, that has not kept it for as long as it wanted
-- worker     "", or the record of the worker
-- forgotten  microseconds after which records that no worker keeps are deleted
-- owner      the broker that it belongs to now

-- include clock.lua

local name, kept, workers = base .. 'broker', base .. 'kept', base .. 'workers'
local _, broker, life, adopts, worker, forgotten = unpack(ARGV)
local owner = redis.call('GET', name)
if owner == broker then write_when_full() end
if not owner or owner == broker or (adopts == '1' and not redis.call('GET', kept)) then
  owner = broker
  redis.call('SET', name, owner)
  redis.call('SET', kept, '', 'PX', string.format('%.0f', life / 1000))
end

if owner == broker and worker ~= '' then
  local added = redis.pcall('ZADD', workers, whole(now), worker)
  if type(added) == 'table' then
    -- What another program has written under this name keeps no worker from its start.
    return string.find(added.err, 'WRONGTYPE', 1, true) and owner or added
  end
  local old = redis.call('ZRANGEBYSCORE', workers, '-inf', whole(now - forgotten), 'LIMIT', 0, 1000)
  if #old > 0 then redis.call('ZREM', workers, unpack(old)) end
  expire(workers, now + forgotten)
end
return owner
