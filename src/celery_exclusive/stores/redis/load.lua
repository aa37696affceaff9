-- Reads a document and as much of its line as step() is given.

local had_deadline              -- whether a message in line might expire, before this step
local overdue                   -- ids of messages that a sweep recalls
local last                      -- ids of the last in line, for an operation that replaces
local holders, dead             -- the leases that were read, by id; ids that leave the hash
local was_read                  -- the ids of the leases that were read
local is_indexed                -- whether the key had more than NAMED holders before this step, with an index
local lasting                   -- how many leases this step cannot end
local unread, unread_expiry     -- how many leases were not read; when the first of these ends
local unread_extra              -- the units that these hold beyond one each
local had_terms                 -- whether the key had terms before this step
local others_behind             -- how many entries behind their runs were not read
local entries, order            -- by id; as they stand in line
local WAITING, ASIDE, BEHIND = 'q:', 'a:', 'b:'
local GIVES_UP, REPLACEABLE, IS_OVER = 1, 2, 4 -- flags of a record
local OFFERED_AT_ONCE = 100
local RECALLED_AT_ONCE = 100
local ahead, had_entries        -- how many in line come before the operation's id; before this step
local kept, new_tombstone       -- the message to store; what the tombstone will say
local wake, stepped_aside       -- ids
local abandoned                 -- ids of messages that no worker has accepted in as many offers as a line allows
local is_offered_at_once        -- whether a message that joined the line got an offer

-- Whether an entry stands in line before another one.
local function is_before(one, other)
  local place, next_place = one.place or one.seq, other.place or other.seq
  return place < next_place or place == next_place and one.id < other.id
end

