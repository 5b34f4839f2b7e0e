-- A scalable bloom filter on plain bitmaps, shared by processes.
--
-- KEYS[1]  a hash: layers, and for each layer (from 0) its bits, hashes, capacity and count.
--          The bitmaps are KEYS[1]:0, KEYS[1]:1 ... (its hash tag keeps them on one node).
-- ARGV     "has" or "add"; seconds to live (0: for ever); number of layers allowed;
--          bits, hashes, capacity of each of these; then the keys, each as 48-bit words.
-- Returns  {"10..." (has: known; add: new), keys that were added in all, 1 if it is full}
--
-- A layer keeps the shape that it was made with, whatever later callers would give it.

local base, adding, ttl, allowed = KEYS[1], ARGV[1] == 'add', tonumber(ARGV[2]), tonumber(ARGV[3])
local first = 4 + 3 * allowed
local names = {'bits', 'hashes', 'capacity', 'count'}
local layers, total = {}, 0
local group = 100  -- keys of one command: Lua passes no more than 8,000 arguments

local function load(index)
  local fields = {}
  for place, name in ipairs(names) do fields[place] = name .. index end
  local values = redis.call('HMGET', base, unpack(fields))
  local layer = {key = base .. ':' .. index, grown = 0}
  for place, name in ipairs(names) do layer[name] = tonumber(values[place]) end
  total = total + layer.count
  layers[#layers + 1] = layer
end

local function grow()
  local index = #layers
  for place = 1, 3 do
    redis.call('HSET', base, names[place] .. index, ARGV[3 + 3 * index + place])
  end
  redis.call('HSET', base, 'count' .. index, 0)
  redis.call('HSET', base, 'layers', index + 1)
  load(index)
  local layer = layers[#layers]
  redis.call('SETBIT', layer.key, layer.bits - 1, 0)  -- all of its memory at once
end

-- Get the bits of keys (places in ARGV) in a layer, or set them, one key after the other; return
-- for each whether all of its bits were set. One command for all: calls cost more than bits.
local function all_set(layer, places, action)
  local command, size = {}, 0
  for _, place in ipairs(places) do
    for start = 1, 6 * layer.hashes, 6 do
      local bit = struct.unpack('<I6', ARGV[place], start) % layer.bits
      command[size + 1], command[size + 2], command[size + 3] = action, 'u1', bit
      size = size + 3
      if action == 'SET' then
        size = size + 1
        command[size] = 1
      end
    end
  end
  local bits = size > 0 and redis.call('BITFIELD', layer.key, unpack(command))
  local answers, at = {}, 0
  for _, place in ipairs(places) do
    answers[place] = true
    for _ = 1, layer.hashes do
      at = at + 1
      if bits[at] == 0 then answers[place] = false end
    end
  end
  return answers
end

-- Return which keys the first *count* layers have, and those that none of them has.
local function known(from, to, count)
  local found, left = {}, {}
  for place = from, to do left[#left + 1] = place end
  for index = 1, count do
    local still = {}
    for place, is_there in pairs(all_set(layers[index], left, 'GET')) do
      found[place] = is_there
      if not is_there then still[#still + 1] = place end
    end
    table.sort(still)
    left = still
  end
  return found, left
end

local function room(layer)
  return layer.capacity - layer.count - layer.grown
end

-- Put keys into the last layer, as far as it has room; return which were known, and how far.
local function add(from, to)
  if #layers == 0 or (room(layers[#layers]) <= 0 and #layers < allowed) then grow() end
  local last = layers[#layers]
  if room(last) > 0 then to = math.min(to, from + room(last) - 1) end
  local found, fresh = known(from, to, #layers - 1)
  for place, was_there in pairs(all_set(last, fresh, 'SET')) do
    found[place] = was_there
    if not was_there then
      last.grown = last.grown + 1
      total = total + 1
    end
  end
  return found, to
end

for index = 0, tonumber(redis.call('HGET', base, 'layers') or 0) - 1 do load(index) end
local flags, from = {}, first
while from <= #ARGV do
  local to, found = math.min(from + group - 1, #ARGV)
  if adding then found, to = add(from, to) else found = known(from, to, #layers) end
  for place = from, to do
    -- "has" tells what is known, "add" what is new.
    flags[#flags + 1] = (found[place] or false) ~= adding and '1' or '0'
  end
  from = to + 1
end
for index, layer in ipairs(layers) do
  if layer.grown > 0 then
    redis.call('HINCRBY', base, 'count' .. (index - 1), layer.grown)
  end
  if adding and ttl > 0 then redis.call('EXPIRE', layer.key, ttl) end
end
if adding and ttl > 0 then redis.call('EXPIRE', base, ttl) end
local full = #layers >= allowed and #layers > 0 and room(layers[#layers]) <= 0
return {table.concat(flags), total, full and 1 or 0}
