-- Notes which run of the server has the data now, and makes a new epoch if a process knows of data that this
-- run does not have. Is called on each new connection, before anything else is.
--
-- keys: base
-- arguments: run fence candidate
-- reply: run fence is_noted
--
-- run        random id of a server process since its start, "" if it hides that: first the run that granted
--            `fence` to the caller, then the present one
-- fence      the highest one that the caller was granted; then the last one that the server knows of
-- candidate  becomes the epoch if data were lost
--
-- A run that has begun with a lower fence than the caller was granted by another run has lost data. The first
-- caller notes the fence with which a run begins, so that later grants do not hide a loss, which is told once.
-- Nothing here may fail: a replica, a full server and one that hides its facts are asked nevertheless. Where
-- nothing can be noted, the caller keeps what it knows, and says it again.

local base, told_run, told = KEYS[1], ARGV[1], tonumber(ARGV[2])

local function get(name)
  local text = redis.pcall('GET', base .. name)
  return type(text) == 'string' and text or ''
end

local function set(name, value)
  return type(redis.pcall('SET', base .. name, value).err) == 'nil'
end

redis.pcall('DEL', base .. 'nothing') -- a script that has written goes on writing when memory is full
local facts = redis.pcall('INFO', 'server')
local run = type(facts) == 'string' and string.match(facts, 'run_id:(%w+)') or ''
local fence = tonumber(get('fence')) or 0
if run ~= '' then
  local known, began = string.match(get('run'), '^(%w+) ?(%d*)$')
  if known ~= run then
    began = fence
    if not set('run', run .. ' ' .. string.format('%.0f', fence)) then return {told_run, told, 0} end
  end
  began = tonumber(began)
  local is_of_another = told_run ~= '' and told_run ~= run
  if is_of_another and began and told > began then
    if not set('epoch', ARGV[3]) then return {told_run, told, 0} end
    set('run', run)
  end
  if is_of_another and told > fence then
    fence = told
    if not set('fence', string.format('%.0f', told)) then return {told_run, told, 0} end
  end
end
return {run, fence, 1}
