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
  local own = entries[op.id]
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
      if entry.id == op.id then ahead = waiting end
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
    if entry.id ~= op.id then append(owners, entry.id, 0, entry.offer_until - now, 0, 'again', '') end
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
  local own = entries[op.id]
  if not own then return false end
  tally(own, -1)
  entries[op.id], own.left = nil, true
  wake = without(wake, op.id)
  return true
end

local function stand_behind(own, offers)
  put(own, BEHIND, 0, offers)
  wake = without(wake, op.id)
end

local function lend(fence, waited, its_phase)
  holders[op.id] = {
    id = op.id, expiry = now + op.ttl, fence = fence, waited = waited, phase = its_phase, token = op.token, changed = true,
  }
  return fence
end

-- Grants the lease. With late acknowledgement the entry stays behind the run until its end.
local function enter(entry, fence, waited)
  if entry and op.acks_late then
    stand_behind(entry, 1)
  elseif entry then
    leave()
    mark_of_end = ENTERED
  end
  return 'granted', lend(fence, waited and '1' or '0', 'running')
end

local function is_stale()
  local is_of_offer = op.promoted and not op.redelivered and op.promoted == redis.call('GET', base .. 'epoch')
  if holders[op.id] then return is_of_offer and (entries[op.id] or finished()) end
  local by = not entries[op.id] and finished()
  if by == ENTERED then return is_of_offer end
  return by and (may_be_in_line or by == op.token)
end

local function acquire()
  local before = known
  known = op.limit
  advance()
  local lease, entry = holders[op.id], entries[op.id]
  local waited = entry or may_be_in_line or lease and lease.waited == '1'
  if lease and lease.phase ~= 'running' then return enter(entry, lease.fence, waited) end
  if lease and lease.token == op.token then
    lease.expiry, lease.changed = math.max(lease.expiry, now + op.ttl), true
    return 'granted', lease.fence
  end
  if is_stale() then return 'stale', 0 end
  local former = holders[op.former_id]
  if not lease and former and former.phase == op.former_phase and former.phase ~= 'running' then
    drop(former.id)
    count = count + 1
    local granted, fence = enter(entry, former.fence, waited)
    advance()
    return granted, fence
  end
  if not lease and has_room(entry) then
    count = count + 1
    return enter(entry, tick(), waited)
  end
  if not op.message and not entry then
    append_owners()
    known = before -- a refused request does not change the limit of the others
    advance()
    return 'held', 0
  end
  if not entry and not lease and not may_be_in_line and op.max_waiting and waiting >= op.max_waiting then
    local ahead_of_it = waiting
    append_owners()
    known = before
    advance()
    return 'full', ahead_of_it
  end
  if not entry then
    entry = {id = op.id, seq = tick()}
    entries[op.id] = entry
    order[#order + 1] = entry
  end
  put(entry, lease and BEHIND or LINE, 0, 0)
  advance()
  append_owners()
  if op.message then redis.call('HSET', base .. 'm:' .. key, op.id, op.message) end
  return 'parked', lease and 0 or ahead + 1
end

local function acquire_alone()
  advance()
  local lease, former = holders[op.id], holders[op.former_id]
  if lease and not is_of(lease, op.token) then -- another delivery of this id runs
    append_owners()
    return 'held', 0
  end
  lease = lease or former and is_of(former, op.former_token) and former
  if not lease and count + waiting > 0 then
    append_owners()
    return 'held', 0
  end
  local fence = lease and lease.fence or tick()
  if lease then drop(lease.id) end
  count = count + 1
  lend(fence, lease and lease.waited or '0', op.phase)
  if entries[op.id] then stand_behind(entries[op.id], 0) end
  advance() -- a copy of the former holder joins the line
  return 'granted', fence
end

local function release()
  advance()
  local lease, has_copy = holders[op.id], entries[op.id]
  local is_own = lease and is_of(lease, op.token)
  local has_waited = has_copy or lease and lease.waited == '1'
  if lease and (not is_own or op.ending == 'if_no_copy' and has_waited) then return 'done', 0 end
  if lease and op.ending == 'again' and not has_copy then
    lease.expiry, lease.phase, lease.changed = math.max(lease.expiry, now + op.keep), 'again', true
    return 'done', 1
  end
  if lease then drop(op.id) end
  if op.ending == 'done' then
    if has_waited then mark_of_end = op.token end
    leave()
  end
  advance()
  return 'done', is_own and 1 or 0
end

local function remove()
  local found = leave()
  if found or op.ending == 'superseded' then mark_of_end = op.ending == 'open' and ENTERED or '' end
  advance()
  return 'done', found and 1 or 0
end

local function break_it()
  drop_dead()
  local lease, copy = holders[op.id], entries[op.id]
  if lease then drop(op.id) end
  if lease and copy and copy.offers > 0 then leave() end -- the broker has it, too
  advance()
  return 'done', lease and 1 or 0
end

local function restore()
  drop_dead()
  local lease = holders[op.id]
  if lease or entries[op.id] or finished() or count >= op.limit then
    return 'done', lease and lease.token == op.token and 1 or 0
  end
  known, count = op.limit, count + 1
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
