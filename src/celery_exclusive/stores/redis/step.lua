-- The twin of core/step.py: a differential test holds the two equal. Change both or neither.

local OFFERS_IN_LINE = 8
local OFFERS_ASIDE = 64
local LONGEST_OFFER = 120
local NEVER = 9007199254740991
local ENTERED = 'entered'

local owners = {}

local function queue()
  local found = {}
  for _, entry in ipairs(order) do
    if entry.state == LINE and not entry.left then found[#found + 1] = entry end
  end
  return found
end

local function free()
  return math.max(math.min(known - count, OFFERED_AT_ONCE), 0)
end

-- How many entries are in each state, and how many of the line come before the operation's own.
local function tally(entry, difference)
  local own = entries[id]
  if entry.state == AWAY then aside = aside + difference end
  if entry.state == BEHIND then behind = behind + difference end
  if entry.state == LINE then
    waiting = waiting + difference
    if not own or entry.seq < own.seq then ahead = ahead + difference end
  end
end

local function put(entry, state, offer_until, offers)
  if entry.state then tally(entry, -1) end
  entry.state, entry.offer_until, entry.offers, entry.changed = state, offer_until, offers, true
  tally(entry, 1)
end

local function make_offer(entry, offer_until)
  put(entry, entry.state, offer_until, entry.offers + 1)
  wake[#wake + 1] = entry.id
end

local function step_aside(entry)
  put(entry, AWAY, now + LONGEST_OFFER * offer_time, OFFERS_IN_LINE)
  stepped[#stepped + 1] = entry.id
end

local function drop(holder)
  holders[holder] = nil
  dead[#dead + 1] = holder
  count = count - 1
end

-- A copy that stood behind a run without a lease joins the line. If the run was promoted, the broker has the
-- message, too: its delivery has until the end of an offer.
local function drop_dead()
  for holder, lease in pairs(holders) do
    if lease.expiry <= now then drop(holder) end
  end
  local has_more = false
  for _, entry in ipairs(order) do
    if entry.state == BEHIND and not entry.left and not holders[entry.id] then
      if entry.id == id then ahead = waiting end
      entry.seq, has_more = tick(), true
      put(entry, LINE, entry.offers > 0 and now + offer_time or 0, entry.offers)
    end
  end
  if has_more then table.sort(order, function(one, other) return one.seq < other.seq end) end
end

local function advance()
  drop_dead()
  local slots, in_line = free(), waiting
  for position, entry in ipairs(queue()) do
    if slots <= 0 then break end
    local is_over = entry.offer_until <= now
    local is_last = position == in_line or #stepped >= math.min(known, OFFERED_AT_ONCE)
    if is_over and entry.offers >= OFFERS_IN_LINE and not is_last then
      step_aside(entry)
    else
      if is_over then make_offer(entry, now + math.min(2 ^ entry.offers, LONGEST_OFFER) * offer_time) end
      slots = slots - 1
    end
  end
  slots = free()
  for _, entry in ipairs(away) do
    if slots <= 0 then break end
    if entry.state == AWAY and not entry.left and entry.offer_until <= now then
      local is_last = entry.offers + 1 >= OFFERS_IN_LINE + OFFERS_ASIDE
      make_offer(entry, is_last and NEVER or now + LONGEST_OFFER * offer_time)
      slots = slots - 1
    end
  end
end

local function has_room(own)
  if own and own.state == AWAY then return count < known end
  return count + ahead < known
end

local function append_owners()
  local leases_by_fence = {}
  for _, lease in pairs(holders) do leases_by_fence[#leases_by_fence + 1] = lease end
  table.sort(leases_by_fence, function(one, other) return one.fence < other.fence end)
  for _, lease in ipairs(leases_by_fence) do append_lease(owners, lease) end
  for position, entry in ipairs(queue()) do
    if position > free() then break end
    if entry.id ~= id then append(owners, entry.id, 0, entry.offer_until - now, 0, 'again', '') end
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
  tally(own, -1)
  entries[id], own.left = nil, true
  wake = without(wake, id)
  return true
end

local function stand_behind(own, offers)
  put(own, BEHIND, 0, offers)
  wake = without(wake, id)
end

local function lend(fence, waited, its_phase)
  holders[id] = {
    id = id, expiry = now + ttl, fence = fence, waited = waited, phase = its_phase, token = token, changed = true,
  }
  return fence
end

-- Grants the lease. With late acknowledgement the entry stays behind the run until its end.
local function enter(entry, fence, waited)
  if entry and ending == 'late' then
    stand_behind(entry, 1)
  elseif entry then
    leave()
    mark_of_end = ENTERED
  end
  return 'granted', lend(fence, waited and '1' or '0', 'running')
end

local function is_stale(is_promoted, is_redelivered)
  if holders[id] then return is_promoted and (entries[id] or finished()) end
  local by = not entries[id] and finished()
  if by == ENTERED then return is_promoted end
  return by and (is_promoted or is_redelivered or by == token)
end

local function acquire()
  local before = known
  known = limit
  advance()
  local lease, entry = holders[id], entries[id]
  local epoch = string.match(delivery, '^promoted (.*)$')
  local is_promoted = epoch and epoch == redis.call('GET', base .. 'epoch')
  local is_redelivered = not is_promoted and delivery ~= 'fresh'
  local waited = entry or delivery ~= 'fresh' or lease and lease.waited == '1'
  if lease and lease.phase ~= 'running' then return enter(entry, lease.fence, waited) end
  if lease and lease.token == token then
    lease.expiry, lease.changed = math.max(lease.expiry, now + ttl), true
    return 'granted', lease.fence
  end
  if is_stale(is_promoted, is_redelivered) then return 'stale', 0 end
  local former_phase, former_id = string.match(former, '^(%a+) (.*)$')
  local handed_over = former_id and holders[former_id]
  if not lease and handed_over and handed_over.phase == former_phase and former_phase ~= 'running' then
    drop(former_id)
    count = count + 1
    local granted, fence = enter(entry, handed_over.fence, waited)
    advance()
    return granted, fence
  end
  if not lease and has_room(entry) then
    count = count + 1
    return enter(entry, tick(), waited)
  end
  if not message and not entry then
    append_owners()
    known = before -- a refused request does not change the limit of the others
    advance()
    return 'held', 0
  end
  if not entry and not lease and delivery == 'fresh' and max_waiting and waiting >= max_waiting then
    local ahead_of_it = waiting
    append_owners()
    known = before
    advance()
    return 'full', ahead_of_it
  end
  if not entry then
    entry = {id = id, seq = tick()}
    entries[id] = entry
    order[#order + 1] = entry
  end
  put(entry, lease and BEHIND or LINE, 0, 0)
  advance()
  append_owners()
  if message then redis.call('HSET', base .. 'm:' .. key, id, message) end
  return 'parked', lease and 0 or ahead + 1
end

local function acquire_alone()
  advance()
  local lease, other = holders[id], holders[former]
  if lease and not is_of(lease, token) then -- another delivery of this id runs
    append_owners()
    return 'held', 0
  end
  lease = lease or other and is_of(other, message) and other
  if not lease and count + waiting > 0 then
    append_owners()
    return 'held', 0
  end
  local fence = lease and lease.fence or tick()
  if lease then drop(lease.id) end
  count = count + 1
  lend(fence, lease and lease.waited or '0', phase)
  if entries[id] then stand_behind(entries[id], 0) end
  advance() -- a copy of the former holder joins the line
  return 'granted', fence
end

local function release()
  advance()
  local lease, has_copy = holders[id], entries[id]
  local is_own = lease and is_of(lease, token)
  local has_waited = has_copy or lease and lease.waited == '1'
  if lease and (not is_own or is_if_no_copy and has_waited) then return 'done', 0 end
  if lease and ending == 'again' and not has_copy then
    lease.expiry, lease.phase, lease.changed = math.max(lease.expiry, now + ttl), 'again', true
    return 'done', 1
  end
  if lease then drop(id) end
  if is_done then
    if has_waited then mark_of_end = token end
    leave()
  end
  advance()
  return 'done', is_own and 1 or 0
end

local function remove()
  local found = leave()
  if found or ending == 'superseded' then mark_of_end = ending == 'open' and ENTERED or '' end
  advance()
  return 'done', found and 1 or 0
end

local function break_it()
  drop_dead()
  local lease, copy = holders[id], entries[id]
  if lease then drop(id) end
  if lease and copy and copy.offers > 0 then leave() end -- the broker has it, too
  advance()
  return 'done', lease and 1 or 0
end

local function restore()
  drop_dead()
  local lease = holders[id]
  if lease or entries[id] or finished() or count >= limit then
    return 'done', lease and lease.token == token and 1 or 0
  end
  known, count = limit, count + 1
  lend(tick(), '1', 'running')
  return 'done', 1
end

local function due()
  local soonest = NEVER
  for position, entry in ipairs(queue()) do
    if position > free() then break end
    soonest = math.min(soonest, entry.offer_until)
  end
  local others_wait = waiting + aside > 0
  for _, entry in ipairs(order) do
    if entry.state == AWAY and not entry.left and count < known then
      soonest = math.min(soonest, entry.offer_until)
    end
  end
  for _, lease in pairs(holders) do
    if others_wait or entries[lease.id] then soonest = math.min(soonest, lease.expiry) end
  end
  return soonest < NEVER and soonest or nil
end
