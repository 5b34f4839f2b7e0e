-- A node comes. The first one, with nothing left to do, begins a run.
--
-- KEYS   base; the filter's key (base: none)
-- ARGV   node; 1: the filter went with the last run; ms after which a node without tasks that was
--        not heard of is gone
-- Returns {other nodes, tasks}

local others = redis.call('ZCOUNT', base .. ':nodes', now - ARGV[3], '+inf')
local left = redis.call('HLEN', tasks)
-- The last node of the last run may have been killed before it could.
if others == 0 and left == 0 and ARGV[2] == '1' then forget(KEYS[2]) end
redis.call('ZADD', base .. ':nodes', now, ARGV[1])
return {others, left}
