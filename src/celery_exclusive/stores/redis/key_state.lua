-- The twin of core/key_state.py: a differential test holds the two equal. Change both or neither.

local ABANDONED = 600000000
local SWEEP_AGAIN = 1000000
local OFFERS_IN_LINE = 8
local OFFERS_ASIDE = 64
local OVER = 'over '
local AT_BROKER = 1
local KEEPS_PLACE = 2

local function head()
  local found = {}
  for _, entry in ipairs(order) do
    if entry.state == WAITING and not entry.left then found[#found + 1] = entry end
  end
  if parts.reached > 0 then table.sort(found, is_before) end -- one that joins may stand before others
  return found
end

-- Whether any in line goes before the operation's task: those that join do not.
local function has_ahead()
  for _, entry in ipairs(head()) do
    if entry.id == op.id then return false end
    if not entry.joins then return true end
  end
  return false
end

-- The units that leases hold beyond one each.
local function extra()
  local units = unread_extra
  for _, lease in pairs(holders) do units = units + lease.cost - 1 end
  return units
end

-- The units that may be held at once.
local function most()
  return override and override.limit or limit
end

local function room()
  local found = {now < opens_at and 0 or most() - holder_count - extra(), most()}
  for _, rate in ipairs(rates) do
    if rate.units > 0 then append(found, free_units(rate), rate.units) end
  end
  return found
end

-- The first in line that have room, up to those that are offered a slot at a time.
local function in_turn()
  local left, found = room(), {}
  for position, entry in ipairs(head()) do
    left = position <= OFFERED_AT_ONCE and take(left, entry.cost)
    if not left then break end
    found[position] = entry
  end
  return found
end

-- Whether a task has room behind so many others in line. Those that were not read count as one unit.
local function has_room(cost, before)
  local left, unknown, costs = room(), before, {}
  for _, entry in ipairs(head()) do
    if unknown > 0 and entry.id ~= op.id then
      unknown = unknown - 1
      append(costs, entry.cost)
    end
  end
  for i = 1, #left, 2 do left[i] = left[i] - unknown end
  append(costs, cost)
  for _, units in ipairs(costs) do left = left and take(left, units) end
  return left ~= nil
end

-- When the rates let a task start after these others.
local function opens(cost, before)
  local at
  for _, rate in ipairs(rates) do
    if rate.units > 0 then
      local units = math.min(cost, rate.units)
      for _, entry in ipairs(before) do units = units + math.min(entry.cost, rate.units) end
      at = math.max(at or 0, rate_opens(rate, units))
    end
  end
  return at or now
end

-- The owner without an id for which a task has to wait though slots may be free, in a list, or an empty list.
-- Behind others it waits as the next of them.
local function closed(cost)
  if not parts.lets() then return parts.closed() end
  if override and override.limit == 0 then
    local left = override.ends < NEVER and override.ends - now or NEVER
    return {'', now - override.since, left, 0, 'paused', ''}
  end
  if now < opens_at then return {'', 0, opens_at - now, 0, 'hold', ''} end
  local turn, before = in_turn(), {}
  for _, entry in ipairs(turn) do
    if entry.id ~= op.id then append(before, entry) end
  end
  local first = #before == #turn and head()[#turn + 1]
  cost = first and first.cost or cost
  local at, free = opens(cost, before), room()
  local is_rate = free[1] >= math.min(cost, free[2]) and now < at and at < NEVER
  return is_rate and {'', 0, at - now, 0, 'rate', ''} or {}
end

-- Adjusts the counts by an entry that joins (1) or leaves (-1) its state.
local function count(entry, difference)
  local own = entries[op.id]
  if entry.state == ASIDE then aside = aside + difference end
  if entry.state == BEHIND then behind = behind + difference end
  if entry.state == WAITING then
    waiting = waiting + difference
    if not own or is_before(entry, own) then ahead = ahead + difference end
  end
  parts.count(entry, difference)
end

local function do_not_wake(id)
  local others = {}
  for _, woken in ipairs(wake) do
    if woken ~= id then others[#others + 1] = woken end
  end
  wake = others
end

-- An entry that is behind its run now has no use for an offer, and no deadline.
local function put(entry, state, offer_until, offers)
  if entry.state then count(entry, -1) end
  entry.state, entry.offer_until, entry.offers, entry.changed = state, offer_until, offers, true
  if state ~= WAITING then entry.place = nil end
  count(entry, 1)
  if state == BEHIND then
    do_not_wake(entry.id)
    entry.deadline, entry.gives_up, entry.replaceable, entry.over, entry.joins = false, false, false, nil, nil
  end
end

parts.put = put

-- A published message has a second copy from now on, and counts as one offer more.
local function wake_once(id)
  local entry = entries[id]
  if entry.offers == PUBLISHED and not entry.over then put(entry, entry.state, entry.offer_until, PUBLISHED + 1) end
  for _, woken in ipairs(wake) do
    if woken == id then return end
  end
  wake[#wake + 1] = id
end

local function offer(entry, offer_until)
  put(entry, entry.state, offer_until, entry.offers + 1)
  wake_once(entry.id)
end

-- One that makes way for another queue is offered any free slot at once.
local function set_aside(entry, offers)
  local pause = offers >= OFFERS_IN_LINE and LONGEST_OFFER * first_offer or 0
  put(entry, ASIDE, now + pause, offers)
end

local function drop(holder)
  parts.count_lease(holders[holder], -1)
  holders[holder] = nil
  dead[#dead + 1] = holder
  holder_count = holder_count - 1
end

-- The place in line of the next task of a part, whose last one has this place.
function parts.place_behind(last, cost, weight)
  if parts.reached == 0 then parts.reached = next_number() end
  local base, start = math.max(parts.reached, last), parts.A_START * cost / weight
  local place = (math.floor(base / parts.AT_ONCE) + math.floor(start / parts.AT_ONCE)) * parts.AT_ONCE
  return math.min(place + math.min(waiting, parts.AT_ONCE - 1), NEVER - 1)
end

-- The place of a task of a part that joins the line.
function parts.next_place(name, cost)
  parts.entered(name)
  local part = parts.of(name)
  return parts.place_behind(part.last, parts.size(room(), cost), part.weight)
end

-- How many wait before an entry that joins, of a line that was not read so far all.
function parts.before(entry)
  local before, others = 0, 0
  for _, other in ipairs(head()) do
    if other.id ~= entry.id then others = others + 1 end
    if other.id ~= entry.id and is_before(other, entry) then before = before + 1 end
  end
  return before == others and waiting or before
end

-- A task that joins a line with parts stands behind each message that was offered.
function parts.note_reached(entry)
  if parts.reached > 0 then parts.reached = math.max(parts.reached, entry.place or entry.seq) end
end

-- Puts a copy at the end of the line, or at its old place. One of a part stands 2, 4, 8 starts behind what offers have
-- reached, after its first, second, third death, or is the first that waits for room of its part.
local function join_line(entry, offer_until)
  if not parts.fits(entry.part, entry.cost) then
    put(entry, parts.SHUT, 0, 0)
    return
  end
  local has_parts = entry.part ~= '' or parts.reached > 0
  local keeps_place = entry.offers >= KEEPS_PLACE and not has_parts
  if not keeps_place then entry.seq = next_number() end
  if has_parts then
    parts.entered(entry.part)
    entry.place = parts.place_behind(parts.rejoined[entry.part] or 0, 2 ^ math.min(entry.deaths, 20), 1)
    parts.rejoined[entry.part] = entry.place
  end
  if entry.id == op.id and not keeps_place then ahead = parts.before(entry) end
  put(entry, WAITING, offer_until, entry.offers % 2)
end

-- Drops the lease of a run that has ended. If the broker has its copy, too, that is delivered now.
local function end_run(id)
  local copy = entries[id]
  drop(id)
  if copy and copy.state == BEHIND then
    join_line(copy, copy.offers % 2 == AT_BROKER and now + first_offer or 0)
    table.sort(order, is_before)
  end
end

-- Drops expired leases. One with a copy of its message behind it ends in a sweep that recovers only.
local function end_expired()
  local ended = {}
  for holder, lease in pairs(holders) do
    local recovers = op.recovers_until and now <= tonumber(op.recovers_until)
    local is_abandoned = not op.recovers_until and lease.expiry + ABANDONED <= now
    local is_kept = entries[holder] and not is_abandoned and not recovers
    if lease.expiry <= now and not is_kept then
      drop(holder)
      ended[holder] = true
    end
  end
  local has_more = false
  for _, entry in ipairs(order) do
    if entry.state == BEHIND and not entry.left and not holders[entry.id] then
      if ended[entry.id] then entry.deaths = entry.deaths + 1 end
      join_line(entry, 0)
      has_more = true
    end
  end
  if has_more then table.sort(order, is_before) end
end

-- Notes the queue of the operation's message, which is about to join the line.
local function note_queue()
  local own = entries[op.id]
  if waiting == (own and own.state == WAITING and 1 or 0) then
    queue = op.queue or ''
  elseif queue ~= '' and op.queue and op.queue ~= queue then
    queue = SEVERAL
  end
end

-- Offers each free slot to the next in line. One whose offers are spent steps aside, unless it is the last in
-- line; as many may do so in a step as slots are free. In a line of several queues each has one offer.
local function offer_in_line()
  local free, slots = room(), OFFERED_AT_ONCE
  local in_line, most_offers = waiting, queue == SEVERAL and 1 or OFFERS_IN_LINE
  for i = 1, #free, 2 do slots = math.min(slots, free[i]) end
  local most_aside = slots
  for position, entry in ipairs(head()) do
    local left = slots > 0 and take(free, entry.cost)
    if not left then break end
    local is_last = position == in_line and (entry.part == '' or parts.of(entry.part).shut == 0)
    local may_step_aside = not is_last and #stepped_aside < most_aside
    if entry.offer_until <= now and entry.offers >= most_offers and may_step_aside then
      set_aside(entry, entry.offers)
      stepped_aside[#stepped_aside + 1] = entry.id
      if entry.offers >= OFFERS_IN_LINE then abandoned[#abandoned + 1] = entry.id end
    else
      if entry.offer_until <= now then
        offer(entry, now + math.min(2 ^ entry.offers, LONGEST_OFFER) * first_offer)
        parts.note_reached(entry)
      end
      if not entry.joins then free, slots = left, slots - 1 end -- it most likely takes no slot
    end
  end
end

local function offer_aside()
  local free, ended = room(), {}
  for _, entry in ipairs(order) do
    if entry.state == ASIDE and not entry.left and entry.offer_until <= now then ended[#ended + 1] = entry end
  end
  table.sort(ended, function(one, other)
    if one.offer_until ~= other.offer_until then return one.offer_until < other.offer_until end
    return one.id < other.id
  end)
  for position, entry in ipairs(ended) do
    local left = position <= OFFERED_AT_ONCE and take(free, entry.cost)
    if left then
      local is_final = entry.offers + 1 >= OFFERS_IN_LINE + OFFERS_ASIDE
      offer(entry, is_final and NEVER or now + math.min(2 ^ entry.offers, LONGEST_OFFER) * first_offer)
      if entry.offers == OFFERS_IN_LINE then abandoned[#abandoned + 1] = entry.id end
      free = left
    end
  end
end

local function advance()
  end_expired()
  parts.open()
  offer_in_line()
  parts.open()
  offer_aside()
end

-- Lets the next in line wait no longer for a message that is late than for one that was offered; `only`: for this one.
local function shorten_offers(only)
  for _, entry in ipairs(in_turn()) do
    local is_published = entry.offers == PUBLISHED
    -- A message of another queue than the next one's has had its time since it was published.
    local since = is_published and queue == SEVERAL and entry.seq or now
    local new_until = math.max(since + first_offer, now)
    local longest = is_published and new_until or now + LONGEST_OFFER * first_offer
    local is_meant = not only or entry.id == only
    if is_meant and entry.offers > 0 and entry.offer_until > longest then put(entry, WAITING, new_until, entry.offers) end
  end
end

-- Wakes a message whose wait is over, again and again, each time after twice as long a pause.
local function end_wait(entry, newer)
  local offers = entry.over and entry.offers + 1 or 1
  put(entry, ASIDE, NEVER, offers)
  entry.gives_up, entry.replaceable, entry.over, entry.part, entry.joins = false, false, newer, '', nil
  local at = now + 2 ^ (offers - 1) * first_offer
  entry.deadline = at < NEVER and at
  deadline = math.min(deadline, at)
  wake_once(entry.id)
end

-- Ends the wait of the messages that this one replaces.
local function replace_waiting()
  for _, id in ipairs(last) do
    local entry = entries[id]
    if entry and entry.replaceable and entry.state == WAITING and entry.offer_until <= now then
      end_wait(entry, op.id)
    end
  end
end

-- Publishes the messages that have expired in line, once: a queue without a worker must not fill up. Those
-- that give up are ended, unless they wait for no other task but for a worker.
local function recall()
  end_expired()
  local has_turn = {}
  for _, entry in ipairs(in_turn()) do has_turn[entry.id] = true end
  for _, found in ipairs(overdue) do
    local entry = entries[found]
    if entry.over then
      end_wait(entry, entry.over)
    elseif not entry.gives_up then
      entry.deadline, entry.changed = false, true
      wake_once(entry.id)
    elseif has_turn[found] then
      entry.deadline, entry.changed = now + first_offer, true
      deadline = math.min(deadline, entry.deadline)
    else
      end_wait(entry, '')
    end
  end
end

-- The owners that an answer names, holders before ids with an offer, and behind them the number of others.
local function owners(cost)
  local list, flat = unread > 0 and read_next(was_read) or {}, cost and closed(cost) or {}
  for _, lease in pairs(holders) do list[#list + 1] = lease end
  local is_closed = #flat > 0
  local named, offered, turn = append_leases(flat, list, op.id), 0, in_turn()
  for _, entry in ipairs(turn) do
    local waits_for_itself = cost and #turn == 1 and named == 0 and not is_closed -- for the copy of its own offer
    if entry.id ~= op.id or waits_for_itself then
      offered = offered + 1
      if named + offered <= NAMED then append(flat, entry.id, 0, entry.offer_until - now, 0, 'offered', '') end
    end
  end
  append(flat, math.max(holder_count + offered - NAMED, 0))
  return flat
end

-- Whether the message of this id is kept behind its run, and the broker has it, too.
local function is_at_broker(id)
  local copy = entries[id]
  return copy and copy.state == BEHIND and copy.offers % 2 == AT_BROKER
end

-- Removes the entry of this id, or of the operation's.
local function leave(id)
  id = id or op.id
  local entry = entries[id]
  if not entry then return false end
  count(entry, -1)
  entries[id], entry.left = nil, true
  do_not_wake(id)
  return true
end

-- The time at which time alone may give room to one of these entries behind the others; NEVER: it does not.
local function opens_by_time(others, before)
  local soonest = NEVER
  local function add(at)
    if #others > 0 and now < at then soonest = math.min(soonest, at) end
  end
  if override and override.limit < limit then add(override.ends) end
  if now < opens_at then
    add(opens_at)
  elseif most() > 0 then
    for _, entry in ipairs(others) do add(opens(entry.cost, before)) end
  end
  return soonest
end

local function due()
  local soonest, turn, free = parts.due, in_turn(), room()
  local others = {head()[#turn + 1]}
  for _, entry in ipairs(turn) do soonest = math.min(soonest, entry.offer_until) end
  if waiting + aside + parts.shut > 0 then soonest = math.min(soonest, deadline) end
  local counts_all = waiting + aside + parts.shut + others_behind > 0
  for _, entry in ipairs(order) do
    if entry.state == ASIDE and not entry.left then
      append(others, entry)
      if take(free, entry.cost) then soonest = math.min(soonest, entry.offer_until) end
    end
  end
  soonest = math.min(soonest, opens_by_time(others, turn))
  for _, lease in pairs(holders) do
    if counts_all or entries[lease.id] then
      local is_left = verb == 'reap' and lease.expiry <= now and entries[lease.id]
      soonest = math.min(soonest, is_left and now + SWEEP_AGAIN or lease.expiry)
    end
  end
  if counts_all then soonest = math.min(soonest, unread_expiry) end
  return soonest < NEVER and soonest or nil
end
