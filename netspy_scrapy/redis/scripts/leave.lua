-- A node leaves. The last one, with nothing left to do, ends the run.
--
-- KEYS   base; the filter's key; the key that tells of the first requests (base: none)
-- ARGV   node; 1: it found the crawl done; 1: the filter goes with the run; ms after which a node
--        without tasks that was not heard of is gone; ms for which late nodes are told that the run
--        is over; 1: the run has a name, and is over for all who come
-- Returns {1 if the run is over, nodes that are left}

redis.call('ZREM', base .. ':nodes', ARGV[1])
redis.call('HDEL', base .. ':about', ARGV[1])
local left = redis.call('ZCOUNT', base .. ':nodes', now - ARGV[4], '+inf')
local over = ARGV[2] == '1' and left == 0 and redis.call('HLEN', tasks) == 0
if over then
  redis.call('DEL', base .. ':sequence', base .. ':widths', base .. ':nodes', base .. ':about')
  if KEYS[3] ~= base and tonumber(ARGV[5]) > 0 then
    local state = ARGV[6] == '1' and 'over' or string.format('over:%.0f', now)
    redis.call('SET', KEYS[3], state, 'PX', ARGV[5])
  end
  if ARGV[3] == '1' then forget(KEYS[2]) end
end
return {over and 1 or 0, left}
