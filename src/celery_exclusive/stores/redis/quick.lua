-- The quick ways: a grant, its repetition, a refusal and a release, where there is neither an entry nor a
-- dead lease; and the grant and the release of the only holder with its message behind it.

local function quick_release(own)
  holder_count = holder_count - 1
  if holder_count == 0 then
    redis.call('DEL', leases)
  else
    redis.call('HDEL', leases, op.id)
    redis.call('HSET', leases, '', meta())
  end
  if op.ending == 'done' and own.may_have_copies == '1' then put_tombstone(op.token) end
  return {'done', 1}
end

local function quick_put(own)
  local is_longest = own.expiry > maxexp
  maxexp = math.max(maxexp, own.expiry)
  redis.call('HSET', leases, '', meta(), op.id, record(own))
  if is_longest then expire(leases, maxexp) end
end

local function quick_grant(own)
  local phase = op.phase or 'running'
  if own and own.phase == 'running' and verb == 'acquire' then
    own.expiry = math.max(own.expiry, now + op.ttl)
  elseif own then -- a queued lease belongs to its id
    own.expiry, own.phase, own.token = now + op.ttl, phase, op.token
    minexp = math.min(minexp, own.expiry)
    if holder_count == 1 then maxexp = 0 end
  else
    own = {
      expiry = now + op.ttl, fence = next_number(), may_have_copies = '0', phase = phase, token = op.token,
    }
    local refused = push()
    if refused then return refused end
    minexp = holder_count == 0 and own.expiry or math.min(minexp, own.expiry)
    holder_count = holder_count + 1
  end
  limit = op.limit or limit
  quick_put(own)
  return {'granted', own.fence}
end

-- The message of the only holder stands behind its run.
local function quick_keep()
  local own = {
    expiry = now + op.ttl, fence = next_number(), may_have_copies = '0', phase = 'running', token = op.token,
  }
  limit, holder_count, minexp, maxexp, behind = op.limit, 1, own.expiry, own.expiry, 1
  redis.call('HSET', leases, '', meta(), op.id, record(own))
  redis.call('PERSIST', leases)
  redis.call('ZADD', base .. 'b:' .. key, whole(own.fence), op.id)
  local offers = op.order == 'published' and '3' or '1'
  redis.call('HSET', base .. 'o:' .. key, op.id, '0 ' .. offers .. ' ' .. whole(own.fence))
  redis.call('HSET', base .. 'm:' .. key, op.id, op.message)
  redis.call('ZADD', base .. 'due', whole(own.expiry), key)
  return {'granted', own.fence}
end

local function quick_drop(own)
  redis.call('DEL', leases, base .. 'b:' .. key, base .. 'o:' .. key, base .. 'm:' .. key)
  redis.call('ZREM', base .. 'due', key)
  if own.may_have_copies == '1' then put_tombstone(op.token) end
  return {'done', 1}
end

local function quick_held()
  local flat, list, by = redis.call('HGETALL', leases), {}, {}
  for i = 1, #flat, 2 do
    if flat[i] ~= '' then list[#list + 1] = read_lease(flat[i], flat[i + 1]) end
  end
  append_leases(by, list)
  return {'held', 0, by, '', {}, {}, {}, now}
end

if verb == 'acquire' or verb == 'acquire_alone' or verb == 'release' then
  local found = redis.call('HMGET', leases, '', op.id)
  read_meta(found[1])
  if not has_entries() and (holder_count == 0 or minexp > now) then
    local own = found[2] and read_lease(op.id, found[2])
    if verb == 'release' then
      local stays = op.ending == 'if_no_copy' and own and own.may_have_copies == '1'
      local may = own and belongs_to(own, op.token) and not stays
      return may and quick_release(own) or {'done', 0}
    end
    local is_mine = own and belongs_to(own, op.token)
    local is_new, is_free
    if verb == 'acquire' then
      is_new = not may_be_in_line and not op.takes_over_id
      is_free = not own and holder_count < op.limit and tombstone() ~= op.token
    else
      is_new = not op.inherits_id
      is_free = not own and holder_count == 0 and (op.phase == 'running' or not tombstone())
    end
    if is_new and is_free and op.recovers and op.message and holder_count == 0 then return quick_keep() end
    if is_new and (is_mine or is_free) and not op.recovers then return quick_grant(own) end
    local most = verb == 'acquire' and op.limit or 1
    local is_refused = is_new and (not op.message or op.at_once)
    if is_refused and not own and holder_count >= most then
      local is_stale = verb == 'acquire' and tombstone() == op.token
      if not is_stale then return quick_held() end
    end
  end
  local is_alone = holder_count == 1 and behind == 1 and waiting + aside == 0 and minexp > now
  if verb == 'release' and op.ending == 'done' and is_alone and found[2] then
    local own, is_behind = read_lease(op.id, found[2]), redis.call('ZSCORE', base .. 'b:' .. key, op.id)
    if is_behind and belongs_to(own, op.token) then return quick_drop(own) end
  end
end
