-- Put back what a node holds, after the server was emptied.
--
-- KEYS   base
-- ARGV   an epoch to begin (another node may have begun one), node, lease (ms); then for each task
--        id, delivery, score, domain, payload
-- Returns {epoch, tasks that were put back}

redis.call('SET', base .. ':epoch', ARGV[1], 'NX')
local count = 0
for at = 4, #ARGV, 5 do
  local id, delivery = ARGV[at], ARGV[at + 1]
  if redis.call('HSETNX', tasks, id, ARGV[at + 4]) == 1 then
    local sequence = string.format('%014x', redis.call('INCR', base .. ':sequence'))
    write_info(id, delivery, ARGV[at + 2], sequence, ARGV[at + 3])
    redis.call('HSET', owners, id, ARGV[2] .. ':' .. delivery)
    redis.call('ZADD', leases, now + ARGV[3], id)
    count = count + 1
  end
end
return {redis.call('GET', base .. ':epoch'), count}
