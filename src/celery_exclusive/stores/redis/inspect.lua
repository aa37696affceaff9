-- Returns the states of keys, and changes nothing.
--
-- keys: base
-- arguments: now key
-- reply: seen
--
-- now        virtual time for tests, or "" for the server's clock
-- key        again for each; so is seen: waiting, aside, owners, problem
-- problem    "", or what is wrong with the data of the key
-- owners     id, age, remaining, fence, phase, ... of each holder

-- include clock.lua

-- include document.lua

local function look()
  read_meta(redis.call('HMGET', leases, '')[1])
  local shown, owners = {}, {}
  local found, unread = read_leases({})
  local living = unread > 0 and read_next({}) or {}
  for _, lease in ipairs(found) do
    -- A dead one whose message is kept holds the key until a worker recovers it.
    local is_shown = lease.expiry > now or redis.call('ZSCORE', base .. 'b:' .. key, lease.id)
    if is_shown then shown[#shown + 1] = lease end
  end
  local others = #shown + unread
  append(shown, unpack(living))
  append(owners, others - append_leases(owners, shown))
  for _, kind in ipairs({'q:', 'a:', 'b:'}) do redis.call('ZCARD', base .. kind .. key) end
  for _, kind in ipairs({'o:', 'm:'}) do redis.call('HLEN', base .. kind .. key) end
  return {waiting, aside, owners, ''}
end

local seen = {}
for place = 2, #ARGV do
  go_to(ARGV[place])
  local problem = try(function() seen[place - 1] = look() end)
  if problem and not is_damage(problem) then return redis.error_reply(problem) end
  if problem then seen[place - 1] = {0, 0, {0}, problem} end
end
return seen
