-- The quick ways, where no task is in line and no lease is dead: a grant, its repetition, a refusal and a
-- release; and the grant and the release of the only holder with its message behind it, also if it has held
-- the key for a message that was queued. Of a key with many holders the expiry of each lease is in an index; the
-- long way makes the index, and deletes it. And the place of a message that is published: for a free key, with
-- its grant if no other has joined the line by then; and behind the line, if there is nothing to offer.
-- A key with rates has the ways of a free key, and of the end of its run, too. One with other terms, with parts, or
-- with a run of several units has none: its data match no pattern.
--
-- They come before all else is defined, and leave numbers as texts: a script pays for each line that it passes,
-- and for each local function most of all.
-- step.lua does the same, and a differential test holds the two equal.

local refused_by = nil -- how many holders
local meta_text -- what the key's hash has at '', false without one

local is_plain = not (op.cost or op.part) -- of one unit, and a key without parts
local terms, rates_end = '', 0 -- the lines of the rates, and when no start of them counts any more

-- Reads the rates before a document, as they count now with so many starts more. Returns the document; nil: the operation
-- has other rates, or they have no room.
local read_rates = (op.rates or verb == 'release') and function(text, starts)
  local at, lines, wanted = 1, {}, op.rates
  if not wanted then
    for rate in string.gmatch(text, 'rate (%d+ %d+)') do wanted = (wanted or '') .. rate .. ' ' end
  end
  for units, period in string.gmatch(wanted or '', '(%d+) (%d+)') do
    local log, free, span, kept = '', tonumber(units), tonumber(period), {}
    if text ~= '' then
      local known_units, known_period, known, behind = string.match(text, '^rate (%d+) (%d+)([%d ]*)\n()', at)
      if known_units ~= units or known_period ~= period or free == 0 then return nil end
      log, at = known, behind
    end
    for first, last, count in string.gmatch(log, '(%d+) (%d+) (%d+)') do
      if tonumber(last) > now then return nil end
      if last + span > now then
        free = free - count
        kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = first, last, count
      end
    end
    if free < 1 and verb ~= 'release' then return nil end
    if starts > 0 and #kept > 0 and now - kept[#kept - 2] <= math.floor(span / 32) then
      kept[#kept - 1], kept[#kept] = whole(now), whole(kept[#kept] + starts)
    elseif starts > 0 then
      kept[#kept + 1], kept[#kept + 2], kept[#kept + 3] = whole(now), whole(now), starts
    end
    if #kept > 0 then rates_end = math.max(rates_end, kept[#kept - 1] + span) end
    lines[#lines + 1] = table.concat({'rate', units, period, unpack(kept)}, ' ') .. '\n'
  end
  terms = table.concat(lines)
  return string.sub(text, at)
end

if verb == 'acquire' or verb == 'acquire_alone' or verb == 'release' then
  local key, id, token = ARGV[3], op.id, op.token
  local leases = base .. 'l:' .. key
  local found = redis.call('HMGET', leases, '', id)
  meta_text = found[1]
  local document = meta_text or ''
  if op.rates or verb == 'release' and string.find(document, '^rate') then
    document = read_rates(document, op.rates and 1 or 0) or '-'
  end
  local limit, count, minexp, maxexp, behind = '1', 0, '0', '0', '0'
  if document ~= '' then
    limit, count, minexp, maxexp, behind = string.match(document, '^(%d+) (%d+) (%d+) (%d+) 0 0 ([01])$')
    count = tonumber(count)
  end
  local expiry, fence, copies, phase, secret
  if found[2] then expiry, fence, copies, phase, secret = string.match(found[2], '^(%d+) (%d+) (%d) (%a+) (.*)$') end
  local is_free = count == 0 and not found[2]
  local is_quick = is_plain and (is_free or minexp and tonumber(minexp) > now and (expiry or not found[2]))
  local is_mine = expiry and (phase ~= 'running' or secret == token)

  if verb == 'release' and is_quick and is_mine and (copies == '0' or op.ending == 'done') then
    local is_over = true
    local idle = rates_end > now and terms .. limit .. ' 0 ' .. whole(NEVER) .. ' 0 0 0 0'
    if behind == '0' and count == 1 then
      redis.call('DEL', leases)
    elseif behind == '0' and count ~= NAMED + 1 then
      if count > NAMED then redis.call('ZREM', base .. 'x:' .. key, id) end
      redis.call('HDEL', leases, id)
      redis.call('HSET', leases, '', terms .. limit .. ' ' .. count - 1 .. ' ' .. minexp .. ' ' .. maxexp .. ' 0 0 0')
    elseif behind == '1' and op.ending ~= 'open' and count == 1 and redis.call('ZSCORE', base .. 'b:' .. key, id) then
      redis.call('DEL', leases, base .. 'b:' .. key, base .. 'o:' .. key, base .. 'm:' .. key)
      redis.call('ZREM', base .. 'due', key)
    else
      is_over = false
    end
    if is_over and count == 1 and idle then
      redis.call('HSET', leases, '', idle)
      expire(leases, rates_end)
    end
    if is_over and copies == '1' then
      local _, life = string.match(ARGV[7], SETTINGS)
      put_tombstone(base .. 't:' .. #key .. ':' .. key .. ':' .. id, token, tonumber(life))
    end
    if is_over then return 1 end
  end

  local is_acquire, most = verb == 'acquire', verb == 'acquire' and tonumber(op.limit) or 1
  local is_first = is_acquire and not (op.redelivered or op.promoted or op.takes_over_id)
    or verb == 'acquire_alone' and not op.inherits_id
  if is_quick and is_first and behind == '0' then
    local mark_name = base .. 't:' .. #key .. ':' .. key .. ':' .. id
    local is_known = not expiry and (is_acquire or is_free or op.repeated) and redis.call('GET', mark_name)
    local is_new = not expiry and count < most and count ~= NAMED and not is_known and (not op.recovers or op.message and is_free)
    local is_kept = op.recovers and op.message and count == 1 and expiry and phase ~= 'running'
    local is_again = is_mine and terms == '' and (is_kept or not op.recovers) -- a queued lease belongs to its id
    if is_new or is_again then
      local longest, drawn = now + op.ttl, nil
      local is_renewed = is_again and is_acquire and phase == 'running'
      if is_renewed then longest = math.max(longest, tonumber(expiry)) end
      local ends, is_longest = whole(longest), longest > tonumber(maxexp) or is_again and count == 1 and not is_renewed
      if is_new then
        drawn = next_fence()
        fence, copies, count = whole(drawn), '0', count + 1
        local refused = push()
        if refused then return refused end
      elseif is_kept then -- first: what follows is allowed then when memory is full
        redis.call('PERSIST', leases)
      elseif is_longest then
        expire(leases, longest)
      end
      if is_acquire then limit = op.limit end
      if is_new and count == 1 or longest < tonumber(minexp) then minexp = ends end
      if is_longest then maxexp = ends end
      if op.recovers then behind = '1' end
      local meta = terms .. limit .. ' ' .. count .. ' ' .. minexp .. ' ' .. maxexp .. ' 0 0 ' .. behind
      redis.call('HSET', leases, '', meta, id, ends .. ' ' .. fence .. ' ' .. copies .. ' ' .. op.phase .. ' ' .. token)
      if count > NAMED then
        redis.call('ZADD', base .. 'x:' .. key, ends, id)
        expire(base .. 'x:' .. key, tonumber(maxexp))
      end
      if op.list and is_new then put_tombstone(mark_name, SENT, SENT_LIFE) end
      if op.recovers then
        redis.call('ZADD', base .. 'b:' .. key, fence, id)
        redis.call('HSET', base .. 'o:' .. key, id, (op.order == 'published' and '0 3 ' or '0 1 ') .. fence)
        redis.call('HSET', base .. 'm:' .. key, id, op.message)
        redis.call('ZADD', base .. 'due', ends, key)
        if terms ~= '' then redis.call('PERSIST', leases) end
      elseif is_new and (is_longest or terms ~= '') then
        expire(leases, math.max(longest, tonumber(maxexp), rates_end))
      end
      return drawn or tonumber(fence)
    end
    local is_refused = not expiry and not is_known and count >= most and (not op.message or op.at_once) and not op.repeated
    refused_by = is_refused and count
  end

  -- The grant of the only message in line, which has or had an offer. Removed first: what follows is allowed then when
  -- memory is full.
  if is_acquire and is_plain and meta_text and not op.takes_over_id and string.find(document .. ' /', '^%d+ 0 %d+ %d+ 1 0 0 %D') then
    local offer_name = base .. 'o:' .. key
    local offers, seq = string.match(redis.call('HMGET', offer_name, id)[1] or '', '^%d+ (%d+) (%d+)$')
    local is_only_copy = tonumber(offers) == PUBLISHED and (op.promoted or '') ~= '' and not op.redelivered
    if seq and redis.call('ZREM', base .. 'q:' .. key, id) == 1 then
      local drawn = next_fence()
      local ends, is_kept = whole(now + op.ttl), op.recovers and op.message
      behind = (is_kept or op.acks_late) and '1' or '0'
      local meta = terms .. op.limit .. ' 1 ' .. ends .. ' ' .. ends .. ' 0 0 ' .. behind
      local copies = is_only_copy and ' 0' or ' 1'
      redis.call('HSET', leases, '', meta, id, ends .. ' ' .. whole(drawn) .. copies .. ' running ' .. token)
      if behind == '1' then
        redis.call('ZADD', base .. 'b:' .. key, seq, id)
        redis.call('HSET', offer_name, id, (op.order == 'published' and '0 3 ' or '0 1 ') .. seq)
        if is_kept then redis.call('HSET', base .. 'm:' .. key, id, op.message) end
        redis.call('ZADD', base .. 'due', ends, key)
      else
        redis.call('DEL', offer_name, base .. 'm:' .. key)
        redis.call('ZREM', base .. 'due', key)
        expire(leases, math.max(now + op.ttl, rates_end))
      end
      local _, life = string.match(ARGV[7], SETTINGS)
      local name = base .. 't:' .. #key .. ':' .. key .. ':' .. id
      if is_only_copy then
        put_tombstone(name, SENT, SENT_LIFE)
      elseif behind == '0' then
        put_tombstone(name, BEGUN, tonumber(life))
      end
      return drawn
    end
  end
end

if verb == 'enqueue' and is_plain and not (op.expires_in or op.gives_up_in or op.replaces or op.waits_for) then
  local key, id = ARGV[3], op.id
  local leases, messages = base .. 'l:' .. key, base .. 'm:' .. key
  local found = redis.call('HMGET', leases, '', id)
  meta_text = found[1]
  local is_new = not found[2] and not redis.call('GET', base .. 't:' .. #key .. ':' .. key .. ':' .. id)
  local document = op.rates and (read_rates(meta_text or '', 0) or '-') or meta_text or ''
  if is_new and (document == '' or string.find(document, '^%d+ 0 %d+ 0 0 0 0$')) then
    local drawn = next_fence()
    local seq, offer_until = whole(drawn), whole(now + PUBLISHED_OFFER)
    local refused = push()
    if refused then return refused end
    local in_line = op.queue and ' ' .. op.queue or ''
    redis.call('HSET', leases, '', terms .. op.limit .. ' 0 ' .. whole(NEVER) .. ' 0 1 0 0' .. in_line)
    if meta_text then redis.call('PERSIST', leases) end
    redis.call('ZADD', base .. 'q:' .. key, seq, id)
    redis.call('HSET', base .. 'o:' .. key, id, offer_until .. ' ' .. PUBLISHED .. ' ' .. seq)
    redis.call('HSET', messages, id, op.message)
    redis.call('ZADD', base .. 'due', offer_until, key)
    return drawn
  end
  local head, waiting, others, in_line = string.match(meta_text or '', '^(%d+ %d+ %d+ %d+) (%d+) (%d+ %d+)(.*)$')
  local limit, count, minexp = string.match(head or '', '^(%d+) (%d+) (%d+)')
  local own_queue = op.queue and ' ' .. op.queue or ''
  if waiting == '0' and in_line == '' then in_line = own_queue end
  local is_of_queue = in_line == '' or in_line == own_queue -- else there is a deadline, or another queue
  local slots = limit == op.limit and is_of_queue and tonumber(minexp) > now and limit - count
  if is_new and slots == 1 and waiting ~= '0' and string.sub(others, 1, 2) == '0 ' then
    -- The first in line has no offer that lasts longer than it may with others behind it.
    local first, first_offer = redis.call('ZRANGE', base .. 'q:' .. key, 0, 0)[1], string.match(ARGV[7], SETTINGS)
    local offer_until, offers = string.match(redis.call('HMGET', base .. 'o:' .. key, first or '')[1] or '', '^(%d+) (%d+) %d+$')
    local longest = (tonumber(offers) == PUBLISHED and 1 or LONGEST_OFFER) * tonumber(first_offer)
    if offer_until and offer_until - now <= longest then slots = 0 end
  end
  if is_new and slots and slots <= 0 and not redis.call('HMGET', messages, id)[1] then
    local drawn = next_fence()
    redis.call('HSET', messages, id, op.message)
    redis.call('ZADD', base .. 'q:' .. key, whole(drawn), id)
    redis.call('HSET', leases, '', head .. ' ' .. waiting + 1 .. ' ' .. others .. in_line)
    if waiting == '0' then
      redis.call('PERSIST', leases)
      redis.call('ZADD', base .. 'due', minexp, key)
    end
    return {waiting + 1, drawn}
  end
end

if verb == 'reap' then
  write_when_full()
  local last, epoch = tonumber(redis.call('GET', base .. 'reaped')), redis.call('GET', base .. 'epoch')
  if epoch and last and last <= now and now < last + tonumber(op.every) then
    return {'done', 0, {}, epoch, {}, {}, {}, now, 0}
  end
end
