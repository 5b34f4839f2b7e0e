-- Decide which node yields the first requests.
--
-- KEYS   base; (unused); the key that tells of the first requests
-- ARGV   node; "claim", "done" or "free"; ms: what is claimed must be renewed within, or, of
--        "done", the time for which it is kept (0: until the run is over); ms since when the node is
--        on its way: a run that ended later is the one that it came for
-- Returns what is said of them now: "running:NODE", "done", "over", or nothing

local key, mine = KEYS[3], 'running:' .. ARGV[1]
local state = redis.call('GET', key)
if ARGV[2] == 'claim' then
  local ended = redis.call('GET', base .. ':ended')
  if not state and ended and tonumber(ended) > now - ARGV[4] then return 'over' end
  if not state or state == mine then
    redis.call('SET', key, mine, 'PX', ARGV[3])
    state = mine
  end
elseif state == mine and ARGV[2] == 'done' then
  state = 'done'
  if tonumber(ARGV[3]) > 0 then
    redis.call('SET', key, state, 'PX', ARGV[3])
  else
    redis.call('SET', key, state)
  end
elseif state == mine then
  redis.call('DEL', key)
  state = false
end
return state or ''
