-- Returns how many tasks wait for some of the keys with a line, and changes nothing.
--
-- keys: base
-- arguments: now first last
-- reply: found
--
-- first, last  the ranks of the keys in due
-- found        key, waiting, aside, 1 if it is due, age of the first in line, 1 if it is damaged, of each, 2 if it
--              has parts that will be due, but no line; 0 of what another program has overwritten

-- include clock.lua

local is_damaged
local has_unreadable = redis.call('HLEN', base .. 'unreadable') > 0

local function size(name)
  local found = redis.pcall('ZCARD', name)
  if type(found) == 'number' then return found end
  is_damaged = true
  return 0
end

local found, flat = {}, redis.call('ZRANGE', base .. 'due', ARGV[2], ARGV[3], 'WITHSCORES')
for i = 1, #flat, 2 do
  local key, count = flat[i], #found
  is_damaged = has_unreadable and redis.call('HMGET', base .. 'unreadable', key)[1] ~= false
  local waiting, aside, age = size(base .. 'q:' .. key), size(base .. 'a:' .. key), 0
  if waiting > 0 then
    local first = redis.call('ZRANGE', base .. 'q:' .. key, 0, 0, 'WITHSCORES')
    local record = redis.pcall('HMGET', base .. 'o:' .. key, first[1])
    age = math.max(now - (string.match(record[1] or '', '^%d+ %d+ (%d+)') or first[2]), 0)
  end
  waiting = waiting + size(base .. 's:' .. key)
  local is_empty = waiting + aside == 0 and size(base .. 'b:' .. key) == 0
  found[count + 1], found[count + 2], found[count + 3] = key, waiting, aside
  found[count + 4], found[count + 5] = tonumber(flat[i + 1]) <= now and 1 or 0, age
  found[count + 6] = is_damaged and 1 or is_empty and 2 or 0
end
return found
