-- Keeps the namespace for a broker, unless it is kept for another.
--
-- keys: base
-- arguments: broker life
-- reply: owner
--
-- life       microseconds for which it is kept
-- owner      the broker for which it is kept now

local name = KEYS[1] .. 'broker'
local owner = redis.call('GET', name)
if not owner or owner == ARGV[1] then
  owner = ARGV[1]
  redis.call('SET', name, owner, 'PX', string.format('%.0f', ARGV[2] / 1000))
end
return owner
