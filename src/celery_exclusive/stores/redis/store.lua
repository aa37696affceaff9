-- Writes what a step came to.

local wakes, asides = {}, {}

local function mark()
  redis.call('SET', base .. 'epoch', candidate, 'NX')
  return redis.call('GET', base .. 'epoch')
end

-- Leases are dropped first: what comes after the first write is allowed even when memory is full.
local function store_leases()
  local previous_end = maxexp
  local fields = {}
  minexp, maxexp = NEVER, 0
  for holder, lease in pairs(holders) do
    minexp, maxexp = math.min(minexp, lease.expiry), math.max(maxexp, lease.expiry)
    if lease.changed then
      fields[#fields + 1] = holder
      fields[#fields + 1] = record(lease)
    end
  end
  local has_line = waiting + aside > 0
  if count == 0 and not has_line then
    redis.call('DEL', leases)
    return
  end
  call('HDEL', leases, dead)
  redis.call('HSET', leases, '', meta(), unpack(fields))
  if has_line and not had_line then
    redis.call('PERSIST', leases)
  elseif not has_line and (had_line or maxexp > previous_end or verb == 'own') then
    expire(leases, maxexp)
  end
end

local function store_entry(entry)
  local name = base .. (entry.aside and 'a:' or 'q:') .. key
  if entry.was and (entry.left or entry.was ~= (entry.aside and 'a:' or 'q:')) then
    redis.call('ZREM', base .. entry.was .. key, entry.id)
  end
  if entry.left then
    redis.call('HDEL', base .. 'm:' .. key, entry.id)
  elseif entry.aside then
    redis.call('ZADD', name, whole(entry.offer_until), entry.id)
  elseif entry.was ~= 'q:' then
    redis.call('ZADD', name, whole(entry.seq), entry.id)
  end
  if not entry.left and (entry.offers > 0 or entry.redelivered) then
    local text = string.format('%.0f %.0f %.0f ', entry.offer_until, entry.offers, entry.seq)
    redis.call('HSET', base .. 'o:' .. key, entry.id, text .. (entry.redelivered and '1' or '0'))
  elseif entry.has_record then
    redis.call('HDEL', base .. 'o:' .. key, entry.id)
  end
end

local function store()
  store_leases()
  for _, entry in ipairs(order) do
    if entry.changed or entry.left then store_entry(entry) end
  end
  if is_finished then bury() end
  if had_line or waiting + aside > 0 or verb == 'reap' then
    local soonest = due()
    if soonest then
      redis.call('ZADD', base .. 'due', whole(soonest), key)
    else
      redis.call('ZREM', base .. 'due', key)
    end
  end
  for i, text in ipairs(call('HMGET', base .. 'm:' .. key, wake)) do
    if text then
      for _, value in ipairs({key, wake[i], text}) do wakes[#wakes + 1] = value end
    end
  end
  for _, gone in ipairs(stepped) do
    if entries[gone] and entries[gone].aside then
      asides[#asides + 1] = key
      asides[#asides + 1] = gone
    end
  end
end
