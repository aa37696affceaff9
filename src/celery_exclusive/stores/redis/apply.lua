-- Does one operation on one key, or reaps, at one instant of the server's clock.
--
-- keys: base
-- arguments: now verb key id token ttl settings field value
-- reply: answer number owners epoch wakes asides unreadable time drawn
--
-- now        virtual time for tests, or "" for the server's clock
-- id token ttl  of the operation, "" without one
-- settings   how long a first offer lasts, and a tombstone, and what becomes the epoch if there is none
-- field      a name and its value, again for each field of the operation that differs from its default. The
--            names are the names in core/operations.py; in the table `op` two fields stand for each pair:
-- fields of acquire: limit redelivered promoted acks_late message max_waiting takes_over_id takes_over_phase at_once recovers order expires_in gives_up_in replaces joins queue cost rates part weight part_limit part_rates
-- fields of acquire_alone: inherits_id inherits_token phase repeated list payload
-- fields of give_up: releases
-- fields of enqueue: message limit expires_in gives_up_in replaces waits_for waits_at_most queue cost rates part weight part_limit part_rates list payload
-- fields of release: ending
-- fields of remove: ending
-- fields of restore: limit cost rates part weight part_limit part_rates
-- fields of set_limit: limit lasts by reason part
-- fields of hold: lasts part
-- fields of charge: units
-- fields of reap: limit every recovers_until
-- limit      reap: of how many keys; every: the least time since the last reap
-- rates      units and period of each; limit of set_limit: none resets it
-- list       where the payload, or else the message, is pushed with a new lease or a new offer; a lease or an
--            offer that is there went with it. acquire_alone: what was pushed is marked so
-- answer     granted, parked, held, full, over, stale or done; number is the fence, the position, how many
--            wait, the newer id, or 1 for found; reap: 0 after another reap, else 1 and how many keys it swept,
--            negative if more are due; the quick ways return a number alone: a fence, the place of a new
--            offer, or 1; the quick way into the line returns the position and the drawn place; refused,
--            alone: nothing could be pushed, and nothing was done
-- epoch      in a reply with wakes, and in every reply to reap
-- owners     id, age, remaining, fence, phase, token, ..., and the number of those that are not named; reap: the time until the next key is due, if that is soon; wakes: key, id, message, waiting, deaths, ...; asides: key, id, ...
-- unreadable reap: key, problem, ... of damaged keys, which it skips from now on
-- time       the instant of it all
-- drawn      the last fence, of a new lease or a new place in line; 0 if there was none

-- include clock.lua

local verb, op = ARGV[2], {
  id = ARGV[4], token = ARGV[5], ttl = tonumber(ARGV[6]), ending = 'done', phase = 'running',
  limit = ARGV[2] ~= 'set_limit' and '1' or nil,
}
for place = 8, #ARGV, 2 do op[ARGV[place]] = ARGV[place + 1] end

local SENT = 'sent'
local SENT_LIFE = 300000000
local BEGUN = 'begun'
local PUBLISHED_OFFER = 86400000000
local PUBLISHED = 5
local LONGEST_OFFER = 120
local SETTINGS = '^(%d+) (%d+) (%x+)$'

local function put_tombstone(name, by, life)
  local kept = is_virtual and 3600000 or math.ceil(life / 1000) + 1000
  redis.call('SET', name, whole(now + life) .. ' ' .. by, 'PX', whole(kept))
end

-- Pushes the message of a new lease or offer, before that is stored: a push that fails leaves neither.
local function push()
  local reply = op.list and redis.pcall('LPUSH', op.list, op.payload or op.message)
  if type(reply) == 'table' and reply.err then return {'refused'} end
end

-- A last fence that is too large, from another program, counts as none: no lease could be read again.
local function next_fence()
  local last = tonumber(redis.call('GET', base .. 'fence')) or 0
  local fence = math.max(last < NEVER and last + 1 or 0, now)
  redis.call('SET', base .. 'fence', whole(fence))
  return fence
