-- The twin of core/step.py: a differential test holds the two equal. Change both or neither.

local verbs = {} -- a script has at most 200 locals

local function add_entry(seq)
  local entry = {id = op.id, seq = seq, deaths = 0, cost = op.cost, part = op.part}
  entries[op.id] = entry
  order[#order + 1] = entry
  return entry
end

local function hold(fence, may_have_copies, phase, cost, part)
  if holders[op.id] then drop(op.id) end
  holder_count = holder_count + 1
  holders[op.id] = {
    id = op.id, expiry = now + op.ttl, fence = fence, may_have_copies = may_have_copies, phase = phase,
    cost = cost, part = part, token = op.token, changed = true,
  }
  parts.count_lease(holders[op.id], 1)
end

local function set_deadline(entry, at)
  entry.deadline = at
  if at then deadline = math.min(deadline, at) end
end

-- When the message expires. One that was in line before is not recalled again at once.
local function deadline_of(entry)
  local soonest = entry and first_offer or 0
  return op.expires_in and now + math.max(tonumber(op.expires_in), soonest) or false
end

-- Gives an entry that joins the line its place, if its key has parts and its part has room. Returns its state.
function parts.in_part(entry)
  local has_room, place = parts.lets(), nil
  if has_room and (op.part ~= '' or parts.reached > 0) then place = parts.next_place(op.part, op.cost) end
  entry.part, entry.place = op.part, place
  if place then ahead = parts.before(entry) end
  return has_room and WAITING or parts.SHUT
end

-- The position of the operation's message: one that is shut stands behind all of its part.
local function position()
  local entry = entries[op.id]
  return entry.state == parts.SHUT and waiting + parts.of(entry.part).shut or ahead + 1
end

-- The entry of a message that joins the line, and its state. Messages that it replaces wait no longer.
local function new_entry()
  if op.replaces then replace_waiting() end
  local entry, expires = add_entry(next_number()), deadline_of()
  local gives_up = op.gives_up_in and now + tonumber(op.gives_up_in)
  entry.gives_up, entry.replaceable = gives_up and gives_up < (expires or NEVER), op.replaces
  set_deadline(entry, entry.gives_up and gives_up or expires)
  return entry, parts.in_part(entry)
end

-- The run that has ended before a delivery that joins, as an owner. It is forgotten when a body begins.
function parts.after()
  if not op.joins then parts.done = '' end
  return parts.done ~= '' and {parts.done, 0, 0, 0, 'running', '', 0}
end

local function renew_lease(lease)
  lease.expiry, lease.changed = math.max(lease.expiry, now + op.ttl), true
end

-- Grants the lease. With late acknowledgement the message stays behind the run until its end.
local function enter(fence)
  local entry, lease = entries[op.id], holders[op.id]
  local is_only_copy = entry and entry.offers == PUBLISHED and (op.promoted or '') ~= '' and not op.redelivered
  local is_copied = may_be_in_line or entry or lease and lease.may_have_copies == '1'
  hold(fence, is_copied and not is_only_copy and '1' or '0', 'running', op.cost, op.part)
  kept = op.recovers and op.message
  if kept or entry and op.acks_late then
    put(entry or add_entry(fence), BEHIND, 0, op.order == 'published' and AT_BROKER + KEEPS_PLACE or AT_BROKER)
  elseif entry then
    leave()
    new_tombstone = BEGUN
  end
  if is_only_copy then new_tombstone = SENT end -- a repetition of the request that has sent it may still come
  return 'granted', fence, parts.after()
end

-- Whether this is the first delivery of a copy that an offer of this key has published.
local function is_of_offer()
  return op.promoted and not op.redelivered and op.promoted == redis.call('GET', base .. 'epoch')
end

-- Counts the start of the operation's run, for the key and its part.
function parts.count_start()
  count_start(op.cost)
  if op.part ~= '' then parts.in_terms(parts.entered(op.part), count_start, op.cost) end
end

-- A new id waits behind the whole line, an id aside may get any slot; nil: there is none. After a death only the
-- copy of the offer brings the number of deaths along: an older one waits for it.
local function grant_free_slot(entry)
  local is_aside = entry and entry.state == ASIDE
  if entry and entry.deaths > 0 and not is_aside and not is_of_offer() then return end
  local is_first = op.order == 'any' or is_aside or not (op.joins or has_ahead())
  local before = is_first and 0 or ahead
  if entry and entry.state == parts.SHUT or not has_room(op.cost, before) or not parts.lets() then return end
  parts.count_start()
  return enter(next_number())
end

-- Grants the lease of a message that has not begun; nil: no such message holds the key.
local function take_over()
  local lease = holders[op.takes_over_id]
  if not lease or lease.phase ~= op.takes_over_phase or lease.phase == 'running' then return end
  drop(lease.id)
  local granted, fence, after = enter(lease.fence)
  advance()
  return granted, fence, after
end

-- The answer to a delivery that must not be parked; nil: park it.
local function refuse(is_newcomer)
  if not op.message or op.at_once then return 'held', 0, owners(op.cost) end
  if is_newcomer and op.max_waiting and waiting + parts.shut >= tonumber(op.max_waiting) then
    return 'full', waiting + parts.shut, owners(op.cost)
  end
end

local function is_stale()
  local entry, finisher = entries[op.id], tombstone()
  if holders[op.id] then return is_of_offer() and (entry or finisher) end
  if entry or not finisher then return false end
  if finisher == BEGUN then return is_of_offer() end
  return may_be_in_line or finisher == op.token
end

local function was_over()
  return string.match(tombstone() or '', '^' .. OVER .. '(.*)$')
end

-- The answer to a delivery whose wait is over; nil: it waits, or is stale. Only a copy that the store has published
-- ends the wait. It gets the same answer when it comes again, until a release says that the task has ended.
local function end_of_wait(entry)
  local newer = entry and entry.over
  if newer and not op.promoted then return 'stale', 0 end
  if newer then
    leave()
    new_tombstone = OVER .. newer
  elseif op.promoted and not is_of_offer() then
    newer = was_over()
  end
  if newer then return 'over', newer, owners() end
end

function verbs.acquire()
  local before, rates_before = limit, rates
  limit = op.limit
  set_rates(op.rates)
  local part_before = parts.bring()
  advance()
  local lease, entry = holders[op.id], entries[op.id]
  -- Its message as it came does not say that it joins.
  if entry and entry.joins and not op.joins then op.joins, op.message = true, false end
  if lease and lease.phase ~= 'running' then return enter(lease.fence) end -- a queued lease belongs to its id
  if lease and lease.token == op.token then
    renew_lease(lease)
    return 'granted', lease.fence, parts.after()
  end
  if not lease then
    local over, newer, by = end_of_wait(entry)
    if over then return over, newer, by end
  end
  if is_stale() then return 'stale', 0 end
  if not lease then
    local granted, fence, after = take_over()
    if not granted then granted, fence, after = grant_free_slot(entry) end
    if granted then return granted, fence, after end
  end
  if lease then lease.may_have_copies, lease.changed = '1', true end -- its end must end this copy, too
  if not entry then
    local refusal, number, by = refuse(not lease and not may_be_in_line)
    if refusal then
      limit, rates = before, rates_before -- a refused call does not change the terms of the others
      if part_before then parts.known[op.part] = part_before end
      advance()
      shorten_offers()
      return refusal, number, by
    end
  end
  kept = not op.at_once and op.message
  if lease then
    put(entry or add_entry(next_number()), BEHIND, 0, op.order == 'published' and KEEPS_PLACE or 0)
  else
    if entry and not entry.gives_up then set_deadline(entry, deadline_of(entry)) end
    if entry and entry.offers > 0 then entry.replaceable = false end -- newer calls may have passed it
    note_queue()
    local state = entry and entry.state
    if not entry then
      entry, state = new_entry()
    elseif state == ASIDE or entry.part ~= op.part then
      state = parts.in_part(entry)
    elseif state == WAITING and not parts.lets() then -- the first that waits for room of its part
      state = parts.SHUT
    end
    entry.cost, entry.joins = op.cost, op.joins
    put(entry, state, 0, 0)
    shorten_offers()
  end
  advance()
  return 'parked', lease and 0 or position(), owners(op.cost)
end

function verbs.acquire_alone()
  advance()
  local own, inherited = holders[op.id], holders[op.inherits_id]
  if own and not belongs_to(own, op.token) then return 'held', 0, owners() end -- another delivery of this id runs
  local is_held = holder_count > 0 or has_ahead()
  local is_refused = is_held and not (op.repeated or op.inherits_id)
  local known = not own and not is_refused and op.phase ~= 'running' and mark()
  if known and known ~= GIVEN_UP then return 'stale', 0 end
  local lease = own or not known and inherited and belongs_to(inherited, op.inherits_token) and inherited
  if not lease and (is_held or known) then
    if op.list and op.repeated then new_tombstone = GIVEN_UP end
    return 'held', 0, owners()
  end
  local fence = lease and lease.fence or next_number()
  if lease then drop(lease.id) else limit, parts.done = 1, '' end
  if lease and lease.id ~= op.id and is_at_broker(lease.id) then leave(lease.id) end -- it is no copy
  local cost, part = lease and lease.cost or 1, lease and lease.part or ''
  hold(fence, entries[op.id] and '1' or lease and lease.may_have_copies or '0', op.phase, cost, part)
  if op.list and not own then new_tombstone = SENT end
  if entries[op.id] then put(entries[op.id], BEHIND, 0, 0) end
  advance() -- a copy of the message that held it joins the line
  return 'granted', fence
end

-- Lets a call open a window, or replace the message of the window that it has opened.
local function wait_for_calls(entry)
  local window
  for _, other in ipairs(head()) do
    if not window and other.offer_until > 0 and other.offers == 0 then window = other end
  end
  if window and window.id ~= op.id then
    return 'held', 0, {window.id, 0, math.max(window.offer_until - now, 0), 0, 'offered', '', 0}
  end
  if entry and not window then return 'done', 0 end -- its message was published
  kept = op.message
  entry = entry or add_entry(next_number())
  put(entry, WAITING, math.min(now + tonumber(op.waits_for), entry.seq + tonumber(op.waits_at_most)), 0)
  return 'parked', ahead + 1
end

-- Gives a call its place in line. Workers alone make offers: without any, calls filled the queue.
function verbs.enqueue()
  limit = op.limit
  set_rates(op.rates)
  parts.bring()
  end_expired()
  local entry = entries[op.id]
  local is_known = entry and entry.state ~= WAITING and entry.state ~= parts.SHUT or not entry and mark()
  if is_known or holders[op.id] then return 'done', 0 end
  if op.waits_for then return wait_for_calls(entry) end
  if not entry then
    kept = op.message
    is_offered_at_once = has_room(op.cost, ahead) and parts.lets()
    note_queue()
    if not is_offered_at_once then shorten_offers() end
    local state
    entry, state = new_entry()
    put(entry, state, is_offered_at_once and now + PUBLISHED_OFFER or 0, is_offered_at_once and PUBLISHED or 0)
    if is_offered_at_once then parts.note_reached(entry) end
  elseif entry.offers == PUBLISHED then -- its publisher may send it again
    put(entry, WAITING, entry.offer_until, PUBLISHED + 1)
  end
  if entry.offer_until > now then return 'done', 1 end
  local by = closed(op.cost)
  append(by, 0)
  return 'parked', position(), by
end

function verbs.recall()
  advance()
  shorten_offers()
  local entry = entries[op.id]
  if not entry or entry.state == BEHIND then return 'done', 0 end
  if entry.state == ASIDE or entry.state == parts.SHUT then
    wake_once(op.id)
  elseif entry.offer_until <= now then -- else it is on its way
    offer(entry, now + first_offer)
  end
  return 'done', 1
end

-- Like a call that joins the line, this makes no offers: the next sweep does.
function verbs.stand_behind()
  end_expired()
  shorten_offers(op.id)
  local entry = entries[op.id]
  return 'done', entry and entry.over and 1 or 0
end

function verbs.release()
  advance()
  local lease = holders[op.id]
  local is_own = lease and belongs_to(lease, op.token)
  local may_come_again = not lease and (entries[op.id] or was_over()) or lease and lease.may_have_copies == '1'
  if lease and (not is_own or op.ending == 'if_no_copy' and may_come_again) then return 'done', 0 end
  if op.ending == 'done' and may_come_again then new_tombstone = op.token end
  if op.ending == 'done' or lease and op.ending == 'if_no_copy' then leave() end -- its kept message is no copy
  for _, entry in ipairs(is_own and op.ending ~= 'open' and head() or {}) do
    if entry.joins and not string.find(op.id, '\n', 1, true) then parts.done = op.id end
  end
  if lease then end_run(op.id) end
  advance()
  return 'done', is_own and 1 or 0
end

function verbs.requeue()
  advance()
  local lease = holders[op.id]
  if not lease or not belongs_to(lease, op.token) then return 'done', 0 end
  local finisher = not entries[op.id] and tombstone()
  if not entries[op.id] and (not finisher or finisher == BEGUN) then
    lease.phase = 'again'
    renew_lease(lease)
    return 'done', 1
  end
  end_run(op.id)
  advance()
  return 'done', 1
end

function verbs.give_up()
  advance()
  local lease, known = holders[op.id], mark()
  if known and known ~= GIVEN_UP or entries[op.id] or lease and lease.phase == 'running' then return 'done', 0 end
  new_tombstone = GIVEN_UP
  if op.releases and lease then end_run(op.id) end
  advance()
  return 'done', 1
end

function verbs.remove()
  local entry, found = entries[op.id], nil
  if op.ending == 'aside' then
    found = entry and not entry.over and entry.state ~= BEHIND
      and not (entry.state == ASIDE and entry.offers >= OFFERS_IN_LINE)
    if found then set_aside(entry, OFFERS_IN_LINE) end
  else
    found = leave()
    if found or op.ending == 'superseded' then new_tombstone = op.ending == 'open' and BEGUN or '' end
  end
  advance()
  return 'done', found and 1 or 0
end

function verbs.drop()
  local entry = entries[op.id]
  if not entry or entry.state == BEHIND then return 'done', not entry and tombstone() == op.token and 1 or 0 end
  leave()
  new_tombstone = op.token
  return 'done', 1
end

function verbs.force_release()
  end_expired()
  local lease, copy = holders[op.id], entries[op.id]
  if lease then drop(op.id) end
  if lease and lease.expiry > now and copy and copy.offers % 2 == AT_BROKER then leave() end
  advance()
  return 'done', lease and 1 or 0
end

-- Ignores the line and the terms: a body that runs goes before an offer, and a pause.
function verbs.restore()
  end_expired()
  local lease, part = holders[op.id], parts.of(op.part)
  local most = op.weight > 0 and op.part_limit or part.limit
  local free = take({op.limit - holder_count - extra(), op.limit, most - part.held, most}, op.cost)
  if lease or entries[op.id] or tombstone() or not free then
    return 'done', lease and lease.token == op.token and 1 or 0
  end
  limit = op.limit
  set_rates(op.rates)
  parts.bring()
  parts.count_start()
  hold(next_number(), '1', 'running', op.cost, op.part)
  return 'done', 1
end

-- Changes the terms of the operation's part, or of the key.
local function change(work)
  if op.part == '' then return work() end
  return parts.in_terms(parts.entered(op.part), work)
end

function verbs.set_limit()
  local by = (op.by or '') .. '\t' .. (op.reason or '')
  local ends = op.lasts and now + tonumber(op.lasts) or NEVER
  local found = change(function()
    local was = override
    override = op.limit and {limit = op.limit, ends = ends, since = now, by = by}
    return op.limit or was
  end)
  advance()
  shorten_offers()
  return 'done', found and 1 or 0
end

function verbs.hold()
  local lease, lasts = holders[op.id], tonumber(op.lasts)
  if op.id and not (lease and lease.token == op.token) then return 'done', 0 end
  local found = change(function()
    local was = opens_at
    opens_at = lasts > 0 and math.max(opens_at, now + lasts) or 0
    return lasts > 0 or was > 0
  end)
  advance()
  return 'done', found and 1 or 0
end

function verbs.charge()
  local lease = holders[op.id]
  local is_own = lease and lease.token == op.token
  if is_own then count_start(tonumber(op.units), true) end
  if is_own and lease.part ~= '' then
    parts.in_terms(parts.entered(lease.part), count_start, tonumber(op.units), true)
  end
  return 'done', is_own and 1 or 0
end
