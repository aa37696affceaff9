-- Returns a page of a key's line, and changes nothing.
--
-- keys: base
-- arguments: now key kind place id count
-- reply: problem time more tasks
--
-- kind, place, id   where the page before has ended: q: (in line), a: (aside) or s: (waits for room of its part), a
--            score, and a member
-- count      the most tasks; a page of long messages has fewer
-- problem    "", or what is wrong with the data of the key
-- more       1: there are more tasks
-- tasks      kind, id, place, record, deadline, message of each; "" for none of the last three

-- include clock.lua

-- include room.lua

-- include document.lua

local at_a_time, long = 100, 1000000 -- tasks; bytes of messages

-- As the server orders members. `<` of Lua depends on its locale.
local function comes_after(one, other)
  for i = 1, #one do
    local byte = string.byte(other, i) or -1
    if string.byte(one, i) ~= byte then return string.byte(one, i) > byte end
  end
  return false
end

-- How many come before a place, or have it, and an id up to this one: all that the pages before could show.
local function shown_before(name, place, id)
  local low = redis.call('ZCOUNT', name, '-inf', '(' .. place)
  local high = redis.call('ZCOUNT', name, '-inf', place)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if comes_after(redis.call('ZRANGE', name, middle, middle)[1], id) then high = middle else low = middle + 1 end
  end
  return low
end

local function add(tasks, kind, flat)
  local ids = {}
  for i = 1, #flat, 2 do append(ids, flat[i]) end
  local records, messages = call('HMGET', base .. 'o:' .. key, ids), call('HMGET', base .. 'm:' .. key, ids)
  local size = 0
  for i, id in ipairs(ids) do
    local ends = deadline < NEVER and redis.call('ZSCORE', base .. 'e:' .. key, id)
    append(tasks, kind, id, flat[2 * i], records[i] or '', ends or '', messages[i] or '')
    size = size + #(messages[i] or '')
  end
  return size
end

-- The members of s: are in their order, and begin with the mark of their part and their seq.
local function add_shut(tasks, from, member, left, size)
  local name, begin = base .. 's:' .. key, from == 's:' and '(' .. member or '-'
  while true do
    local members = redis.call('ZRANGEBYLEX', name, begin, '+', 'LIMIT', 0, math.max(math.min(left, at_a_time), 1))
    if #members == 0 then return 0 end
    if left == 0 or size > long then return 1 end
    local flat = {}
    for _, found in ipairs(members) do
      append(flat, string.sub(found, 57), string.sub(found, 41, 56))
      begin = '(' .. found
    end
    local at = #tasks
    size = size + add(tasks, 's:', flat)
    for i, found in ipairs(members) do tasks[at + 6 * i - 5] = 's:' .. string.sub(found, 1, 40) end
    left = left - #members
  end
end

local function page(from, place, id, count)
  local tasks, left, size = {}, tonumber(count), 0
  read_meta(redis.call('HMGET', leases, '')[1])
  for _, kind in ipairs(from == 's:' and {} or from == 'a:' and {'a:'} or {'q:', 'a:'}) do
    local name, rank = base .. kind .. key, 0
    if kind == from then rank = shown_before(name, place, id) end
    while true do
      local wanted = math.min(left, at_a_time)
      local flat = redis.call('ZRANGE', name, rank, rank + math.max(wanted, 1) - 1, 'WITHSCORES')
      if #flat == 0 then break end
      if left == 0 or size > long then return {'', now, 1, tasks} end
      size = size + add(tasks, kind, flat)
      left, rank = left - #flat / 2, rank + #flat / 2
    end
  end
  return {'', now, parts.shut > 0 and add_shut(tasks, from, id, left, size) or 0, tasks}
end

go_to(ARGV[2])
local reply
local problem = try(function() reply = page(ARGV[3], ARGV[4], ARGV[5], ARGV[6]) end)
if problem and not is_damage(problem) then return redis.error_reply(problem) end
return reply or {problem, now, 0, {}}
