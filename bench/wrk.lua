-- The load of one order, which bench/wrk.ts writes into a directory: the part of a request after its key, and for each token the
-- part before it. The tokens take turns, and each request has a key of its own.
local before, after, run, width, number = {}, nil, nil, nil, 0

local function whole(file)
  local open = assert(io.open(file, 'rb'))
  local text = open:read('*a')
  open:close()
  return text
end

function init(arguments)
  local directory = arguments[1]
  run, width = arguments[2], tonumber(arguments[3])
  after = whole(directory .. '/after-key')
  for i = 1, tonumber(arguments[4]) do before[i] = whole(directory .. '/before-key-' .. i) end
end

function request()
  local key = run .. number
  number = number + 1
  return before[number % #before + 1] .. key .. string.rep('-', width - #key) .. after
end

function done(summary, latency)
  local failed = summary.errors
  io.write(string.format(
    '\n{"count":%d,"seconds":%f,"p50":%f,"p99":%f,"refused":%d,"broken":%d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1000, latency:percentile(99) / 1000,
    failed.status, failed.connect + failed.read + failed.write + failed.timeout))
end
