-- Does one operation on one key, or reaps, at one instant of the server's clock.
--
-- keys: base
-- arguments: now verb key first_offer tombstone_ttl candidate field value
-- reply: answer number owners epoch wakes asides unreadable time
--
-- now        virtual time for tests, or "" for the server's clock
-- first_offer  how long it lasts
-- candidate  becomes the epoch if there is none
-- field      a name and its value, again for each: what the operation has besides None and False. The fields
--            are those of core/operations.py, in a table `op`, where two fields stand for each pair:
-- fields of acquire: id token ttl limit redelivered promoted acks_late message max_waiting takes_over_id takes_over_phase at_once recovers order
-- fields of acquire_alone: id token ttl inherits_id inherits_token phase list payload
-- fields of enqueue: id message limit
-- fields of release: id token ending
-- fields of requeue: id token ttl
-- fields of remove: id ending
-- fields of give_up: id
-- fields of force_release: id
-- fields of restore: id token ttl limit
-- fields of reap: limit every recovers_until
-- limit      reap: of how many keys; every: the least time since the last reap
-- list       acquire_alone: where the payload is pushed with a new lease; a lease that is there went with it
-- answer     granted, parked, held, full, stale or done; number is the fence, the position, how many wait,
--            or 1 for found; reap: 0 after another reap, 2 if more may be due; the quick ways return
--            these two alone; refused, alone: nothing could be pushed, and nothing was done
-- epoch      in a reply with wakes, and in every reply to reap
-- owners     id, age, remaining, fence, phase, ...; wakes: key, id, message, ...; asides: key, id, ...
-- unreadable reap: key, problem, ... of damaged keys, which it skips from now on
-- time       the instant of it all

-- include document.lua

local _, verb, name, first_offer, tombstone_ttl, candidate = unpack(ARGV, 1, 6)
first_offer, tombstone_ttl = tonumber(first_offer), tonumber(tombstone_ttl)
local op = {}
for place = 7, #ARGV, 2 do op[ARGV[place]] = ARGV[place + 1] end
op.ttl, op.limit = tonumber(op.ttl), tonumber(op.limit)
op.every, op.max_waiting = tonumber(op.every), tonumber(op.max_waiting)
local may_be_in_line = op.redelivered or op.promoted
go_to(name)

local function next_number()
  local fence = math.max((tonumber(redis.call('GET', base .. 'fence')) or 0) + 1, now)
  redis.call('SET', base .. 'fence', whole(fence))
  return fence
end

local function tombstone_name()
  return base .. 't:' .. #key .. ':' .. key .. ':' .. op.id
end

local function put_tombstone(by)
  redis.call('SET', tombstone_name(), whole(now + tombstone_ttl) .. ' ' .. by)
  expire(tombstone_name(), now + tombstone_ttl)
end

-- The token of the delivery that has finished, "" without one, or BEGUN; nil if there is no tombstone.
local function tombstone()
  local ends, by = string.match(redis.call('GET', tombstone_name()) or '', '^(%d+) (.*)$')
  return ends and tonumber(ends) > now and by or nil
end

-- Pushes the message of a new lease, before that is stored: a push that fails leaves no lease.
local function push()
  local reply = op.list and redis.pcall('LPUSH', op.list, op.payload)
  if type(reply) == 'table' and reply.err then return {'refused'} end
end

-- include quick.lua

-- include load.lua

-- include key_state.lua

-- include step.lua

-- include store.lua

local unreadable = {}
local SKIP_UNREADABLE = 600000000

-- Ends expired leases and offers of the keys that are due.
local function reap()
  local last = tonumber(redis.call('GET', base .. 'reaped'))
  if last and last <= now and now < last + op.every then return 'done', 0 end
  redis.call('SET', base .. 'reaped', whole(now), 'PX', 3600000)
  local names = redis.call('ZRANGEBYSCORE', base .. 'due', '-inf', whole(now), 'LIMIT', 0, op.limit)
  local has_unreadable = redis.call('HLEN', base .. 'unreadable') > 0
  for _, name in ipairs(names) do
    local problem = try(function()
      go_to(name)
      load(1)
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
  return 'done', op.limit > 0 and #names == op.limit and 2 or 1
end

local answer, number, by
if verb == 'reap' then
  answer, number = reap()
  if answer == 'failed' then return redis.error_reply(number) end
else
  load(op.limit or 1)
  local verbs = {
    acquire = acquire, acquire_alone = acquire_alone, enqueue = enqueue, release = release,
    requeue = requeue, remove = remove, give_up = give_up, force_release = force_release, restore = restore,
  }
  local had_lease = holders[op.id]
  answer, number, by = verbs[verb]()
  local refused = answer == 'granted' and not had_lease and push()
  if refused then return refused end
  store()
end
local epoch = (#wakes > 0 or verb == 'reap') and ensure_epoch() or ''
return {answer, number, by or {}, epoch, wakes, asides, unreadable, now}
