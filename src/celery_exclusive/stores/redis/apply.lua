-- Does one operation on one key, or reaps: all of it at one instant of the server's clock.
--
-- keys: base
-- arguments: now verb key id token ttl limit delivery offer tombstone_ttl candidate message
-- reply: answer number rivals epoch wakes asides
--
-- now        virtual time for tests, or "" for the server's clock
-- verb       acquire, release, remove, or reap
-- ttl        of the lease; reap: the pause since the last one
-- limit      of the key; release: 1 if done; reap: how many keys
-- delivery   "fresh", "redelivered", or "promoted <epoch>"
-- candidate  becomes the epoch if there is none
-- message    absent if none shall be kept
-- answer     granted, parked, held, stale or done; number is the fence, the position, or 1 for found;
--            the quick ways answer these two alone
-- rivals     id, age, remaining, ...; wakes: key, id, message, ...; asides: key, id, ...

-- include document.lua

local verb, id, token, ttl, limit = ARGV[2], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local delivery, offer_time, tombstone_ttl = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local candidate, message = ARGV[11], ARGV[12]
local is_done = limit == 1
go_to(ARGV[3])

local function tick()
  local fence = math.max((tonumber(redis.call('GET', base .. 'fence')) or 0) + 1, now)
  redis.call('SET', base .. 'fence', whole(fence))
  return fence
end

local function tombstone()
  return base .. 't:' .. #key .. ':' .. key .. ':' .. id
end

local function bury()
  redis.call('SET', tombstone(), whole(now + tombstone_ttl))
  expire(tombstone(), now + tombstone_ttl)
end

-- include quick.lua

-- include load.lua

-- include step.lua

-- include store.lua

local answer, number
if verb == 'reap' then
  local last = tonumber(redis.call('GET', base .. 'reaped'))
  if last and last <= now and now < last + ttl then return {'done', 0} end
  redis.call('SET', base .. 'reaped', whole(now), 'PX', 3600000)
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', whole(now), 'LIMIT', 0, limit)) do
    go_to(name)
    load(1)
    settle()
    store()
  end
  answer, number = 'done', 1
else
  load(verb == 'acquire' and limit or 1)
  local verbs = {acquire = acquire, release = release, remove = remove}
  answer, number = verbs[verb]()
  store()
end
return {answer, number, rivals, epoch, wakes, asides}
