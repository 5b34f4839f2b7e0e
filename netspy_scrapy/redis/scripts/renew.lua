-- Renew the leases of a node.
--
-- KEYS   base
-- ARGV   node, lease (ms), what the node says of itself, the epoch that it knows; then id and token
--        of each task
-- Returns "10...": 0 if another node has the task by now. Empty: it is another epoch

local flags = {}
redis.call('ZADD', base .. ':nodes', now, ARGV[1])
redis.call('HSET', base .. ':about', ARGV[1], ARGV[3])
if redis.call('GET', base .. ':epoch') ~= ARGV[4] then return '' end
for at = 5, #ARGV, 2 do
  local own = redis.call('HGET', owners, ARGV[at]) == ARGV[at + 1]
  if own then redis.call('ZADD', leases, now + ARGV[2], ARGV[at]) end
  flags[#flags + 1] = own and '1' or '0'
end
return table.concat(flags)
