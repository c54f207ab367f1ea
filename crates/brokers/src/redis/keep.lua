-- Numbers, keeps and publishes an envelope. ARGV from 5 on: the channel, the envelope, 1 if it may have been
-- kept before, the peers. Returns its epoch, offset and time, and how many connections got it, -1 if that is not known.
local body, again = ARGV[6], ARGV[7] == '1'

-- The numbers of a sender rise: one that is not higher is that of a publication that came twice.
local repeated = false
if seen then
  local sender_epoch, number = struct.unpack('<I4I8', body, 11)
  local last_epoch, last = struct.unpack('<I4I8', seen)
  local later = (sender_epoch - last_epoch) % 4294967296
  repeated = later >= 2147483648 or later == 0 and number <= last
end
if repeated or again and not seen then
  -- It is among the newest as a rule.
  local id, from, count = string.sub(body, 3, 22), '+', 16
  while from do
    local piece = redis.call('XREVRANGE', stream, from, '-', 'COUNT', count)
    for _, entry in ipairs(piece) do
      if string.sub(entry[2][2], 3, 22) == id then
        local kept_ms, kept_at = string.match(entry[1], '^(%d+)-(%d+)$')
        return {epoch, tonumber(kept_at), tonumber(kept_ms), -1}
      end
    end
    from = #piece == count and '(' .. piece[count][1] or nil
    count = math.min(2 * count, 256)
  end
  if repeated then
    return {epoch, 0, 0, -1}
  end
end
if not seen and redis.call('HLEN', hash) > 64 then
  for _, field in ipairs(redis.call('HKEYS', hash)) do
    if #field == 9 then
      redis.call('HDEL', hash, field)
    end
  end
end

offset, time = offset + 1, math.max(now, time)
redis.call('HSET', hash, 'offset', offset, 'time', time, sender, string.sub(body, 11, 22))
redis.call('XADD', stream, 'MAXLEN', '=', messages, string.format('%.0f-%.0f', time, offset), 'm', body)
redis.call('XTRIM', stream, 'MINID', '=', now - age)
redis.call('PEXPIRE', hash, 10 * age)
redis.call('PEXPIRE', stream, age)
local place = struct.pack('<BI4I8I8', 2, epoch, offset, time)
return {epoch, offset, time, redis.call('PUBLISH', ARGV[5], place .. body)}
