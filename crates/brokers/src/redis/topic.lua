-- What is kept of a topic. KEYS: its hash and its stream.
-- ARGV: the server's run id, the number of an epoch that begins, messages and milliseconds to keep.
local hash, stream = KEYS[1], KEYS[2]
local messages, age = tonumber(ARGV[3]), tonumber(ARGV[4])
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local sender = 's' .. string.sub(ARGV[6], 3, 10)
local known = redis.call('HMGET', hash, 'run', 'epoch', 'offset', 'time', 'since', 'messages', 'age', sender)
local run, seen = known[1], known[8]
local epoch, offset, time = tonumber(known[2]), tonumber(known[3]), tonumber(known[4])
local since, fewest, shortest = tonumber(known[5]), tonumber(known[6]), tonumber(known[7])

-- After a restart or a failover the newest may be lost, and a server that is short of memory evicts keys.
local lost = run ~= ARGV[1]
-- A key of a cluster that comes from another master which still runs has lost nothing. `peers` has the run ids of the
-- masters, or is '?' if they are to be asked for first.
if lost and run and peers == '?' then
  return redis.error_reply('OTHERRUN ' .. run)
end
if lost and run and peers and string.find(peers, run, 1, true) then
  lost = false
  redis.pcall('HSET', hash, 'run', ARGV[1])
end
if not lost and offset > 0 and time + shortest > now + 10 then
  lost = redis.call('EXISTS', stream) == 0
end
if lost then
  redis.call('DEL', hash, stream)
  epoch, offset, time, since = tonumber(ARGV[2]), 0, now, now
  fewest, shortest, seen = messages, age, false
end
if lost or messages < fewest or age < shortest then
  fewest, shortest = math.min(messages, fewest), math.min(age, shortest)
  -- Without memory for it, another epoch begins with the next publication.
  redis.pcall('HSET', hash, 'run', ARGV[1], 'epoch', epoch, 'offset', offset, 'time', time, 'since', since,
    'messages', fewest, 'age', shortest)
  redis.pcall('PEXPIRE', hash, 10 * age)
end
