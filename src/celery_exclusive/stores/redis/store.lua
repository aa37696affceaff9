-- Writes the result of a step.

local wakes, asides = {}, {}
local woken = 0 -- bytes of messages

local function ensure_epoch()
  redis.call('SET', base .. 'epoch', candidate, 'NX')
  return redis.call('GET', base .. 'epoch')
end

-- Leases are removed first: writes after the first one are allowed even when memory is full.
local function store_leases()
  local previous_end = maxexp
  if waiting + aside + parts.shut == 0 then deadline = NEVER end
  local fields, ends = {}, {}
  minexp, maxexp = unread_expiry, unread > 0 and maxexp or 0
  for holder, lease in pairs(holders) do
    minexp, maxexp = math.min(minexp, lease.expiry), math.max(maxexp, lease.expiry)
    if lease.changed then
      fields[#fields + 1] = holder
      fields[#fields + 1] = record(lease)
      append(ends, whole(lease.expiry), holder)
    end
  end
  extra_units = extra()
  if holder_count == 0 and not has_entries() and terms_last() <= now then
    redis.call('DEL', leases, base .. 'x:' .. key, base .. 'p:' .. key)
    return
  end
  call('HDEL', leases, dead)
  if holder_count > NAMED and is_indexed then
    call('ZREM', base .. 'x:' .. key, dead)
    if #ends > 0 then index_expiry(unpack(ends)) end
  elseif holder_count > NAMED then
    index_all(holders)
  elseif is_indexed then
    redis.call('DEL', base .. 'x:' .. key)
  end
  redis.call('HSET', leases, '', meta(), unpack(fields))
  if has_entries() then
    if not had_entries then redis.call('PERSIST', leases) end
  elseif had_entries or had_terms or ends_at() ~= previous_end then
    expire(leases, ends_at())
  end
end

local function store_entry(entry)
  local is_shut = not entry.left and entry.state == parts.SHUT
  if entry.was == parts.SHUT and not (is_shut and entry.part == entry.was_part) then
    redis.call('ZREM', base .. parts.SHUT .. key, parts.member(entry.was_part, entry.was_seq, entry.id))
  elseif entry.was and (entry.left or entry.was ~= entry.state) then
    redis.call('ZREM', base .. entry.was .. key, entry.id)
  end
  if entry.deadline then
    redis.call('ZADD', base .. 'e:' .. key, whole(entry.deadline), entry.id)
  elseif had_deadline and (entry.left or entry.deadline == false) then
    redis.call('ZREM', base .. 'e:' .. key, entry.id)
  end
  if entry.left then
    redis.call('HDEL', base .. 'm:' .. key, entry.id)
  elseif entry.state == ASIDE then
    redis.call('ZADD', base .. ASIDE .. key, whole(entry.offer_until), entry.id)
  elseif is_shut then
    redis.call('ZADD', base .. parts.SHUT .. key, 0, parts.member(entry.part, entry.seq, entry.id))
  elseif entry.was ~= entry.state or entry.place ~= entry.had_place then
    redis.call('ZADD', base .. entry.state .. key, whole(entry.place or entry.seq), entry.id)
  end
  local flags = (entry.gives_up and GIVES_UP or 0) + (entry.replaceable and REPLACEABLE or 0)
    + (entry.over and IS_OVER or 0) + (is_shut and parts.IS_SHUT or 0) + (entry.joins and parts.JOINS or 0)
  local is_of_part = entry.part ~= '' or entry.place
  if not entry.left and (is_of_part or entry.offers + entry.offer_until + entry.deaths + flags + entry.cost > 1) then
    local text = string.format('%.0f %.0f %.0f', entry.offer_until, entry.offers, entry.seq)
    local has_cost = entry.cost ~= 1 or entry.over or entry.part ~= ''
    if entry.deaths + flags > 0 or has_cost then text = text .. ' ' .. entry.deaths end
    if flags > 0 or has_cost then text = text .. ' ' .. flags end
    if has_cost then text = text .. ' ' .. whole(entry.cost) end
    if entry.over or entry.part ~= '' then text = text .. ' ' .. (entry.over or entry.part) end
    redis.call('HSET', base .. 'o:' .. key, entry.id, text)
  elseif entry.has_record then
    redis.call('HDEL', base .. 'o:' .. key, entry.id)
  end
end

local function store()
  local had_parts = parts.reached > 0
  if waiting == 0 then parts.reached = 0 end
  if waiting + holder_count == 0 then parts.done = '' end
  parts.decide()
  store_leases()
  for _, entry in ipairs(order) do
    if entry.changed or entry.left then store_entry(entry) end
  end
  parts.store(had_parts)
  if kept then redis.call('HSET', base .. 'm:' .. key, op.id, kept) end
  if new_tombstone then
    put_tombstone(tombstone_name(key), new_tombstone, new_tombstone == SENT and SENT_LIFE or tombstone_ttl)
  end
  if had_entries or has_entries() or verb == 'reap' then
    local soonest = due()
    if soonest or waiting + aside + parts.shut > 0 then
      redis.call('ZADD', base .. 'due', whole(soonest or NEVER), key)
    else
      redis.call('ZREM', base .. 'due', key)
    end
  end
  for i, text in ipairs(call('HMGET', base .. 'm:' .. key, wake)) do
    woken = woken + #(text or '')
    append(wakes, key, wake[i], text or '', waiting, entries[wake[i]] and entries[wake[i]].deaths or 0)
  end
  for _, gone in ipairs(abandoned) do
    if entries[gone] and entries[gone].state == ASIDE then
      asides[#asides + 1] = key
      asides[#asides + 1] = gone
    end
  end
end
