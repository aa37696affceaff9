-- The twin of core/step.py: a differential test holds the two equal. Change both or neither.

local OFFERS_IN_LINE = 8
local OFFERS_ASIDE = 64
local LONGEST_OFFER = 120
local NEVER = 9007199254740991

local rivals = {}

local function line()
  local found = {}
  for _, entry in ipairs(order) do
    if not entry.aside and not entry.left and not holders[entry.id] then found[#found + 1] = entry end
  end
  return found
end

local function make_offer(entry, pause)
  entry.offer_until, entry.offers, entry.changed = pause, entry.offers + 1, true
  wake[#wake + 1] = entry.id
end

local function step_aside(entry)
  local own = entries[id]
  if not own or entry.seq < own.seq then ahead = ahead - 1 end
  waiting, aside = waiting - 1, aside + 1
  entry.offer_until, entry.offers = now + LONGEST_OFFER * offer_time, OFFERS_IN_LINE
  entry.aside, entry.changed = true, true
  stepped[#stepped + 1] = entry.id
end

local function drop_dead()
  for holder, lease in pairs(holders) do
    if lease.expiry <= now then
      holders[holder] = nil
      dead[#dead + 1] = holder
      count = count - 1
    end
  end
end

local function settle()
  drop_dead()
  local free = known - count
  local places = free
  local queue = line()
  for position, entry in ipairs(queue) do
    if places <= 0 then break end
    local is_over = entry.offer_until <= now
    if is_over and entry.offers >= OFFERS_IN_LINE and position < #queue and #stepped < known then
      step_aside(entry)
    else
      if is_over then make_offer(entry, now + math.min(2 ^ entry.offers, LONGEST_OFFER) * offer_time) end
      places = places - 1
    end
  end
  for _, entry in ipairs(away) do
    if free <= 0 then break end
    if entry.aside and not entry.left and entry.offer_until <= now then
      local is_last = entry.offers + 1 >= OFFERS_IN_LINE + OFFERS_ASIDE
      make_offer(entry, is_last and NEVER or now + LONGEST_OFFER * offer_time)
      free = free - 1
    end
  end
end

local function has_room(own)
  if own and own.aside then return count < known end
  local before = 0
  for _, entry in ipairs(line()) do
    if not own or entry.seq < own.seq then before = before + 1 end
  end
  return count + before < known
end

local function tell_rivals()
  local leases_by_fence = {}
  for _, lease in pairs(holders) do leases_by_fence[#leases_by_fence + 1] = lease end
  table.sort(leases_by_fence, function(one, other) return one.fence < other.fence end)
  for _, lease in ipairs(leases_by_fence) do tell_lease(rivals, lease) end
  for position, entry in ipairs(line()) do
    if position > known - #leases_by_fence then break end
    if entry.id ~= id then tell(rivals, entry.id, 0, entry.offer_until - now, 0, 'queued') end
  end
end

local function without(list, gone)
  local others = {}
  for _, value in ipairs(list) do
    if value ~= gone then others[#others + 1] = value end
  end
  return others
end

local function leave()
  local own = entries[id]
  if not own then return false end
  if own.aside then aside = aside - 1 else waiting = waiting - 1 end
  entries[id], own.left = nil, true
  wake = without(wake, id)
  return true
end

-- A copy of a redelivered message stays behind its own run: see Entry in core/document.py.
local function stand_behind(own)
  if own.aside then waiting, aside = waiting + 1, aside - 1 end
  own.aside, own.offer_until, own.offers, own.changed = false, 0, 0, true
  wake = without(wake, id)
end

local function lend(fence, waited, its_phase)
  holders[id] = {
    id = id, expiry = now + ttl, fence = fence, waited = waited, phase = its_phase, token = token, changed = true,
  }
  return fence
end

local function grant(waited, its_phase)
  count = count + 1
  return lend(tick(), waited, its_phase or 'running')
end

local function acquire()
  local before = known
  known = limit
  settle()
  local lease, entry = holders[id], entries[id]
  local mark = string.match(delivery, '^promoted (.*)$')
  local is_promoted = mark and mark == redis.call('GET', base .. 'epoch')
  local is_redelivered = not is_promoted and delivery ~= 'fresh'
  if lease and lease.token == token then
    lease.expiry, lease.changed = math.max(lease.expiry, now + ttl), true
    return 'granted', lease.fence
  end
  if is_promoted and (lease or not entry) then return 'stale', 0 end
  local by = not lease and not entry and finished()
  if by and (is_redelivered or by == token) then return 'stale', 0 end
  if not lease and has_room(entry) then
    if entry and entry.redelivered then stand_behind(entry) else leave() end
    return 'granted', grant((entry or is_redelivered) and '1' or '0')
  end
  if not message and not entry then
    tell_rivals()
    known = before -- who only asked does not change what the others may do
    settle()
    return 'held', 0
  end
  if not entry and not is_redelivered and max_waiting and waiting >= max_waiting then
    local ahead_of_it = waiting
    tell_rivals()
    known = before
    settle()
    return 'full', ahead_of_it
  end
  if not entry then
    entry = {id = id, seq = tick()}
    entries[id] = entry
    order[#order + 1] = entry
    waiting = waiting + 1
  elseif entry.aside then
    waiting, aside = waiting + 1, aside - 1
  end
  entry.aside, entry.offer_until, entry.offers, entry.changed = false, 0, 0, true
  entry.redelivered = entry.redelivered or is_redelivered
  settle()
  tell_rivals()
  if message then redis.call('HSET', base .. 'm:' .. key, id, message) end
  return 'parked', ahead + 1
end

local function own()
  drop_dead()
  local former = holders[delivery]
  local lease = holders[id] or former and is_of(former, message) and former
  if count > 0 and not lease then
    tell_rivals()
    return 'held', 0
  end
  if not lease then return 'granted', grant('0', phase) end
  if lease.id ~= id then
    holders[lease.id] = nil
    dead[#dead + 1] = lease.id
  end
  return 'granted', lend(lease.fence, '0', phase)
end

local function release()
  settle()
  local lease = holders[id]
  if not lease or not is_of(lease, token) then return 'done', 0 end
  holders[id] = nil
  dead[#dead + 1] = id
  count = count - 1
  if is_done then
    local has_copy = leave()
    is_finished = has_copy or lease.waited == '1'
  end
  settle()
  return 'done', 1
end

local function remove()
  local found = leave()
  is_finished = found and is_done
  settle()
  return 'done', found and 1 or 0
end

local function break_it()
  settle()
  local lease = holders[id]
  if lease then
    holders[id] = nil
    dead[#dead + 1] = id
    count = count - 1
  end
  settle()
  return 'done', lease and 1 or 0
end

local function restore()
  drop_dead()
  local lease = holders[id]
  if lease or entries[id] or finished() or count >= limit then
    return 'done', lease and lease.token == token and 1 or 0
  end
  known = limit
  grant('1')
  return 'done', 1
end

local function due()
  local soonest = NEVER
  for position, entry in ipairs(line()) do
    if position > known - count then break end
    soonest = math.min(soonest, entry.offer_until)
  end
  local has_aside = false
  for _, entry in ipairs(order) do
    if entry.aside and not entry.left then
      has_aside = true
      if count < known then soonest = math.min(soonest, entry.offer_until) end
    end
  end
  if waiting > 0 or has_aside then
    for _, lease in pairs(holders) do soonest = math.min(soonest, lease.expiry) end
  end
  return soonest < NEVER and soonest or nil
end
