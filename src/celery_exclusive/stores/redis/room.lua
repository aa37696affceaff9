-- The twin of core/room.py: what a key allows besides its limit, and the room that it has. Part of scripts that
-- read keys.
--
-- The terms of a key are lines of text: "rate units period first last units first last units ...",
-- "limit limit until since by\treason", "opens t", "extra n", "reached place", "shut n", "due t", "done 0 id". A room is
-- a list: of each limit the units that are free, and all of them.

local GRAINS = 32
local KEPT = 31536000000000

local rates, override, opens_at -- rates: a list of {units, period, log}, a log being a flat list of its grains
local extra_units               -- the units that leases hold beyond one each
local parts = {                 -- reached: the place that offers have reached; shut, due: see parts.lua; done: the last run
  SHUT = 's:', IS_SHUT = 8, JOINS = 16, BRING = {acquire = true, enqueue = true, restore = true, set_limit = true, hold = true},
  A_START = 64000, AT_ONCE = 64, LARGEST = 1000, NO_LIMIT = 1000000000,
}

-- What a task leaves of the room; nil if it finds none. A task dearer than a limit needs all of it.
local function take(room, cost)
  local left = {}
  for i = 1, #room, 2 do
    local free, most = room[i] - math.min(cost, room[i + 1]), room[i + 1]
    if free < 0 or most == 0 then return nil end
    left[i], left[i + 1] = free, most
  end
  return left
end

-- The units that a task counts between parts: of the largest limit, or thousandths of that.
function parts.size(room, cost)
  local most = 1
  for i = 2, #room, 2 do
    if room[i] < parts.NO_LIMIT then most = math.max(most, room[i]) end
  end
  if most <= parts.LARGEST then return math.min(cost, most) end
  return math.max(math.floor(math.min(cost, most) * parts.LARGEST / most), 1)
end

-- A rate without the starts that count no more; nil if that is none. A start in the future counts as one of now.
local function rate_at(units, period, log)
  local rate = {units = units, period = period, log = {}}
  for i = 1, #log, 3 do
    local last, size = math.min(log[i + 1], now), #rate.log
    if last + period > now then
      rate.log[size + 1], rate.log[size + 2], rate.log[size + 3] = math.min(log[i], now), last, log[i + 2]
    end
  end
  return (units > 0 or #rate.log > 0) and rate or nil
end

local function free_units(rate)
  local free = rate.units
  for i = 3, #rate.log, 3 do free = free - rate.log[i] end
  return free
end

-- When so many units are free; NEVER if they are more than all.
local function rate_opens(rate, units)
  local free, at = free_units(rate), now
  for i = 1, #rate.log, 3 do
    if free >= units then break end
    free, at = free + rate.log[i + 2], rate.log[i + 1] + rate.period
  end
  return free >= units and at or NEVER
end

-- Counts a start of so many units, of a rate no more than all; with `is_charged` all of these.
local function count_start(units, is_charged)
  for _, rate in ipairs(rates) do
    local log, size = rate.log, #rate.log
    local counted = is_charged and units or math.min(units, rate.units)
    if rate.units > 0 and size > 0 and now - log[size - 2] <= math.floor(rate.period / GRAINS) then
      log[size - 1], log[size] = now, log[size] + counted
    elseif rate.units > 0 then
      log[size + 1], log[size + 2], log[size + 3] = now, now, counted
    end
  end
end

local function numbers_of(text)
  local found = {}
  for number in string.gmatch(text, '%S+') do found[#found + 1] = tonumber(number) end
  return found
end

-- Each of the new rates has the log of the one with its period, or else at its place. Other rates forget no start.
local function set_rates(text)
  local wanted, before, left, is_wanted = numbers_of(text or ''), rates, {}, {}
  rates = {}
  for _, rate in ipairs(before) do left[rate.period] = rate end
  for i = 2, #wanted, 2 do is_wanted[wanted[i]] = true end
  for place = 1, #wanted / 2 do
    local period, other = wanted[2 * place], before[place]
    local known = left[period] or other and not is_wanted[other.period] and left[other.period]
    if known then left[known.period] = nil end
    rates[#rates + 1] = rate_at(wanted[2 * place - 1], period, known and known.log or {})
  end
  for _, rate in ipairs(before) do
    if left[rate.period] == rate then rates[#rates + 1] = rate_at(0, rate.period, rate.log) end
  end
end

-- The time from which on nothing of an idle key's terms counts; 0: nothing does. NEVER: a sweep has to look at its parts.
local function terms_last()
  if parts.due < NEVER then return NEVER end
  local last = math.max(override and math.min(override.ends, now + KEPT) or 0, opens_at)
  for _, rate in ipairs(rates) do
    if #rate.log > 0 then last = math.max(last, rate.log[#rate.log - 1] + rate.period) end
  end
  return last
end

local function terms_text()
  local lines = {}
  for _, rate in ipairs(rates) do
    local words = {'rate', whole(rate.units), whole(rate.period)}
    for i, number in ipairs(rate.log) do words[i + 3] = whole(number) end
    lines[#lines + 1] = table.concat(words, ' ') .. '\n'
  end
  if override then
    lines[#lines + 1] = string.format('limit %.0f %.0f %.0f ', override.limit, override.ends, override.since) .. override.by .. '\n'
  end
  if opens_at > 0 then lines[#lines + 1] = 'opens ' .. whole(opens_at) .. '\n' end
  if extra_units > 0 then lines[#lines + 1] = 'extra ' .. whole(extra_units) .. '\n' end
  if parts.reached > 0 then lines[#lines + 1] = 'reached ' .. whole(parts.reached) .. '\n' end
  if parts.shut > 0 then lines[#lines + 1] = 'shut ' .. whole(parts.shut) .. '\n' end
  if parts.due < NEVER then lines[#lines + 1] = 'due ' .. whole(parts.due) .. '\n' end
  if parts.done ~= '' then lines[#lines + 1] = 'done 0 ' .. parts.done .. '\n' end
  return table.concat(lines)
end

local function read_term(line)
  local name, number, rest = string.match(line, '^(%a+) (%d+) ?(.*)$')
  number = tonumber(number)
  if name == 'rate' then
    local numbers = numbers_of(rest)
    rates[#rates + 1] = rate_at(number, table.remove(numbers, 1), numbers)
  elseif name == 'limit' then
    local ends, since, by = string.match(rest, '^(%d+) (%d+) (.*)$')
    override = {limit = number, ends = tonumber(ends), since = tonumber(since), by = by}
    if override.ends <= now then override = nil end
  elseif name == 'opens' then
    opens_at = number > now and number or 0
  elseif name == 'extra' then
    extra_units = number
  elseif name == 'reached' or name == 'shut' or name == 'due' then
    parts[name] = number
  elseif name == 'done' then
    parts.done = rest
  else
    error('MALFORMED lock: ' .. line)
  end
end

-- Reads what counts now of the terms before a document; returns the document.
local function read_terms(text)
  rates, override, opens_at, extra_units = {}, nil, 0, 0
  parts.reached, parts.shut, parts.due, parts.done = 0, 0, NEVER, ''
  local at = 1
  while true do
    local line, behind = string.match(text, '^(%a[^\n]*)\n()', at)
    if not line then return string.sub(text, at) end
    read_term(line)
    at = behind
  end
end
