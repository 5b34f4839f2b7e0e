-- Decide which node yields the first requests.
--
-- KEYS   base; (unused); the key that tells of the first requests
-- ARGV   node; "claim", "done" or "free"; ms: what is claimed must be renewed within, or, of
--        "done", the time for which it is kept (0: until the run is over); ms since this process, or
--        the last crawl in it, ended: what was over by then is another run
-- Returns what the key says now: "running:NODE", "done", "over" (a run with a name), "over:MS" (when
--        it was), or nothing

local key, mine = KEYS[3], 'running:' .. ARGV[1]
local state = redis.call('GET', key)
if ARGV[2] == 'claim' then
  local ended = state and tonumber(string.match(state, '^over:(%d+)$'))
  if not state or state == mine or (ended and ended <= now - ARGV[4]) then
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
