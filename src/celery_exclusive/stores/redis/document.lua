-- The data of a key, as plain decimal text that redis-cli can read. Part of every script.
--
-- All names begin with the base, "<prefix>2:{0}:", whose hash tag keeps them in one slot.
--   l:<key>    HASH "" -> "limit holders minexp maxexp waiting aside behind[ deadline]",
--              id -> "expiry fence may_have_copies phase token"
--   q:<key>    ZSET id -> seq, of the tasks that wait in line
--   a:<key>    ZSET id -> offer_until, of the tasks aside
--   b:<key>    ZSET id -> seq, of the copies that stand behind their own run
--   o:<key>    HASH id -> "offer_until offers seq[ deaths]", of the tasks that had an offer, or a run
--   e:<key>    ZSET id -> deadline, of the tasks that wait and whose messages expire
--   m:<key>    HASH id -> message
--   t:<n>:<key>:<id>   "until token" of a tombstone; n is the length of the key
--   due        ZSET key -> when the reaper must look at it, of keys with a line; may be early, never late;
--              2^53 - 1 if it need not
--   fence, epoch, reaped   the last fence; the store's epoch; when a reaper last came
--   run        which run of the server has the data, and the fence with which it began: see witness.lua
--   unreadable HASH key -> problem, of keys that the reaper skips: their data are none of the above
--   broker     the broker that this namespace belongs to
--   kept       is there as long as the workers of that broker beat
--
-- minexp is not later, maxexp not earlier than the expiry of any lease: holders are read only if one may have
-- expired, if the answer names them, or if there is a line. The deadline is not later than any in e:. A key with
-- a line stays; without one all its data expire some time after its last lease.

local NEVER = 9007199254740991
local PHASES = {running = true, queued = true, again = true, period = true}

local key, leases
local limit, holder_count, minexp, maxexp, waiting, aside, behind, deadline

local function go_to(name)
  key, leases = name, base .. 'l:' .. name
end

local function read_meta(text)
  if not text then
    limit, holder_count, minexp, maxexp, waiting, aside, behind, deadline = 1, 0, 0, 0, 0, 0, 0, NEVER
    return
  end
  local a, b, c, d, e, f, g, h = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ?(%d*)$')
  if not a then error('MALFORMED lock: ' .. text) end
  limit, holder_count, minexp, maxexp = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  waiting, aside, behind, deadline = tonumber(e), tonumber(f), tonumber(g), tonumber(h) or NEVER
  if math.max(limit, holder_count, minexp, maxexp, waiting, aside, behind, deadline) > NEVER then
    error('MALFORMED lock: ' .. text)
  end
end

local function has_entries()
  return waiting + aside + behind > 0
end

local function meta()
  local format = '%d %d %.0f %.0f %d %d %d'
  local text = string.format(format, limit, holder_count, minexp, maxexp, waiting, aside, behind)
  return deadline < NEVER and text .. ' ' .. whole(deadline) or text
end

local function read_lease(holder, text)
  local expiry, fence, may_have_copies, phase, secret = string.match(text, '^(%d+) (%d+) (%d) (%a+) (.*)$')
  if not PHASES[phase] or math.max(expiry, fence) > NEVER then
    error('MALFORMED lease of ' .. holder .. ': ' .. text)
  end
  return {
    id = holder, expiry = tonumber(expiry), fence = tonumber(fence), may_have_copies = may_have_copies,
    phase = phase, token = secret,
  }
end

-- A running lease belongs to the delivery with its token, any other lease to its id.
local function belongs_to(lease, secret)
  return lease.phase ~= 'running' or lease.token == secret
end

local function record(lease)
  return string.format('%.0f %.0f %s %s ', lease.expiry, lease.fence, lease.may_have_copies, lease.phase) .. lease.token
end

local function append(list, ...)
  for _, value in ipairs({...}) do list[#list + 1] = value end
end

-- Appends the leases as owners, in the order of their grants.
local function append_leases(owners, list)
  table.sort(list, function(one, other) return one.fence < other.fence end)
  for _, lease in ipairs(list) do
    local age, remaining = math.max(now - lease.fence, 0), math.max(lease.expiry - now, 0)
    append(owners, lease.id, age, remaining, lease.fence, lease.phase, lease.token)
  end
end

-- Runs a function on one key; returns the error text if it fails.
local function try(work)
  local is_done, problem = pcall(work)
  if is_done then return nil end
  return type(problem) == 'table' and problem.err or tostring(problem)
end

-- Whether the data of the key are damaged, and not the server in trouble.
local function is_damage(problem)
  for _, word in ipairs({'WRONGTYPE', 'MALFORMED', 'attempt to', 'bad argument'}) do
    if string.find(problem, word, 1, true) then return true end
  end
  return false
end
