-- Keeps the namespace for a broker, unless it belongs to another.
--
-- keys: base
-- arguments: broker life adopts
-- reply: owner
--
-- life       microseconds for which it is kept
-- adopts     1: also if it belongs to another broker, that has not kept it for as long as it wanted
-- owner      the broker that it belongs to now

local name, kept = KEYS[1] .. 'broker', KEYS[1] .. 'kept'
local broker, life, adopts = unpack(ARGV)
local owner = redis.call('GET', name)
if owner == broker then redis.call('DEL', KEYS[1] .. 'nothing') end -- it may be written when memory is full
if not owner or owner == broker or (adopts == '1' and not redis.call('GET', kept)) then
  owner = broker
  redis.call('SET', name, owner)
  redis.call('SET', kept, '', 'PX', string.format('%.0f', life / 1000))
end
return owner
