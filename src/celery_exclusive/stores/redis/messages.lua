-- Returns the stored messages of tasks, and changes nothing.
--
-- keys: base
-- arguments: key id
-- reply: messages
--
-- key, id    again for each task
-- messages   "" for a task without a message

local messages = {}
for place = 1, #ARGV, 2 do
  local found = redis.pcall('HMGET', KEYS[1] .. 'm:' .. ARGV[place], ARGV[place + 1])
  messages[#messages + 1] = found[1] or ''
end
return messages
