-- A set of keys, shared by processes.
--
-- KEYS[1]  the set
-- ARGV     "has" or "add"; seconds to live (0: for ever); then the keys
-- Returns  {"10..." (has: known; add: new), size of the set, 0}

local adding, ttl = ARGV[1] == 'add', tonumber(ARGV[2])
local command = adding and 'SADD' or 'SISMEMBER'
local flags = {}
for place = 3, #ARGV do flags[place - 2] = redis.call(command, KEYS[1], ARGV[place]) end
if adding and ttl > 0 then redis.call('EXPIRE', KEYS[1], ttl) end
return {table.concat(flags), redis.call('SCARD', KEYS[1]), 0}
