-- The time at which a domain may be asked next, for all nodes together.
--
-- KEYS   base: base:next:D is the time (ms) of domain D's next place, base:rest:D the end of a rest
-- ARGV   "take", domain, gap (ms), or "rest", domain, ms; and so on
-- Returns for each "take" how long (microseconds) that request has to wait
--
-- The clock is this server's: those of nodes differ.

local clock = redis.call('TIME')
local now = clock[1] * 1000 + clock[2] / 1000
local waits = {}
for at = 1, #ARGV, 3 do
  local number = tonumber(ARGV[at + 2])
  local place, rest = KEYS[1] .. ':next:' .. ARGV[at + 1], KEYS[1] .. ':rest:' .. ARGV[at + 1]
  local resting = tonumber(redis.call('GET', rest) or 0)
  if ARGV[at] == 'rest' then
    local till = math.max(resting, now + number)
    redis.call('SET', rest, till, 'PX', math.ceil(till - now) + 1)
  else
    local turn = math.max(now, resting, tonumber(redis.call('GET', place) or 0))
    if number > 0 then
      redis.call('SET', place, turn + number, 'PX', math.ceil(turn + number - now) + 1)
    end
    waits[#waits + 1] = math.ceil((turn - now) * 1000)  -- microseconds: numbers become whole
  end
end
return waits
