-- Let domains rest, for all nodes; and say how many of a domain's tasks a node is to get at once.
--
-- KEYS   base
-- ARGV   "rest", domain, ms, or "width", domain, count; and so on

for at = 1, #ARGV, 3 do
  local domain, number = ARGV[at + 1], tonumber(ARGV[at + 2])
  local waits = redis.call('ZSCORE', domains, domain)
  if ARGV[at] == 'rest' then
    local known = tonumber(redis.call('ZSCORE', rests, domain) or 0)
    local till = math.max(known, now + number)
    redis.call('ZADD', rests, till, domain)
    if waits then redis.call('ZADD', domains, math.max(till, tonumber(waits)), domain) end
  elseif waits then
    redis.call('HSET', base .. ':widths', domain, number)
  end
end
