-- The data of a key, as plain decimal text that redis-cli can read. Part of every script.
--
-- All names begin with the base, "<prefix>2:{0}:", whose hash tag keeps them in one slot.
--   l:<key>    HASH "" -> "limit holders minexp maxexp waiting aside behind[ deadline][ queue]", behind the lines
--              of its terms: see room.lua; id -> "expiry fence may_have_copies phase[:cost[:n]] token", with the n
--              bytes of the name of its part before the token
--   x:<key>    ZSET id -> expiry, of the leases of a key with more than NAMED holders
--   q:<key>    ZSET id -> seq, of the tasks that wait in line, or their place between parts
--   a:<key>    ZSET id -> offer_until, of the tasks aside
--   b:<key>    ZSET id -> seq, of the copies that stand behind their own run
--   s:<key>    ZSET of the tasks that wait for room of their parts: SHA-1 of the part, seq in 16 digits, id
--   o:<key>    HASH id -> "offer_until offers seq[ deaths[ flags[ cost[ newer or part]]]]", of the tasks that need it
--   e:<key>    ZSET id -> deadline, of the tasks that wait and whose messages expire
--   m:<key>    HASH id -> message
--   p:<key>    HASH part -> "waiting last held shut weight limit due", behind the lines of its terms: see parts.lua
--   d:<key>    ZSET part -> when a sweep must look at it
--   t:<n>:<key>:<id>   "until token" of a tombstone; n is the length of the key
--   due        ZSET key -> when the reaper must look at it, of keys with a line; may be early, never late;
--              2^53 - 1 if it need not
--   fence, epoch, reaped   the last fence; the store's epoch; when a reaper last came
--   run        which run of the server has the data, and the fence with which it began: see witness.lua
--   unreadable HASH key -> problem, of keys that the reaper skips: their data are none of the above
--   broker     the broker that this namespace belongs to
--   kept       is there as long as the workers of that broker beat
--   workers    ZSET record -> when the worker was last heard: see workers.py
--
-- minexp is not later, maxexp not earlier than the expiry of any lease: holders are read only if one may have
-- expired, if the answer names them, or if there is a line. The deadline is not later than any in e:. The queue is
-- the one of all messages in line, and begins with a slash, or SEVERAL. A key with a line
-- stays; without one all its data expire some time after its last lease, and its terms.

local ENDED_AT_ONCE = 100
local SEVERAL = '*'
local PHASES = {running = true, queued = true, again = true, period = true}

local key, leases
local limit, holder_count, minexp, maxexp, waiting, aside, behind, deadline, queue

local function go_to(name)
  key, leases = name, base .. 'l:' .. name
end

local function read_meta(text)
  text = read_terms(text or '1 0 0 0 0 0 0')
  local a, b, c, d, e, f, g, h, i = string.match(text, '^(%d+) (%d+) (%d+) (%d+) (%d+) (%d+) (%d+) ?(%d*) ?(.*)$')
  if not a or i ~= '' and not string.find(i, '^[*/]') then error('MALFORMED lock: ' .. text) end
  limit, holder_count, minexp, maxexp = tonumber(a), tonumber(b), tonumber(c), tonumber(d)
  waiting, aside, behind, deadline, queue = tonumber(e), tonumber(f), tonumber(g), tonumber(h) or NEVER, i
  if math.max(limit, holder_count, minexp, maxexp, waiting, aside, behind, deadline) > NEVER then
    error('MALFORMED lock: ' .. text)
  end
end

-- Until when a key without a line has data.
local function ends_at()
  return math.max(maxexp, terms_last())
end

-- Whether it has a line, or a sweep has to look at its parts.
local function has_entries()
  return waiting + aside + behind + parts.shut > 0 or parts.due < NEVER
end

local function meta()
  local format = '%d %d %.0f %.0f %d %d %d'
  local text = terms_text() .. string.format(format, limit, holder_count, minexp, maxexp, waiting, aside, behind)
  if deadline < NEVER then text = text .. ' ' .. whole(deadline) end
  return queue ~= '' and waiting > 0 and text .. ' ' .. queue or text
end

local function read_lease(holder, text)
  local pattern = '^(%d+) (%d+) (%d) (%a+):?(%d*):?(%d*) (.*)$'
  local expiry, fence, may_have_copies, phase, cost, size, secret = string.match(text, pattern)
  if not PHASES[phase] or math.max(expiry, fence) > NEVER then
    error('MALFORMED lease of ' .. holder .. ': ' .. text)
  end
  return {
    id = holder, expiry = tonumber(expiry), fence = tonumber(fence), may_have_copies = may_have_copies,
    phase = phase, cost = tonumber(cost) or 1, part = string.sub(secret, 1, tonumber(size) or 0),
    token = string.sub(secret, (tonumber(size) or 0) + 1),
  }
end

