-- What is kept after an offset of an epoch (ARGV 5 and 6; 9 the peers), or all if that is not known any more: the newest
-- entries up to so many bytes (8), before the entry with this id (7, or '+'). Returns the epoch, the offset and the time
-- after which nothing is missing, the last offset, the id of the entry before which there may be more, and the entries,
-- newest first.
redis.call('XTRIM', stream, 'MINID', '=', now - age)
local after, wanted = tonumber(ARGV[6]), offset
if tonumber(ARGV[5]) == epoch and after <= offset then
  wanted = offset - after
end
local from, left = ARGV[7], tonumber(ARGV[8])
if from ~= '+' then
  wanted = math.max(wanted - offset - 1 + tonumber(string.match(from, '%d+$')), 0)
  from = '(' .. from
end
-- The first pieces are short, as the length of the messages is not known.
local entries, rest, count = {}, '', 16
while wanted > 0 and rest == '' do
  local piece = redis.call('XREVRANGE', stream, from, '-', 'COUNT', math.min(wanted, count))
  if #piece == 0 then
    break
  end
  for _, entry in ipairs(piece) do
    entries[#entries + 1] = entry
    left, wanted = left - #entry[2][2], wanted - 1
    if left <= 0 then
      rest = wanted > 0 and entry[1] or ''
      wanted = 0
      break
    end
  end
  from, count = '(' .. entries[#entries][1], math.min(2 * count, 256)
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
return {epoch, floor, floor_ms, offset, rest, entries}
