-- What is kept after an offset of an epoch (ARGV 5 and 6; 7 the peers), or all if that is not known any more. Returns the
-- epoch, the offset and the time after which nothing is missing, the last offset, and the entries, newest first.
redis.call('XTRIM', stream, 'MINID', '=', now - age)
local after, wanted = tonumber(ARGV[6]), offset
if tonumber(ARGV[5]) == epoch and after <= offset then
  wanted = offset - after
end
local entries = {}
if wanted > 0 then
  entries = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', wanted)
end
local floor, floor_ms = offset, since
local oldest = entries[#entries]
if oldest then
  floor = tonumber(string.match(oldest[1], '%d+$')) - 1
end
if floor > 0 then
  floor_ms = now - shortest
  if oldest and redis.call('XLEN', stream) >= fewest then
    floor_ms = tonumber(string.match(oldest[1], '^%d+'))
  end
end
return {epoch, floor, floor_ms, offset, entries}
