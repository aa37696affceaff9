-- Says for which of some keys a task has a lease or a place, and changes nothing.
--
-- keys: base
-- arguments: task key waits
-- reply: found
--
-- task       the id of the task; ids of its messages go on with a slash and a publish id
-- key, waits again for each; 1: tasks wait for the key
-- found      of each key 1 yes, 0 no, 2 not among the holders, and the line is too long to
--            look through while others wait

local short = 1000
local task = ARGV[1] .. '/'

-- `mark`: how many bytes stand before each id.
local function has(mark, command, name, ...)
  for _, id in ipairs(redis.pcall(command, name, ...)) do
    id = string.sub(id, mark + 1)
    if string.sub(id, 1, #task) == task and not string.find(id, '/', #task + 1, true) then return true end
  end
end

local function look(key, waits)
  if has(0, 'HKEYS', KEYS[1] .. 'l:' .. key) then return 1 end
  local is_long = false
  if waits ~= '1' then return 0 end
  for _, kind in ipairs({'q:', 'a:', 's:'}) do
    local name = KEYS[1] .. kind .. key
    local size = redis.pcall('ZCARD', name)
    if type(size) == 'number' and size > short then
      is_long = true
    elseif size ~= 0 and has(kind == 's:' and 56 or 0, 'ZRANGE', name, 0, -1) then
      return 1
    end
  end
  return is_long and 2 or 0
end

local found = {}
for place = 2, #ARGV, 2 do found[#found + 1] = look(ARGV[place], ARGV[place + 1]) end
return found
