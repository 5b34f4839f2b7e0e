-- A node comes. The first one, with nothing left to do, begins a run.
--
-- KEYS   base; the filter's key (base: none); the key that tells of the first requests (base: none)
-- ARGV   node; 1: the filter went with the last run; ms after which a node without tasks that was
--        not heard of is gone; 1: the run has a name, so it may be over for good; ms after which a
--        node that is gone is forgotten
-- Returns {other nodes, tasks}

for _, name in ipairs(redis.call('ZRANGEBYSCORE', base .. ':nodes', '-inf', now - ARGV[5])) do
  redis.call('ZREM', base .. ':nodes', name)
  redis.call('HDEL', base .. ':about', name)
end
local others = redis.call('ZCOUNT', base .. ':nodes', now - ARGV[3], '+inf')
local left = redis.call('HLEN', tasks)
-- The last node of the last run was stopped, or killed, before it could say that the run is over.
if others == 0 and left == 0 then
  if ARGV[2] == '1' then forget(KEYS[2]) end
  if ARGV[4] == '0' and KEYS[3] ~= base and redis.call('GET', KEYS[3]) == 'done' then
    redis.call('DEL', KEYS[3])
  end
end
redis.call('ZADD', base .. ':nodes', now, ARGV[1])
return {others, left}
