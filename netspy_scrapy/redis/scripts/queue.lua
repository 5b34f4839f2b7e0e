-- What the scripts of the queue share; it stands before each of them.
--
-- KEYS[1] is the base of all keys of a queue:
--   :tasks    hash   id -> payload: all that is not acknowledged
--   :info     hash   id -> deliveries:score:sequence:domain
--   :ready:D  zset   the ready tasks of domain D, by score: sequence (14 hex digits), id
--   :domains  zset   domains that have ready tasks, by the time (ms) from which they may be asked
--   :rests    zset   domains that rest, by the end (ms)
--   :widths   hash   domain -> how many of its tasks a node gets at once at most
--   :delayed  zset   tasks that are not due, by the time (ms) they are
--   :leases   zset   tasks that a node has, by the time (ms) at which it loses them
--   :owners   hash   id -> token: node:delivery
--   :dead     hash   id -> payload: tasks that were handed out too often; :info keeps the rest
--   :nodes    zset   nodes, by the time (ms) they were last heard of;  :about  hash node -> text
--   :released set    fingerprints that a bloom filter has and that count as unknown
--   :epoch    string lost when somebody empties the server
--   :ended    string when (ms) the last run was over; kept for a while
-- Times are this server's: those of nodes differ.

local base = KEYS[1]
local tasks, info, domains, rests = base .. ':tasks', base .. ':info', base .. ':domains', base .. ':rests'
local delayed, leases, owners = base .. ':delayed', base .. ':leases', base .. ':owners'
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

-- Return deliveries, score, sequence and domain of a task; nothing, if it is gone.
local function read_info(id)
  local text = redis.call('HGET', info, id)
  if not text then return nil end
  return string.match(text, '^(%d+):([^:]*):(%x+):(.*)$')
end

local function write_info(id, deliveries, score, sequence, domain)
  redis.call('HSET', info, id, deliveries .. ':' .. score .. ':' .. sequence .. ':' .. domain)
end

-- Put a task into its domain's line. A domain that has one already keeps its turn.
local function line_up(id, score, sequence, domain)
  redis.call('ZADD', base .. ':ready:' .. domain, score, sequence .. id)
  local rest = redis.call('ZSCORE', rests, domain)
  local from = rest and math.max(now, tonumber(rest)) or now
  redis.call('ZADD', domains, 'NX', string.format('%.0f', from), domain)
end

local function remove(id)
  redis.call('HDEL', tasks, id)
  redis.call('HDEL', info, id)
  redis.call('HDEL', owners, id)
  redis.call('ZREM', leases, id)
end

local function bury(id)
  redis.call('HSET', base .. ':dead', id, redis.call('HGET', tasks, id))
  redis.call('HDEL', tasks, id)
  redis.call('HDEL', owners, id)
  redis.call('ZREM', leases, id)
end

-- Return the keys of a request filter, whichever kind it is.
local function filter_keys(key)
  if key == base then return {} end
  local keys = {base .. ':released', key}
  local layers = redis.call('TYPE', key)['ok'] == 'hash'
    and tonumber(redis.call('HGET', key, 'layers') or 0) or 0
  for layer = 0, layers - 1 do keys[#keys + 1] = key .. ':' .. layer end
  return keys
end
