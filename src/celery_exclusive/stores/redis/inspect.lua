-- Returns the states of keys, and changes nothing.
--
-- keys: base
-- arguments: now key
-- reply: seen
--
-- now        virtual time for tests, or "" for the server's clock
-- key        again for each; so is seen: waiting, aside, owners, problem, time, line, limit, terms
-- problem    "", or what is wrong with the data of the key
-- owners     id, age, remaining, fence, phase, ... of each holder
-- line       id, place, record, deadline of each of the first in line; "" for no record or deadline

-- include clock.lua

-- include room.lua

-- include document.lua

local function first_in_line()
  local line, flat = {}, redis.call('ZRANGE', base .. 'q:' .. key, 0, NAMED - 1, 'WITHSCORES')
  for i = 1, #flat, 2 do
    local record, deadline = redis.call('HMGET', base .. 'o:' .. key, flat[i])[1], redis.call('ZSCORE', base .. 'e:' .. key, flat[i])
    append(line, flat[i], flat[i + 1], record or '', deadline or '')
  end
  return line
end

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
  return {waiting + parts.shut, aside, owners, '', now, first_in_line(), limit, terms_text()}
end

local seen = {}
for place = 2, #ARGV do
  go_to(ARGV[place])
  local problem = try(function() seen[place - 1] = look() end)
  if problem and not is_damage(problem) then return redis.error_reply(problem) end
  if problem then seen[place - 1] = {0, 0, {0}, problem, now, {}, 1, ''} end
end
return seen
