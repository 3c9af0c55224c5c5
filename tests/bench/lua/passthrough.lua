-- Plain requests, the same every time: wrk formats them once and Lua is off the hot path.
-- Arguments: the method.

function init(args)
   wrk.method = args[1]
   wrk.headers["Authorization"] = "Bearer bench"
   if wrk.method == "POST" then
      wrk.headers["Content-Type"] = "application/json"
      wrk.body = '{"item": "' .. string.rep("b", 1012) .. '"}'
   end
   wrk.req = wrk.format()
end

function done(summary, latency)
   local errors = summary.errors
   print(string.format(
      'BENCH {"requests": %d, "seconds": %.6f, "bytes": %d, "p50_ms": %.3f, "p99_ms": %.3f, "errors": %d}',
      summary.requests, summary.duration / 1e6, summary.bytes, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
      errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