-- A running lease belongs to the delivery with its token, any other lease to its id.
local function belongs_to(lease, secret)
  return lease.phase ~= 'running' or lease.token == secret
end

local function record(lease)
  local phase = lease.phase
  if lease.cost > 1 or lease.part ~= '' then phase = phase .. ':' .. whole(lease.cost) end
  if lease.part ~= '' then phase = phase .. ':' .. #lease.part end
  local numbers = string.format('%.0f %.0f %s %s ', lease.expiry, lease.fence, lease.may_have_copies, phase)
  return numbers .. lease.part .. lease.token
end

local function append(list, ...)
  for _, value in ipairs({...}) do list[#list + 1] = value end
end

-- Appends the leases that an answer names, in the order of their grants: the own, and the next to end. Returns
-- how many these are.
local function append_leases(owners, list, own)
  if #list > NAMED then
    table.sort(list, function(one, other)
      if (one.id == own) ~= (other.id == own) then return one.id == own end
      if one.expiry ~= other.expiry then return one.expiry < other.expiry end
      return one.id < other.id
    end)
  end
  local named = {unpack(list, 1, math.min(#list, NAMED))}
  table.sort(named, function(one, other) return one.fence < other.fence end)
  for _, lease in ipairs(named) do
    local age, remaining = math.max(now - lease.fence, 0), math.max(lease.expiry - now, 0)
    append(owners, lease.id, age, remaining, lease.fence, lease.phase, lease.token)
  end
  return #named
end

-- More values than Lua's stack can take go in several commands.
local function call(command, name, values)
  local all = {}
  for first = 1, #values, 4000 do
    local reply = redis.call(command, name, unpack(values, first, math.min(first + 3999, #values)))
    if type(reply) == 'table' then
      for _, value in ipairs(reply) do all[#all + 1] = value end
    end
  end
  return all
end

-- Notes when leases of a key with many holders end, after maxexp is known.
local function index_expiry(expiry, id, ...)
  redis.call('ZADD', base .. 'x:' .. key, whole(expiry), id, ...)
  expire(base .. 'x:' .. key, maxexp)
end

-- Writes the index of a key that has many holders only since this step, or whose index others have deleted.
local function index_all(list)
  local flat = {}
  for _, lease in pairs(list) do append(flat, whole(lease.expiry), lease.id) end
  redis.call('DEL', base .. 'x:' .. key)
  call('ZADD', base .. 'x:' .. key, flat)
  expire(base .. 'x:' .. key, maxexp)
end

local function read_all()
  local list, flat = {}, redis.call('HGETALL', leases)
  for i = 1, #flat, 2 do
    if flat[i] ~= '' then list[#list + 1] = read_lease(flat[i], flat[i + 1]) end
  end
  return list
end

-- Reads leases by their ids, but for those in `known`, and adds their ids there.
local function read_these(ids, known)
  local list, asked = {}, {}
  for _, id in ipairs(ids) do
    if not known[id] then append(asked, id) end
    known[id] = true
  end
  for place, text in ipairs(call('HMGET', leases, asked)) do
    if text then list[#list + 1] = read_lease(asked[place], text) end
  end
  return list, #list == #asked
end

-- Reads the leases that a step reads: of a few holders all, of many the own ones and the expired ones. Returns a
-- list, how many leases it leaves out, when the first of these ends, and whether the key has an index. Without
-- one, though it has many holders, others have deleted it, and all are read.
local function read_leases(own)
  local name = base .. 'x:' .. key
  if holder_count <= NAMED or redis.call('ZCARD', name) ~= holder_count then
    return read_all(), 0, NEVER, false
  end
  local more = #own + 1
  local expired = redis.call('ZRANGEBYSCORE', name, '-inf', whole(now), 'LIMIT', 0, ENDED_AT_ONCE + more)
  local flat = redis.call('ZRANGEBYSCORE', name, '(' .. whole(now), '+inf', 'WITHSCORES', 'LIMIT', 0, more)
  local chosen = {}
  local list, has_all = read_these({unpack(expired, 1, math.min(#expired, ENDED_AT_ONCE))}, chosen)
  if not has_all or #expired + #flat == 0 then return read_all(), 0, NEVER, false end -- others deleted leases
  append(list, unpack((read_these(own, chosen))))
  for _, id in ipairs(expired) do
    if not chosen[id] then return list, holder_count - #list, tonumber(redis.call('ZSCORE', name, id)), true end
  end
  for i = 1, #flat, 2 do
    if not chosen[flat[i]] then return list, holder_count - #list, tonumber(flat[i + 1]), true end
  end
  return list, holder_count - #list, NEVER, true
end

-- Reads the leases that an answer may name besides: those that end next.
local function read_next(known)
  local flat = redis.call('ZRANGEBYSCORE', base .. 'x:' .. key, '(' .. whole(now), '+inf', 'LIMIT', 0, NAMED + 2)
  return (read_these(flat, known))
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
