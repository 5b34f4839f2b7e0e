-- A node comes. The first one, with nothing left to do, begins a run, unless it was on its way when
-- the last one ended: then it finds the filter of that run, and has nothing to do. (Until another run
-- begins, all others that are here came too late as well.)
--
-- KEYS   base; the filter's key (base: none); the key that tells of the first requests (base: none)
-- ARGV   node; 1: the filter goes with a run; ms after which a node without tasks that was not heard
--        of is gone; 1: the run has a name, so it may be over for good; ms since when the node is on
--        its way; ms after which a node that is gone is forgotten
-- Returns {other nodes, tasks, 1 if the node came too late}

for _, name in ipairs(redis.call('ZRANGEBYSCORE', base .. ':nodes', '-inf', now - ARGV[6])) do
  redis.call('ZREM', base .. ':nodes', name)
  redis.call('HDEL', base .. ':about', name)
end
local others = redis.call('ZCOUNT', base .. ':nodes', now - ARGV[3], '+inf')
local left = redis.call('HLEN', tasks)
local ended, late = redis.call('GET', base .. ':ended'), 0
if left == 0 and ended and tonumber(ended) > now - ARGV[5] then
  late = 1
  for _, key in ipairs(filter_keys(KEYS[2])) do redis.call('PERSIST', key) end
elseif left == 0 and (ended or others == 0) then
  redis.call('DEL', base .. ':ended')
  if ARGV[2] == '1' then
    for _, key in ipairs(filter_keys(KEYS[2])) do redis.call('DEL', key) end
  end
  -- The last node of the last run may have been stopped, or killed, before it could say that it is
  -- over.
  if ARGV[4] == '0' and KEYS[3] ~= base and redis.call('GET', KEYS[3]) == 'done' then
    redis.call('DEL', KEYS[3])
  end
end
redis.call('ZADD', base .. ':nodes', now, ARGV[1])
return {others, left, late}
