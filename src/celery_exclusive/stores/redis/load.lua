-- Reads a document and as much of its line as step() is given.

local holders, stored, dead  -- the leases by id, how many are in the hash, ids that leave it
local entries, order, away   -- by id; by seq; those aside by (offer_until, id)
local ahead, had_line, is_finished
local wake, stepped

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

local function add_entries(kind, flat)
  for i = 1, #flat, 2 do
    local entry = {id = flat[i], seq = tonumber(flat[i + 1]), offer_until = 0, offers = 0, was = kind}
    entry.aside = kind == 'a:'
    entries[entry.id] = entry
    order[#order + 1] = entry
    if entry.aside then away[#away + 1] = entry end
  end
end

local function load_line(asked)
  local reach = 2 * math.max(asked, known) + stored + 1
  add_entries('q:', redis.call('ZRANGE', base .. 'q:' .. key, 0, reach - 1, 'WITHSCORES'))
  ahead = waiting
  for position, entry in ipairs(order) do
    if entry.id == id then ahead = position - 1 end
  end
  if aside > 0 then
    add_entries('a:', redis.call('ZRANGE', base .. 'a:' .. key, 0, reach - 1, 'WITHSCORES'))
  end
  if id ~= '' and not entries[id] then
    local seq = redis.call('ZSCORE', base .. 'q:' .. key, id)
    if seq then
      add_entries('q:', {id, seq})
      ahead = redis.call('ZRANK', base .. 'q:' .. key, id)
    elseif aside > 0 then
      local offer_until = redis.call('ZSCORE', base .. 'a:' .. key, id)
      if offer_until then add_entries('a:', {id, offer_until}) end
    end
  end
  local ids = {}
  for i, entry in ipairs(order) do ids[i] = entry.id end
  for i, text in ipairs(call('HMGET', base .. 'o:' .. key, ids)) do
    if text then
      local offer_until, offers, seq, is_redelivered = string.match(text, '(%d+) (%d+) (%d+) (%d)')
      local entry = order[i]
      entry.offer_until, entry.offers, entry.seq = tonumber(offer_until), tonumber(offers), tonumber(seq)
      entry.redelivered, entry.has_record = is_redelivered == '1', true
    end
  end
  local own = entries[id]
  if own and own.aside then
    ahead = redis.call('ZCOUNT', base .. 'q:' .. key, '-inf', '(' .. whole(own.seq))
  end
  table.sort(order, function(one, other) return one.seq < other.seq end)
end

local function load(asked)
  holders, dead, entries, order, away, wake, stepped = {}, {}, {}, {}, {}, {}, {}
  stored, ahead, is_finished = 0, 0, false
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
  count = stored
  had_line = waiting + aside > 0
  if verb == 'reap' then -- counted anew: the line of a lost lock gets its turn again
    waiting = redis.call('ZCARD', base .. 'q:' .. key)
    aside = redis.call('ZCARD', base .. 'a:' .. key)
  end
  if waiting + aside > 0 then load_line(asked) end
end
