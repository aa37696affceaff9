-- Does one operation on one key, or reaps, at one instant of the server's clock.
--
-- keys: base
-- arguments: now verb key id token ttl limit delivery offer tombstone_ttl candidate ending max_waiting former message
-- reply: answer number owners epoch wakes asides unreadable
--
-- now        virtual time for tests, or "" for the server's clock
-- verb       acquire, acquire_alone, release, remove, break, restore, or reap
-- ttl        of the lease; reap: the pause since the last one
-- limit      of the key; acquire_alone: its phase; reap: how many keys
-- delivery   "fresh", "redelivered", or "promoted <epoch>"; else ""
-- candidate  becomes the epoch if there is none
-- ending     acquire: "late" or "early" acknowledgement; release: "done", "open",
--            "if_no_copy" or "again"; remove: "done", "open" or "superseded"
-- max_waiting  if so many wait, no new message is parked; or ""
-- former     whose lease goes over: acquire: "<phase> <id>"; acquire_alone: its id; or ""
-- message    absent if none is to be stored; acquire_alone: the token of the former id
-- answer     granted, parked, held, full, stale or done; number is the fence, the position, how many wait,
--            or 1 for found; reap: 0 after another reap, 2 if more may be due; the quick ways return
--            these two alone
-- epoch      in a reply with wakes, and in every reply to reap
-- owners     id, age, remaining, fence, phase, ...; wakes: key, id, message, ...; asides: key, id, ...
-- unreadable reap: key, problem, ... of damaged keys, which it skips from now on

-- include document.lua

local verb, id, token, ttl, limit = ARGV[2], ARGV[4], ARGV[5], tonumber(ARGV[6]), tonumber(ARGV[7])
local delivery, offer_time, tombstone_ttl = ARGV[8], tonumber(ARGV[9]), tonumber(ARGV[10])
local candidate, ending, max_waiting, message = ARGV[11], ARGV[12], tonumber(ARGV[13]), ARGV[15]
local is_done, is_if_no_copy, phase, former = ending == 'done', ending == 'if_no_copy', ARGV[7], ARGV[14]
go_to(ARGV[3])

local function tick()
  local fence = math.max((tonumber(redis.call('GET', base .. 'fence')) or 0) + 1, now)
  redis.call('SET', base .. 'fence', whole(fence))
  return fence
end

local function tombstone()
  return base .. 't:' .. #key .. ':' .. key .. ':' .. id
end

local function bury(by)
  redis.call('SET', tombstone(), whole(now + tombstone_ttl) .. ' ' .. by)
  expire(tombstone(), now + tombstone_ttl)
end

-- The token of the delivery that finished, "" where none did, or ENTERED; nil if there is no tombstone.
local function finished()
  local ends, by = string.match(redis.call('GET', tombstone()) or '', '^(%d+) (.*)$')
  return ends and tonumber(ends) > now and by or nil
end

-- include quick.lua

-- include load.lua

-- include step.lua

-- include store.lua

local answer, number
local unreadable = {}
local SET_ASIDE = 600000000
if verb == 'reap' then
  local last = tonumber(redis.call('GET', base .. 'reaped'))
  if last and last <= now and now < last + ttl then return {'done', 0, owners, ensure_epoch(), wakes, asides, unreadable} end
  redis.call('SET', base .. 'reaped', whole(now), 'PX', 3600000)
  local names = redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', whole(now), 'LIMIT', 0, limit)
  local has_unreadable = redis.call('HLEN', base .. 'unreadable') > 0
  for _, name in ipairs(names) do
    local problem = try(function()
      go_to(name)
      load(1)
      advance()
      store()
    end)
    if problem then
      if not is_damage(problem) then return redis.error_reply(problem) end
      redis.call('ZADD', base .. 'due', whole(now + SET_ASIDE), name)
      redis.call('HSET', base .. 'unreadable', name, problem)
      append(unreadable, name, problem)
    elseif has_unreadable then
      redis.call('HDEL', base .. 'unreadable', name)
    end
  end
  answer, number = 'done', limit > 0 and #names == limit and 2 or 1
else
  load(verb == 'acquire' and limit or 1)
  local verbs = {acquire = acquire, acquire_alone = acquire_alone, release = release, remove = remove, ['break'] = break_it, restore = restore}
  answer, number = verbs[verb]()
  store()
end
return {answer, number, owners, (#wakes > 0 or verb == 'reap') and ensure_epoch() or '', wakes, asides, unreadable}
