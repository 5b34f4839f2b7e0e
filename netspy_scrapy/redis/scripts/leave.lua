-- A node leaves. The last one, with nothing left to do, ends the run.
--
-- KEYS   base; the filter's key; the key that tells of the first requests (base: none)
-- ARGV   node; 1: it found the crawl done; 1: the filter goes with the run; ms after which a node
--        without tasks that was not heard of is gone; ms for which nodes that were on their way are
--        told that the run is over; ms for which all are, as it has a name (0: it has none)
-- Returns {1 if the run is over, nodes that are left}

redis.call('ZREM', base .. ':nodes', ARGV[1])
redis.call('HDEL', base .. ':about', ARGV[1])
local left = redis.call('ZCOUNT', base .. ':nodes', now - ARGV[4], '+inf')
local over = ARGV[2] == '1' and left == 0 and redis.call('HLEN', tasks) == 0
if over then
  redis.call('DEL', base .. ':sequence', base .. ':widths', base .. ':nodes', base .. ':about')
  if tonumber(ARGV[6]) == 0 then
    redis.call('SET', base .. ':ended', string.format('%.0f', now), 'PX', ARGV[5], 'NX')
  end
  if KEYS[3] ~= base and tonumber(ARGV[6]) > 0 then
    redis.call('SET', KEYS[3], 'over', 'PX', ARGV[6])
  elseif KEYS[3] ~= base then
    redis.call('DEL', KEYS[3])
  end
  if ARGV[3] == '1' then
    for _, key in ipairs(filter_keys(KEYS[2])) do redis.call('PEXPIRE', key, ARGV[5]) end
  end
end
return {over and 1 or 0, left}
