-- Take back what a node has: tasks that are done, not done, or cannot be read.
--
-- KEYS   base; the filter's key
-- ARGV   how a fingerprint is forgotten ("set": taken out, "bloom": noted beside), the epoch that
--        the node knows; then for each task: "done", "back" or "dead", id, token, a fingerprint to forget (done; may be empty) or
--        a payload that takes the place of the old one (back; may be empty), delay (ms; back)
-- Returns "10...": 0 if another node has the task by now; then nothing was changed. Empty: it is
--        another epoch

if redis.call('GET', base .. ':epoch') ~= ARGV[2] then return '' end
local flags, size = {}, 5
for at = 3, #ARGV, size do
  local what, id, text = ARGV[at], ARGV[at + 1], ARGV[at + 3]
  local own = redis.call('HGET', owners, id) == ARGV[at + 2]
  flags[#flags + 1] = own and '1' or '0'
  if own and what == 'done' then
    remove(id)
    if text ~= '' and ARGV[1] == 'set' then
      redis.call('SREM', KEYS[2], text)
    elseif text ~= '' then
      redis.call('SADD', base .. ':released', text)
    end
  elseif own and what == 'dead' then
    bury(id)
  elseif own then
    local deliveries, score, sequence, domain = read_info(id)
    local wait = tonumber(ARGV[at + 4])
    if text ~= '' then redis.call('HSET', tasks, id, text) end
    redis.call('HDEL', owners, id)
    redis.call('ZREM', leases, id)
    -- It was given back, so it did no harm.
    write_info(id, math.max(0, tonumber(deliveries) - 1), score, sequence, domain)
    if wait > 0 then
      redis.call('ZADD', delayed, now + wait, id)
    else
      line_up(id, score, sequence, domain)
    end
  end
end
return table.concat(flags)
