-- Take from a node that is dead what it has: its tasks are for others at once.
--
-- KEYS   base; (unused); the key that tells of the first requests (base: none)
-- ARGV   node
-- Returns how many tasks it had

local mark, count = ARGV[1] .. ':', 0
local held = redis.call('HGETALL', owners)
for at = 1, #held, 2 do
  if string.sub(held[at + 1], 1, #mark) == mark then
    redis.call('ZADD', leases, 'XX', 0, held[at])  -- the next pop finds that the lease ran out
    count = count + 1
  end
end
if KEYS[3] ~= base and redis.call('GET', KEYS[3]) == 'running:' .. ARGV[1] then
  redis.call('DEL', KEYS[3])
end
redis.call('ZREM', base .. ':nodes', ARGV[1])
redis.call('HDEL', base .. ':about', ARGV[1])
return count
