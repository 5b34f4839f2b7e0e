-- Put dead tasks into the queue again, as if they had never been handed out.
--
-- KEYS   base
-- Returns how many

local count = 0
local dead = redis.call('HGETALL', base .. ':dead')
for at = 1, #dead, 2 do
  local id = dead[at]
  local _, score, sequence, domain = read_info(id)
  if score then
    redis.call('HSET', tasks, id, dead[at + 1])
    write_info(id, 0, score, sequence, domain)
    line_up(id, score, sequence, domain)
    redis.call('HDEL', base .. ':dead', id)
    count = count + 1
  end
end
return count
