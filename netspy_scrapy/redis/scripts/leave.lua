-- A node leaves. The last one, with nothing left to do, ends the run.
--
-- KEYS   base; the filter's key; the key that tells of the first requests (base: none)
-- ARGV   node; 1: it found the crawl done; 1: the filter goes with the run; ms after which a node
--        that has not been heard of is gone; ms for which late nodes are told that the run is over
-- Returns {1 if the run is over, nodes that are left}

redis.call('ZREM', base .. ':nodes', ARGV[1])
redis.call('HDEL', base .. ':about', ARGV[1])
for _, gone in ipairs(redis.call('ZRANGEBYSCORE', base .. ':nodes', '-inf', now - ARGV[4])) do
  redis.call('ZREM', base .. ':nodes', gone)
  redis.call('HDEL', base .. ':about', gone)
end
local left = redis.call('ZCARD', base .. ':nodes')
local over = ARGV[2] == '1' and left == 0 and redis.call('HLEN', tasks) == 0
if over then
  redis.call('DEL', base .. ':sequence', base .. ':widths')
  if KEYS[3] ~= base and tonumber(ARGV[5]) > 0 then
    redis.call('SET', KEYS[3], 'over', 'PX', ARGV[5])
  end
  if ARGV[3] == '1' and KEYS[2] ~= base then
    redis.call('DEL', base .. ':released')
    local layers = redis.call('TYPE', KEYS[2])['ok'] == 'hash'
      and tonumber(redis.call('HGET', KEYS[2], 'layers') or 0) or 0
    for layer = 0, layers - 1 do redis.call('DEL', KEYS[2] .. ':' .. layer) end
    redis.call('DEL', KEYS[2])
  end
end
return {over and 1 or 0, left}
