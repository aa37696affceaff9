-- The instant of a script, and how its times are written. Part of every script.
--
-- All times are whole microseconds of the server's clock, or of a virtual one that a test gives: then nothing
-- ends by itself while the test runs.

local NAMED = 10
local NEVER = 9007199254740991
local base, now = KEYS[1], tonumber(ARGV[1])
local is_virtual = now ~= nil
if not is_virtual then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end

local function whole(number)
  return string.format('%.0f', number)
end

-- Lets a script write though memory is full: Redis refuses a first write that needs memory, and no later one.
local function write_when_full()
  redis.call('DEL', base .. 'nothing')
end

local function expire(name, at)
  if is_virtual then
    redis.call('PEXPIRE', name, 3600000)
  else
    redis.call('PEXPIREAT', name, whole(math.ceil(at / 1000) + 1000))
  end
end
