-- Put tasks into the queue, past the request filter (the function before this text).
--
-- KEYS   base; the filter's key
-- ARGV   number of the filter's arguments, these; then for each task: id, fingerprint (empty: it
--        passes the filter), the fingerprint as the filter takes it (empty: the same), domain,
--        score, delay (ms), payload (empty: only the fingerprint is recorded)
-- Returns {"10..." (1: taken, 0: known), fingerprints in the filter, 1 if it is full}
--
-- To push a task again under the same id changes nothing, so an answer may get lost.

local head = tonumber(ARGV[1])
local first, size = head + 2, 7
local question, places, known, total, full = {'add'}, {}, {}, 0, 0
for at = 2, head + 1 do question[#question + 1] = ARGV[at] end
for at = first, #ARGV, size do
  if ARGV[at + 1] ~= '' then
    places[#places + 1] = at
    question[#question + 1] = ARGV[at + 2] ~= '' and ARGV[at + 2] or ARGV[at + 1]
  end
end
if #places > 0 then
  local answer = filter({KEYS[2]}, question)
  total, full = answer[2], answer[3]
  for place, at in ipairs(places) do
    if string.sub(answer[1], place, place) == '0'
      and redis.call('SREM', base .. ':released', ARGV[at + 1]) == 0
      and redis.call('HEXISTS', tasks, ARGV[at]) == 0 then
      known[at] = true
    end
  end
end
local flags = {}
for at = first, #ARGV, size do
  local id, domain, score, wait = ARGV[at], ARGV[at + 3], ARGV[at + 4], tonumber(ARGV[at + 5])
  if not known[at] and ARGV[at + 6] ~= '' and redis.call('HSETNX', tasks, id, ARGV[at + 6]) == 1 then
    local sequence = string.format('%014x', redis.call('INCR', base .. ':sequence'))
    write_info(id, 0, score, sequence, domain)
    if wait > 0 then
      redis.call('ZADD', delayed, now + wait, id)
    else
      line_up(id, score, sequence, domain)
    end
  end
  flags[#flags + 1] = known[at] and '0' or '1'
end
return {table.concat(flags), total, full}