end

-- include quick.lua

-- A function of its own has what is above at hand. For each function that is defined, Lua looks for what it uses
-- of the same function through all locals behind that.
return (function()

-- include room.lua

-- include document.lua

local first_offer, tombstone_ttl, candidate = string.match(ARGV[7], SETTINGS)
op.id = op.id ~= '' and op.id or nil
op.limit, op.cost, op.part, op.weight = tonumber(op.limit), tonumber(op.cost) or 1, op.part or '', tonumber(op.weight) or 1
op.part_limit = tonumber(op.part_limit) or parts.NO_LIMIT
local may_be_in_line = op.redelivered or op.promoted
go_to(ARGV[3])

if refused_by then
  holder_count = refused_by
  local by, list, unread = {}, read_leases({})
  if unread > 0 then list = read_next({}) end -- none has expired
  append(by, holder_count - append_leases(by, list))
  return {'held', 0, by, '', {}, {}, {}, now, 0}
end

local drawn = 0

local function next_number()
  drawn = next_fence()
  return drawn
end

local GIVEN_UP = 'given_up'

local function tombstone_name(key)
  return base .. 't:' .. #key .. ':' .. key .. ':' .. op.id
end

-- A tombstone, or the mark of a call; nil if there is neither.
local function mark()
  local text = redis.call('GET', tombstone_name(key))
  if not text then return nil end
  local ends, by = string.match(text, '^(%d+) (.*)$')
  return ends and tonumber(ends) > now and by or nil
end

-- The token of the delivery that has finished, "" without one, or BEGUN; nil if there is no tombstone.
local function tombstone()
  local by = mark()
  return by ~= SENT and by ~= GIVEN_UP and by or nil
end

-- include load.lua

-- include parts.lua

-- include key_state.lua

-- include step.lua

-- include store.lua

local unreadable = {}
local SKIP_UNREADABLE = 600000000
local WOKEN_AT_ONCE = 1000000
local SOON = 1000000

-- Ends expired leases and offers of the keys that are due.
local function reap()
  redis.call('SET', base .. 'reaped', whole(now), 'PX', 3600000)
  local names = redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', whole(now), 'LIMIT', 0, op.limit + 1)
  local has_unreadable = redis.call('HLEN', base .. 'unreadable') > 0
  for place, name in ipairs(names) do
    if woken > WOKEN_AT_ONCE or place > op.limit then return 'done', -place end
    local problem = try(function()
      go_to(name)
      load(1)
      recall()
      advance()
      store()
    end)
    if problem then
      if not is_damage(problem) then return 'failed', problem end
      redis.call('ZADD', base .. 'due', whole(now + SKIP_UNREADABLE), name)
      redis.call('HSET', base .. 'unreadable', name, problem)
      append(unreadable, name, problem)
    elseif has_unreadable then
      redis.call('HDEL', base .. 'unreadable', name)
    end
  end
  return 'done', 1 + #names
end

-- The time until the next key is due; nil: that is not soon.
local function due_in()
  local at = tonumber(redis.call('ZRANGE', base .. 'due', 0, 0, 'WITHSCORES')[2])
  return at and at < now + SOON and math.max(at - now, 0) or nil
end

local answer, number, by
if verb == 'reap' then
  answer, number = reap()
  if answer == 'failed' then return redis.error_reply(number) end
  by = {due_in()}
else
  load(op.limit or 1)
  if holders[op.id] or entries[op.id] then write_when_full() end -- else a full line would never be done
  answer, number, by = verbs[verb]()
  local refused = (new_tombstone == SENT or is_offered_at_once) and push()
  if refused then return refused end
  store()
end
local epoch = (#wakes > 0 or verb == 'reap') and ensure_epoch() or ''
return {answer, number, by or {}, epoch, wakes, asides, unreadable, now, drawn}

end)()
