-- Looks at keys and changes nothing.
--
-- keys: base
-- arguments: now key
-- reply: seen
--
-- now        virtual time for tests, or "" for the server's clock
-- key        again for each; so is seen: waiting, aside, rivals
-- rivals     id, age, remaining, fence, phase, ... of each holder

-- include document.lua

local function look()
  read_meta()
  local living, rivals = {}, {}
  local found = redis.call('HGETALL', leases)
  for i = 1, #found, 2 do
    if found[i] == '' then
      read_meta(found[i + 1])
    else
      local lease = read_lease(found[i], found[i + 1])
      if lease.expiry > now then living[#living + 1] = lease end
    end
  end
  table.sort(living, function(one, other) return one.fence < other.fence end)
  for _, lease in ipairs(living) do tell_lease(rivals, lease) end
  return {waiting, aside, rivals}
end

local seen = {}
for place = 2, #ARGV do
  go_to(ARGV[place])
  seen[#seen + 1] = look()
end
return seen
