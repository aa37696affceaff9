-- Reads a document and as much of its line as step() is given.

local holders, dead             -- the leases by id; ids that leave the hash
local entries, order            -- by id; by seq
local entries_aside             -- by (offer_until, id)
local WAITING, ASIDE, BEHIND = 'q:', 'a:', 'b:'
local OFFERED_AT_ONCE = 100
local ahead, had_entries        -- how many in line come before the operation's id; before this step
local kept, new_tombstone       -- the message to store; what the tombstone will say
local wake, stepped_aside       -- ids

-- More values than Lua's stack can take go in several commands.
local function call(command, name, values)
  local all = {}
  for first = 1, #values, 4000 do
    local reply = redis.call(command, name, unpack(values, first, math.min(first + 3999, #values)))
    if type(reply) == 'table' then
      for _, value in ipairs(reply) do all[#all + 1] = value end
    end
  end
  return all
end

local function sort_by_seq(list)
  table.sort(list, function(one, other) return one.seq < other.seq end)
end

local function add_entries(kind, flat)
  for i = 1, #flat, 2 do
    local entry = {id = flat[i], seq = tonumber(flat[i + 1]), offer_until = 0, offers = 0, was = kind}
    entry.state = kind
    entries[entry.id] = entry
    order[#order + 1] = entry
    if kind == ASIDE then entries_aside[#entries_aside + 1] = entry end
  end
end

local function load_line(asked)
  local reach = 2 * math.min(math.max(asked, limit), OFFERED_AT_ONCE) + 2
  add_entries(WAITING, redis.call('ZRANGE', base .. WAITING .. key, 0, reach - 1, 'WITHSCORES'))
  ahead = waiting
  for position, entry in ipairs(order) do
    if entry.id == op.id then ahead = position - 1 end
  end
  if aside > 0 then
    add_entries(ASIDE, redis.call('ZRANGE', base .. ASIDE .. key, 0, reach - 1, 'WITHSCORES'))
  end
  if behind > 0 then add_entries(BEHIND, redis.call('ZRANGE', base .. BEHIND .. key, 0, -1, 'WITHSCORES')) end
  if op.id and not entries[op.id] then
    local seq = redis.call('ZSCORE', base .. WAITING .. key, op.id)
    if seq then
      add_entries(WAITING, {op.id, seq})
      ahead = redis.call('ZRANK', base .. WAITING .. key, op.id)
    elseif aside > 0 then
      local offer_until = redis.call('ZSCORE', base .. ASIDE .. key, op.id)
      if offer_until then add_entries(ASIDE, {op.id, offer_until}) end
    end
  end
  local ids = {}
  for i, entry in ipairs(order) do ids[i] = entry.id end
  for i, text in ipairs(call('HMGET', base .. 'o:' .. key, ids)) do
    if text then
      local offer_until, offers, seq = string.match(text, '^(%d+) (%d+) (%d+)$')
      if not offer_until then error('MALFORMED offer to ' .. ids[i] .. ': ' .. text) end
      local entry = order[i]
      entry.offer_until, entry.offers, entry.seq = tonumber(offer_until), tonumber(offers), tonumber(seq)
      entry.has_record = true
    end
  end
  local own = entries[op.id]
  if own and own.state ~= WAITING then
    ahead = redis.call('ZCOUNT', base .. WAITING .. key, '-inf', '(' .. whole(own.seq))
  end
  sort_by_seq(order)
end

local function load(asked)
  holders, dead, entries, order, entries_aside, wake, stepped_aside = {}, {}, {}, {}, {}, {}, {}
  ahead = 0
  local stored = 0
  local flat = redis.call('HGETALL', leases)
  read_meta()
  for i = 1, #flat, 2 do
    if flat[i] == '' then
      read_meta(flat[i + 1])
    else
      holders[flat[i]] = read_lease(flat[i], flat[i + 1])
      stored = stored + 1
    end
  end
  holder_count = stored
  if verb == 'reap' then -- recounted: the line of a lost lock is offered the key again
    waiting = redis.call('ZCARD', base .. WAITING .. key)
    aside = redis.call('ZCARD', base .. ASIDE .. key)
    behind = redis.call('ZCARD', base .. BEHIND .. key)
    redis.call('HLEN', base .. 'm:' .. key)
  end
  had_entries = has_entries()
  if had_entries then load_line(asked) end
end
