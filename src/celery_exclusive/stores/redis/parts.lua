-- The twin of core/parts.py: the parts of a key, such as the tenants of a service. A differential test holds the two
-- equal. Change both or neither.
--
-- parts.known has the parts that the step may change, as they were; parts.deltas what it has changed of their counts.

function parts.new()
  return {waiting = 0, last = 0, held = 0, shut = 0, weight = 1, limit = parts.NO_LIMIT, rates = {}, opens_at = 0, due = NEVER}
end

-- Runs a function with the terms of a part in the place of the key's.
function parts.in_terms(part, work, ...)
  local of_key, of_line = {rates, override, opens_at, extra_units}, {parts.reached, parts.shut, parts.due, parts.done}
  rates, override, opens_at, extra_units = part.rates, part.override, part.opens_at, 0
  parts.reached, parts.shut, parts.due, parts.done = 0, 0, NEVER, ''
  local is_done, result = pcall(work, ...)
  part.rates, part.override, part.opens_at = rates, override, opens_at
  rates, override, opens_at, extra_units = unpack(of_key, 1, 4)
  parts.reached, parts.shut, parts.due, parts.done = unpack(of_line)
  if not is_done then error(result) end
  return result
end

-- A part as it was stored; nil if another program has written it.
function parts.read(text)
  local part = parts.new()
  local is_done, rest = pcall(parts.in_terms, part, read_terms, text)
  local numbers = is_done and string.match(rest, '^[%d ]+$') and numbers_of(rest) or {}
  if #numbers ~= 7 or math.max(unpack(numbers)) > NEVER or numbers[5] == 0 then return nil end
  part.waiting, part.last, part.held, part.shut, part.weight, part.limit, part.due = unpack(numbers)
  part.was = text
  if part.due <= now and part.waiting + part.held + part.shut == 0 then part.override = nil end -- idle for KEPT
  return part
end

function parts.text(part, due)
  local format = '%.0f %.0f %.0f %.0f %.0f %.0f %.0f'
  local text = parts.in_terms(part, terms_text)
  return text .. string.format(format, part.waiting, part.last, part.held, part.shut, part.weight, part.limit, due)
end

function parts.delta(name)
  parts.deltas[name] = parts.deltas[name] or {waiting = 0, held = 0, shut = 0}
  return parts.deltas[name]
end

-- Counts an entry that joins (1) or leaves (-1) its state.
function parts.count(entry, difference)
  if difference > 0 then parts.note(entry) end
  if not entry.counted then return end
  local name, units, shut = unpack(entry.counted)
  local delta = parts.delta(name)
  delta.waiting, delta.shut = delta.waiting + difference * units, delta.shut + difference * shut
  parts.shut = parts.shut + difference * shut
end

-- Notes as what an entry counts.
function parts.note(entry)
  local is_shut = entry.state == parts.SHUT
  entry.counted = (entry.place or is_shut) and {entry.part, entry.place and entry.cost or 0, is_shut and 1 or 0}
end

function parts.count_lease(lease, difference)
  if lease.part == '' then return end
  local delta = parts.delta(lease.part)
  delta.held = delta.held + difference * lease.cost
end

-- A part as it is now.
function parts.of(name)
  local known, delta = parts.known[name] or parts.new(), parts.deltas[name] or {waiting = 0, held = 0, shut = 0}
  local part = {
    weight = known.weight, limit = known.limit, rates = known.rates, override = known.override,
    opens_at = known.opens_at, due = known.due, last = 0,
    waiting = math.max((parts.had_line and known.waiting or 0) + delta.waiting, 0),
    held = math.max((parts.had_holders and known.held or 0) + delta.held, 0),
    shut = math.max((parts.had_shut and known.shut or 0) + delta.shut, 0),
  }
  if part.waiting > 0 then
    if parts.had_line then part.last = math.min(known.last, NEVER) end
    for _, entry in ipairs(order) do
      if entry.part == name and entry.place and not entry.left then part.last = math.max(part.last, entry.place) end
    end
  end
  return part
end

-- A part that gets a task in line, and is known from now on.
function parts.entered(name)
  parts.known[name] = parts.known[name] or parts.new()
  return parts.known[name]
end

-- Sets what the task of an operation says of its part, nothing if its weight is 0; returns what was known of it.
function parts.bring()
  if op.part == '' then return end
  local before = {}
  for field, value in pairs(parts.entered(op.part)) do before[field] = value end
  local part = parts.known[op.part]
  if op.weight > 0 then
    part.weight, part.limit = op.weight, op.part_limit
    parts.in_terms(part, set_rates, op.part_rates)
  end
  return before
end

