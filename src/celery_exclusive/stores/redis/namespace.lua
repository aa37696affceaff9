-- Keeps the namespace for a broker, unless it is kept for another.
--
-- keys: base
-- arguments: broker life
-- reply: owner
--
-- life       microseconds for which it is kept
-- owner      the broker for which it is kept now

local name = KEYS[1] .. 'broker'
local broker, life = unpack(ARGV)
local owner = redis.call('GET', name)
if owner == broker then redis.call('DEL', KEYS[1] .. 'nothing') end -- it may be written when memory is full
if not owner or owner == broker then
  owner = broker
  redis.call('SET', name, owner, 'PX', string.format('%.0f', life / 1000))
end
return owner