local function add_entries(kind, flat)
  for i = 1, #flat, 2 do
    local entry = {id = flat[i], seq = tonumber(flat[i + 1]), offer_until = 0, offers = 0, deaths = 0, cost = 1, part = ''}
    entry.was, entry.state, entry.place = kind, kind, kind == WAITING and entry.seq or nil
    entries[entry.id] = entry
    order[#order + 1] = entry
  end
end

-- Reads as many of a kind; returns how many there are: others may have deleted some of the line.
local function add_part(kind, count, counted)
  local flat = redis.call('ZRANGE', base .. kind .. key, 0, count == math.huge and -1 or count - 1, 'WITHSCORES')
  add_entries(kind, flat)
  return #flat / 2 < count and #flat / 2 or counted
end

-- Adds one entry, wherever it waits; returns its kind.
local function add_waiting(id)
  if entries[id] then return entries[id].state end
  for _, kind in ipairs({WAITING, ASIDE}) do
    local score = redis.call('ZSCORE', base .. kind .. key, id)
    if score then
      add_entries(kind, {id, score})
      return kind
    end
  end
  local record = parts.shut > 0 and redis.call('HMGET', base .. 'o:' .. key, id)[1]
  local seq, flags = string.match(record or '', '^%d+ %d+ (%d+) %d+ (%d+)')
  if (tonumber(flags) or 0) % 16 >= parts.IS_SHUT then
    add_entries(parts.SHUT, {id, seq})
    return parts.SHUT
  end
end

-- Reads what else is known of the entries from this one on.
function parts.read_records(from)
  local ids = {}
  for i = from, #order do append(ids, order[i].id) end
  for i, text in ipairs(call('HMGET', base .. 'o:' .. key, ids)) do
    local entry = order[from + i - 1]
    if text then
      local pattern = '^(%d+) (%d+) (%d+) ?(%d*) ?(%d*) ?(%d*) ?(.*)$'
      local offer_until, offers, seq, deaths, flags, cost, newer = string.match(text, pattern)
      if not offer_until then error('MALFORMED offer to ' .. ids[i] .. ': ' .. text) end
      entry.offer_until, entry.offers, entry.seq = tonumber(offer_until), tonumber(offers), tonumber(seq)
      entry.deaths, entry.cost, entry.has_record = tonumber(deaths) or 0, tonumber(cost) or 1, true
      flags = tonumber(flags) or 0
      entry.gives_up, entry.replaceable = flags % 2 == GIVES_UP, flags % 4 >= REPLACEABLE
      entry.joins = flags >= parts.JOINS
      if flags % 8 >= IS_OVER then entry.over = newer else entry.part = newer end
    end
    if entry.place == entry.seq then entry.place = nil end
    entry.was_part, entry.was_seq, entry.had_place = entry.part, entry.seq, entry.place
    parts.note(entry)
  end
end

local function load_overdue()
  local flat = redis.call('ZRANGE', base .. 'e:' .. key, 0, RECALLED_AT_ONCE, 'WITHSCORES')
  deadline = NEVER
  for i = 1, #flat, 2 do
    local id, at = flat[i], tonumber(flat[i + 1])
    if at > now or #overdue == RECALLED_AT_ONCE then
      deadline = at
      break
    end
    if add_waiting(id) then
      overdue[#overdue + 1] = id
    else -- others have deleted its place
      redis.call('ZREM', base .. 'e:' .. key, id)
    end
  end
end

local function may_start()
  local units = OFFERED_AT_ONCE
  for _, rate in ipairs(rates) do
    if rate.units > 0 then units = math.min(units, free_units(rate)) end
  end
  return units
end

-- How many entries in line, and aside, the step may have to read.
local function reach_of(asked)
  local slots, units = math.max(asked, limit, override and override.limit or 0), may_start()
  if op.id then slots = slots - lasting end
  if verb == 'acquire' or verb == 'enqueue' or verb == 'restore' then -- it brings its own rates
    local before = rates
    set_rates(op.rates)
    units, rates = math.max(units, may_start()), before
  end
  slots = math.min(slots, math.max(units, NAMED / 2), OFFERED_AT_ONCE)
  return 2 * math.max(slots, 1) + 2
end

local function load_line(asked)
  local reach = reach_of(asked)
  waiting = add_part(WAITING, reach, waiting)
  ahead = waiting
  for position, entry in ipairs(order) do
    if entry.id == op.id then ahead = position - 1 end
  end
  if aside > 0 then aside = add_part(ASIDE, reach, aside) end
  others_behind = 0
  if behind > 0 and not is_indexed then
    behind = add_part(BEHIND, math.huge, behind)
  elseif behind > 0 then
    for id in pairs(holders) do -- of all others it is not known which have copies
      local seq = redis.call('ZSCORE', base .. BEHIND .. key, id)
      if seq then add_entries(BEHIND, {id, seq}) end
    end
    others_behind = behind
    for _, entry in ipairs(order) do
      if entry.state == BEHIND then others_behind = others_behind - 1 end
    end
  end
  if op.id and not entries[op.id] and add_waiting(op.id) == WAITING then
    ahead = redis.call('ZRANK', base .. WAITING .. key, op.id)
  end
  if verb == 'reap' then load_overdue() end
  if op.replaces then
    last = redis.call('ZRANGE', base .. WAITING .. key, -NAMED, -1)
    for _, id in ipairs(last) do add_waiting(id) end
  end
  parts.read_records(1)
  local own = entries[op.id]
  if own and own.state ~= WAITING then
    ahead = redis.call('ZCOUNT', base .. WAITING .. key, '-inf', '(' .. whole(own.seq))
  end
  table.sort(order, is_before)
end

function parts.has_member(id)
  local record = parts.shut > 0 and redis.call('HMGET', base .. 'o:' .. key, id)[1]
  local seq, part = string.match(record or '', '^%d+ %d+ (%d+) %d+ %d+ %d+ (.*)$')
  return part and redis.call('ZSCORE', base .. parts.SHUT .. key, parts.member(part, seq, id))
end

-- Counts the line anew, for a sweep: others may have deleted it, or a part. A message without a place gets one.
local function recount()
  for pass = 1, 2 do
    waiting = redis.call('ZCARD', base .. WAITING .. key)
    aside = redis.call('ZCARD', base .. ASIDE .. key)
    behind = redis.call('ZCARD', base .. BEHIND .. key)
    parts.shut = redis.call('ZCARD', base .. parts.SHUT .. key)
    if pass == 2 or redis.call('HLEN', base .. 'm:' .. key) <= waiting + aside + behind + parts.shut then break end
    for _, id in ipairs(redis.call('HKEYS', base .. 'm:' .. key)) do
      local has_place = parts.has_member(id)
      for _, kind in ipairs({WAITING, ASIDE, BEHIND}) do
        has_place = has_place or redis.call('ZSCORE', base .. kind .. key, id)
      end
      if not has_place then redis.call('ZADD', base .. WAITING .. key, whole(next_number()), id) end
    end
  end
  if waiting + aside + parts.shut == 0 then redis.call('DEL', base .. 'e:' .. key) end
end

local function load(asked)
  holders, dead, entries, order, wake, stepped_aside, abandoned = {}, {}, {}, {}, {}, {}, {}
  overdue, last, was_read, ahead, others_behind = {}, {}, {}, 0, 0
  parts.rejoined = {} -- the places of copies that join the line again in this step, the last one of each part
  local text = meta_text
  meta_text = nil -- a sweep loads more keys
  if text == nil then text = redis.call('HMGET', leases, '')[1] end
  read_meta(text)
  local list, own = nil, {}
  for _, id in ipairs({op.id or false, op.takes_over_id or false, op.inherits_id or false}) do
    if id then append(own, id) end
  end
  list, unread, unread_expiry, is_indexed = read_leases(own)
  lasting, unread_extra, had_terms = unread, unread > 0 and extra_units or 0, terms_text() ~= ''
  for _, lease in ipairs(list) do
    holders[lease.id], was_read[lease.id] = lease, true
    local is_own = lease.id == op.id or lease.id == op.takes_over_id or lease.id == op.inherits_id
    if lease.expiry > now and not is_own then lasting = lasting + 1 end
    unread_extra = math.max(unread_extra - lease.cost + 1, 0)
  end
  holder_count, had_deadline = #list + unread, deadline < NEVER
  if verb == 'reap' then recount() end -- the line of a lost lock is offered the key again
  had_entries = has_entries()
  if had_entries then load_line(asked) end
  parts.load()
end
