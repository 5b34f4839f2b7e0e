-- Hand tasks to a node: those whose turn it is, each domain in its turn.
--
-- KEYS   base; the key of the start URLs; the key that tells of the first requests (base: none)
-- ARGV   node, its lease (ms; 0: none), tasks wanted, tasks of one domain at most, deliveries
--        allowed, the epoch it knows (empty: none), an epoch to begin, start URLs wanted; the number
--        of this process, of how many, and the places of a domain that they divide (0: they do not);
--        and the domains it wants nothing of
-- Returns {epoch, tasks in all, with nodes, delayed, ms until the next may go (-1: none), start
--          state, {id, delivery, payload, ...}, {id, payload, ... that are dead now}}
-- or only {epoch}: it is not the one the node knows.

local node, lease, wanted, width = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local allowed, some = tonumber(ARGV[5]), 200

redis.call('ZADD', base .. ':nodes', now, node)
local epoch = redis.call('GET', base .. ':epoch')
if not epoch and ARGV[6] == '' then
  epoch = ARGV[7]
  redis.call('SET', base .. ':epoch', epoch)
end
if ARGV[6] ~= '' and epoch ~= ARGV[6] then return {epoch or ''} end

-- Tasks whose nodes were not heard of in time.
local dead = {}
for _, id in ipairs(redis.call('ZRANGEBYSCORE', leases, '-inf', now, 'LIMIT', 0, some)) do
  local deliveries, score, sequence, domain = read_info(id)
  redis.call('ZREM', leases, id)
  redis.call('HDEL', owners, id)
  if deliveries and tonumber(deliveries) >= allowed then
    local at = #dead
    dead[at + 1], dead[at + 2] = id, redis.call('HGET', tasks, id)
    bury(id)
  elseif deliveries then
    line_up(id, score, sequence, domain)
  end
end
-- Tasks that are due now.
for _, id in ipairs(redis.call('ZRANGEBYSCORE', delayed, '-inf', now, 'LIMIT', 0, some)) do
  local _, score, sequence, domain = read_info(id)
  redis.call('ZREM', delayed, id)
  if score then line_up(id, score, sequence, domain) end
end
redis.call('ZREMRANGEBYSCORE', rests, '-inf', now)
-- Start URLs become tasks, so that none is lost on its way.
local seeds = KEYS[2] ~= base and tonumber(ARGV[8]) or 0
if seeds > 0 then
  local key = KEYS[2]
  local kind, found = redis.call('TYPE', key)['ok'], {}
  if kind == 'list' then
    found = redis.call('LRANGE', key, 0, seeds - 1)
    redis.call('LTRIM', key, seeds, -1)
  elseif kind == 'set' then
    found = redis.call('SPOP', key, seeds)
  elseif kind == 'zset' then
    found = redis.call('ZREVRANGE', key, 0, seeds - 1)
    redis.call('ZREMRANGEBYRANK', key, -seeds, -1)
  end
  for _, data in ipairs(found) do
    local sequence = string.format('%014x', redis.call('INCR', base .. ':sequence'))
    local id = 'seed-' .. sequence
    redis.call('HSET', tasks, id, 'S' .. data)
    write_info(id, 0, 0, sequence, '')
    line_up(id, 0, sequence, '')
  end
end

local unwanted = {}
for at = 12, #ARGV do unwanted[ARGV[at]] = true end
local number, count, places = tonumber(ARGV[9]), tonumber(ARGV[10]), tonumber(ARGV[11])
-- A domain that has fewer places than there are processes is left to some of them (Share.of).
local function is_ours(name)
  if places == 0 or places >= count or name == '' then return true end
  return (tonumber(string.sub(redis.sha1hex(name), 1, 8), 16) + number) % count < places
end
local names, offset, page = {}, 0, 64
while #names < wanted do
  local found = redis.call('ZRANGEBYSCORE', domains, '-inf', now, 'LIMIT', offset, page)
  for _, name in ipairs(found) do
    if #names < wanted and not unwanted[name] and is_ours(name) then names[#names + 1] = name end
  end
  if #found < page then break end
  offset = offset + page
end
local share = math.max(1, math.ceil(wanted / math.max(1, #names)))
local ids, deliveries_of = {}, {}
for _, name in ipairs(names) do
  if #ids >= wanted then break end
  local own = tonumber(redis.call('HGET', base .. ':widths', name) or width)
  local count = math.min(share, own, wanted - #ids)
  local line = base .. ':ready:' .. name
  local members = redis.call('ZRANGE', line, 0, count - 1)
  if #members > 0 then redis.call('ZREMRANGEBYRANK', line, 0, #members - 1) end
  if #members < count or redis.call('EXISTS', line) == 0 then
    redis.call('ZREM', domains, name)
    redis.call('HDEL', base .. ':widths', name)
  else
    redis.call('ZADD', domains, now, name)  -- behind those whose turn comes
  end
  for _, member in ipairs(members) do
    local id = string.sub(member, 15)
    local deliveries, score, sequence, domain = read_info(id)
    if deliveries then
      ids[#ids + 1] = id
      deliveries_of[#ids] = tonumber(deliveries) + 1
      if lease > 0 then
        write_info(id, deliveries_of[#ids], score, sequence, domain)
        redis.call('HSET', owners, id, node .. ':' .. deliveries_of[#ids])
        redis.call('ZADD', leases, now + lease, id)
      end
    end
  end
end
local given = {}
if #ids > 0 then
  local payloads = redis.call('HMGET', tasks, unpack(ids))
  for place, id in ipairs(ids) do
    if payloads[place] then
      local at = #given
      given[at + 1], given[at + 2], given[at + 3] = id, deliveries_of[place], payloads[place]
    end
    if lease == 0 or not payloads[place] then remove(id) end
  end
end
local wake = -1
for _, key in ipairs({domains, delayed, leases}) do
  local after = key == domains and '(' .. now or '-inf'
  local first = redis.call('ZRANGEBYSCORE', key, after, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  if first and (wake < 0 or tonumber(first) - now < wake) then
    wake = math.max(0, tonumber(first) - now)
  end
end
return {
  epoch, redis.call('HLEN', tasks), redis.call('ZCARD', leases), redis.call('ZCARD', delayed), wake,
  KEYS[3] ~= base and redis.call('GET', KEYS[3]) or '', given, dead,
}
