-- Joins a run, or begins one if nobody is in it.
-- KEYS: nodes (ZSET by the time they were last heard of), run (its number)
-- ARGV: this node, seconds after which a silent node counts as gone
-- Returns the number of the run.
local now = tonumber(redis.call('TIME')[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', now - tonumber(ARGV[2]))
if redis.call('ZCARD', KEYS[1]) == 0 then
    redis.call('INCR', KEYS[2])
end
redis.call('ZADD', KEYS[1], now, ARGV[1])
return tonumber(redis.call('GET', KEYS[2]) or '0')