-- The room for one more task in line, or for one that has so many own units there, and was let in.
function parts.room(part, own)
  local in_line, most = own > 0 and 0 or part.waiting, part.override and part.override.limit or part.limit
  local found = {now < part.opens_at and 0 or most - part.held - in_line, most}
  for _, rate in ipairs(part.rates) do
    if rate.units > 0 then append(found, free_units(rate) - in_line, rate.units) end
  end
  return found
end

function parts.fits(name, cost, own)
  return name == '' or take(parts.room(parts.of(name), own or 0), cost) ~= nil
end

-- When time may give room to the next task of a part, or earlier; NEVER: only an end of another does.
function parts.opens(part, cost)
  local free, soonest, waits = parts.room(part, 0), NEVER, now
  local function add(at)
    if now < at then soonest = math.min(soonest, at) end
  end
  add(part.opens_at)
  if part.override then add(part.override.ends) end
  if now >= part.opens_at and free[1] >= math.min(cost, free[2]) then
    for _, rate in ipairs(part.rates) do
      if rate.units > 0 then waits = math.max(waits, rate_opens(rate, math.min(cost, rate.units) + part.waiting)) end
    end
    add(waits)
  end
  return soonest
end

-- The first of the tasks that wait for room of a part.
function parts.shut_of(name)
  local found = {}
  for _, entry in ipairs(order) do
    if entry.state == parts.SHUT and entry.part == name and not entry.left then found[#found + 1] = entry end
  end
  table.sort(found, function(one, other) return one.seq < other.seq end)
  return found
end

-- Whether its part has room for the operation's task, which passes none that waits for that.
function parts.lets()
  if op.part == '' then return true end
  local entry = entries[op.id]
  local own = entry and entry.place and entry.part == op.part and entry.cost or 0
  local was_before = own > 0 or entry and entry.state == ASIDE
  return (was_before or parts.of(op.part).shut == 0) and parts.fits(op.part, op.cost, own)
end

-- Lets tasks join the line for which their parts have room now.
function parts.open()
  local names, first = {}, {}
  for name in pairs(parts.known) do
    local eldest = parts.shut_of(name)[1]
    if eldest then
      names[#names + 1] = name
      first[name] = eldest.seq
    end
  end
  table.sort(names, function(one, other) return first[one] < first[other] end)
  for _, name in ipairs(names) do
    for position, entry in ipairs(parts.shut_of(name)) do
      if position > OFFERED_AT_ONCE or not parts.fits(name, entry.cost) then break end
      entry.place = parts.next_place(name, entry.cost)
      if entry.id == op.id then ahead = parts.before(entry) end
      parts.put(entry, WAITING, entry.offer_until, entry.offers)
    end
  end
end

-- The owner for whose part the operation's task has to wait.
function parts.closed()
  local part = parts.of(op.part)
  local at, free = parts.opens(part, op.cost), parts.room(part, 0)
  local left, age, phase = at < NEVER and at - now or NEVER, 0, 'part'
  if part.override and part.override.limit == 0 then
    age, phase = now - part.override.since, 'paused'
  elseif now < part.opens_at then
    phase = 'hold'
  elseif free[1] >= math.min(op.cost, free[2]) and not parts.fits(op.part, op.cost) then
    phase = 'rate'
  end
  return {'', age, left, 0, phase, ''}
end

-- The member of s: of an entry that is shut.
function parts.member(part, seq, id)
  return redis.sha1hex(part) .. string.format('%016.0f', seq) .. id
end

-- The parts whose counts the step may change, and the units that it may free of each; none of a key without parts.
function parts.touched()
  local freed, has_parts, ended, chosen = {}, parts.reached > 0, {}, {}
  local function add(name, units)
    freed[name] = (freed[name] or 0) + units
    has_parts = has_parts or name ~= ''
  end
  if parts.BRING[verb] then add(op.part, 0) end
  for id, lease in pairs(holders) do
    if lease.expiry <= now or id == op.id or id == op.takes_over_id or id == op.inherits_id then
      ended[id] = true
      add(lease.part, lease.cost)
    end
  end
  for _, list in ipairs({overdue, last, {op.id}}) do
    for _, id in ipairs(list) do chosen[id] = true end
  end
  for _, entry in ipairs(order) do
    local is_late = entry.state == WAITING and entry.offers > 0 and entry.offer_until <= now
    local is_dead = entry.state == BEHIND and (ended[entry.id] or not holders[entry.id])
    if chosen[entry.id] or is_late or is_dead then add(entry.part, entry.cost) end
  end
  return has_parts and freed or {}
end

-- How many shut tasks of a part the step reads, of which it may free so many units.
function parts.to_read(name, part, freed)
  local function of(one)
    local room, least = parts.room(one, 0), NEVER
    for i = 1, #room, 2 do least = math.min(least, room[i]) end
    return math.max(math.min(least + freed, OFFERED_AT_ONCE), 0) + 1
  end
  local count = of(part)
  if name ~= op.part or not parts.BRING[verb] then return count end
  if verb == 'set_limit' or verb == 'hold' then return OFFERED_AT_ONCE + 1 end
  local brought = {}
  for field, value in pairs(part) do brought[field] = value end
  brought.limit = op.part_limit
  parts.in_terms(brought, set_rates, op.part_rates)
  return math.max(count, of(brought))
end

function parts.load_shut(name, count)
  local mark, from, flat = redis.sha1hex(name), #order + 1, {}
  local members = redis.call('ZRANGEBYLEX', base .. 's:' .. key, '[' .. mark, '(' .. mark .. ':', 'LIMIT', 0, count)
  if #members < count then parts.known[name].shut = #members end -- another program may have deleted some
  for _, member in ipairs(members) do
    local id = string.sub(member, 57)
    if not entries[id] then append(flat, id, string.sub(member, 41, 56)) end
  end
  add_entries(parts.SHUT, flat)
  for i = from, #order do order[i].part = name end
  parts.read_records(from)
end

function parts.load()
  parts.known, parts.deltas, parts.next_due = {}, {}, NEVER
  parts.had_holders, parts.had_line, parts.had_shut = holder_count > 0, waiting > 0, parts.shut > 0
  local freed, names, name_of_parts = parts.touched(), {}, base .. 'p:' .. key
  -- The leases of a key may have ended by the clock alone.
  if op.part ~= '' and holder_count == 0 and not has_entries() then redis.call('DEL', name_of_parts) end
  for name in pairs(freed) do names[#names + 1] = name end
  for i, text in ipairs(call('HMGET', name_of_parts, names)) do
    if text then parts.known[names[i]] = parts.read(text) end
  end
  if parts.due < NEVER then
    local found = 0
    for _ in pairs(parts.known) do found = found + 1 end
    local flat = redis.call('ZRANGE', base .. 'd:' .. key, 0, NAMED + found, 'WITHSCORES')
    for i = 1, #flat, 2 do
      local name, at = flat[i], tonumber(flat[i + 1])
      if verb == 'reap' and i < 2 * NAMED and at <= now and not parts.known[name] then
        local text = redis.call('HMGET', name_of_parts, name)[1]
        if text then parts.known[name] = parts.read(text) else redis.call('ZREM', base .. 'd:' .. key, name) end
      elseif not parts.known[name] then
        parts.next_due = math.min(parts.next_due, at)
      end
    end
  end
  for name, part in pairs(parts.known) do
    if part.shut > 0 then parts.load_shut(name, parts.to_read(name, part, freed[name] or 0)) end
  end
end

-- When a sweep must look at a part; nil: nothing of it is left to know.
function parts.due_of(name, part)
  local last, due = parts.in_terms(part, terms_last), NEVER
  if part.waiting + part.held + part.shut == 0 and last <= now then return nil end
  if part.shut == 0 then
    due = last > now and last or NEVER
  else
    local first = parts.shut_of(name)[1]
    due = (not first or parts.fits(name, first.cost)) and now or parts.opens(part, first.cost)
  end
  if part.override then return due end -- at which it is forgotten if the part is idle
  return now < part.due and part.due < due and part.due or due
end

-- Decides what is written of the parts, and when the next of them is due.
function parts.decide()
  parts.written, parts.due = {}, parts.next_due
  for name in pairs(parts.known) do
    local part = parts.of(name)
    local due = parts.due_of(name, part)
    parts.written[name] = {due or NEVER, due and parts.text(part, due)}
    parts.due = math.min(parts.due, due or NEVER)
  end
end

function parts.store(had_parts)
  local name_of_parts, name_of_dues = base .. 'p:' .. key, base .. 'd:' .. key
  for name, it in pairs(parts.written) do
    local was, due, text = parts.known[name], it[1], it[2]
    if text and text ~= was.was then redis.call('HSET', name_of_parts, name, text) end
    if not text and was.was then redis.call('HDEL', name_of_parts, name) end
    if due < NEVER and (due ~= was.due or not was.was) then redis.call('ZADD', name_of_dues, whole(due), name) end
    if due == NEVER and was.due < NEVER then redis.call('ZREM', name_of_dues, name) end
  end
  local is_empty = not has_entries()
  -- The last copy of a line need not name the part of its entry.
  if not (had_parts or had_entries and is_empty or next(parts.known)) then return end
  if is_empty then
    expire(name_of_parts, ends_at())
  else
    redis.call('PERSIST', name_of_parts)
  end
end
