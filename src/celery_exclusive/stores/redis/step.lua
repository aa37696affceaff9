-- The twin of core/step.py: a differential test holds the two equal. Change both or neither.

local function has_room(own)
  if own and own.state == ASIDE then return holder_count < limit end
  return holder_count + ahead < limit
end

local function hold(fence, waited, phase)
  if not holders[op.id] then holder_count = holder_count + 1 end
  holders[op.id] = {
    id = op.id, expiry = now + op.ttl, fence = fence, waited = waited, phase = phase, token = op.token,
    changed = true,
  }
end

local function renew_lease(lease)
  lease.expiry, lease.changed = math.max(lease.expiry, now + op.ttl), true
end

-- Grants the lease. With late acknowledgement the entry stays behind the run until its end.
local function enter(fence)
  local entry, lease = entries[op.id], holders[op.id]
  local waited = may_be_in_line or entry or lease and lease.waited == '1'
  hold(fence, waited and '1' or '0', 'running')
  if entry and op.acks_late then
    put(entry, BEHIND, 0, 1)
  elseif entry then
    leave()
    new_tombstone = ENTERED
  end
  return 'granted', fence
end

-- Grants the slot of the former holder, unless that runs, or a free one.
local function grant_slot(entry)
  local former = holders[op.former_id]
  if former and former.phase == op.former_phase and former.phase ~= 'running' then
    drop(former.id)
    local granted, fence = enter(former.fence)
    advance()
    return granted, fence
  end
  if has_room(entry) then return enter(next_number()) end
end

-- The answer to a delivery that must not be parked; nil: park it.
local function refuse(is_newcomer)
  if not op.message then return 'held', 0, owners() end
  if is_newcomer and op.max_waiting and waiting >= op.max_waiting then return 'full', waiting, owners() end
end

local function is_stale()
  local is_of_offer = op.promoted and not op.redelivered and op.promoted == redis.call('GET', base .. 'epoch')
  local entry, finisher = entries[op.id], tombstone()
  if holders[op.id] then return is_of_offer and (entry or finisher) end
  if entry or not finisher then return false end
  if finisher == ENTERED then return is_of_offer end
  return may_be_in_line or finisher == op.token
end

local function acquire()
  local before = limit
  limit = op.limit
  advance()
  local lease, entry = holders[op.id], entries[op.id]
  if lease and lease.phase ~= 'running' then return enter(lease.fence) end -- a queued lease belongs to its id
  if lease and lease.token == op.token then
    renew_lease(lease)
    return 'granted', lease.fence
  end
  if is_stale() then return 'stale', 0 end
  if not lease then
    local granted, fence = grant_slot(entry)
    if granted then return granted, fence end
  end
  if not entry then
    local refusal, number, by = refuse(not lease and not may_be_in_line)
    if refusal then
      limit = before -- a refused call does not change the limit of the others
      advance()
      return refusal, number, by
    end
    entry = {id = op.id, seq = next_number()}
    entries[op.id] = entry
    order[#order + 1] = entry
  end
  kept = op.message
  put(entry, lease and BEHIND or WAITING, 0, 0)
  advance()
  return 'parked', lease and 0 or ahead + 1, owners()
end

local function acquire_alone()
  advance()
  local own, former = holders[op.id], holders[op.former_id]
  if own and not belongs_to(own, op.token) then return 'held', 0, owners() end -- another delivery of this id runs
  local is_given_up = op.phase ~= 'running' and tombstone()
  local lease = own or not is_given_up and former and belongs_to(former, op.former_token) and former
  if not lease and (holder_count + waiting > 0 or is_given_up) then return 'held', 0, owners() end
  local fence = lease and lease.fence or next_number()
  if lease then drop(lease.id) end
  hold(fence, lease and lease.waited or '0', op.phase)
  if entries[op.id] then put(entries[op.id], BEHIND, 0, 0) end
  advance() -- a copy of the former holder joins the line
  return 'granted', fence
end

local function release()
  advance()
  local lease = holders[op.id]
  local is_own = lease and belongs_to(lease, op.token)
  local may_come_again = entries[op.id] or lease and lease.waited == '1'
  if lease and (not is_own or op.ending == 'if_no_copy' and may_come_again) then return 'done', 0 end
  if lease then drop(op.id) end
  if op.ending == 'done' then
    if may_come_again then new_tombstone = op.token end
    leave()
  end
  advance()
  return 'done', is_own and 1 or 0
end

local function requeue()
  advance()
  local lease = holders[op.id]
  if not lease or not belongs_to(lease, op.token) then return 'done', 0 end
  if not entries[op.id] then
    lease.phase = 'again'
    renew_lease(lease)
    return 'done', 1
  end
  drop(op.id)
  advance() -- its copy joins the line
  return 'done', 1
end

local function remove()
  if op.ending == 'given_up' then
    if not tombstone() then new_tombstone = ENTERED end
    advance()
    return 'done', 0
  end
  local found = leave()
  if found or op.ending == 'superseded' then new_tombstone = op.ending == 'open' and ENTERED or '' end
  advance()
  return 'done', found and 1 or 0
end

local function force_release()
  end_expired()
  local lease, copy = holders[op.id], entries[op.id]
  if lease then drop(op.id) end
  if lease and copy and copy.offers > 0 then leave() end -- the broker has it, too
  advance()
  return 'done', lease and 1 or 0
end

-- Ignores the line: an offer is worth less than a body that runs.
local function restore()
  end_expired()
  local lease = holders[op.id]
  if lease or entries[op.id] or tombstone() or holder_count >= op.limit then
    return 'done', lease and lease.token == op.token and 1 or 0
  end
  limit = op.limit
  hold(next_number(), '1', 'running')
  return 'done', 1
end
