-- The two-phase handshake: a connection registers an intent, and the next connection that is free confirms it, so that
-- every connection alternates between the phases and none waits for another.
-- Arguments: the seconds to measure, a prefix for the client correlation ids of this run.
--
-- When the time is up no intent is begun any more, those begun are confirmed, and the thread ends: so that the answers
-- counted here can be compared with the rows in the database, to the last one.

local ffi = require("ffi")
ffi.cdef [[
   typedef struct { long tv_sec; long tv_nsec; } bench_timespec;
   int clock_gettime(int clock, bench_timespec *time);
]]
local MONOTONIC = 1
local instant = ffi.new("bench_timespec")

local function now()
   ffi.C.clock_gettime(MONOTONIC, instant)
   return tonumber(instant.tv_sec) + tonumber(instant.tv_nsec) / 1e9
end

local threads = {}

function setup(thread)
   table.insert(threads, thread)
end

-- Read by done() through the thread, hence global.
window_s, confirmed, confirmed_in_window, errors, first_error = 0, 0, 0, 0, ""

local ends_at
local registered, pending, waiting = 0, {}, 0 -- ids used so far; intents to confirm, a stack; intents begun and not finished
local register_head, register_tail, confirm_head, confirm_tail, idle, prefix
local tried = false

function init(args)
   window_s, prefix = tonumber(args[1]), args[2]
   local common = "Host: " .. wrk.host .. ":" .. wrk.port .. "\r\nAuthorization: Bearer bench\r\nDTT-2PHP-Enabled: true\r\n"
   local body = '{"item": "' .. string.rep("b", 1012) .. '"}'
   register_head = "POST /orders HTTP/1.1\r\n" .. common .. "DTT-2PHP-Client-Correlation-ID: "
   register_tail = "\r\nContent-Type: application/json\r\nContent-Length: " .. #body .. "\r\n\r\n" .. body
   confirm_head = "POST /orders/confirm HTTP/1.1\r\n" .. common .. "DTT-2PHP-Client-Correlation-ID: "
   confirm_tail = "\r\nContent-Length: 0\r\n\r\n"
   idle = "GET /idle HTTP/1.1\r\nHost: " .. wrk.host .. "\r\n\r\n"
end

function request()
   if not tried then -- wrk looks at one request before it starts, and never sends it
      tried = true
      return idle
   end
   if #pending > 0 then
      return table.remove(pending)
   end
   local time = now()
   ends_at = ends_at or time + window_s
   if time < ends_at then
      registered = registered + 1
      waiting = waiting + 1
      return register_head .. prefix .. registered .. register_tail
   end
   if waiting == 0 then
      wrk.thread:stop()
   end
   return idle -- wrk insists on a request; nothing is measured any more
end

function response(status, headers, body)
   local phase = headers["DTT-2PHP-Phase-State"]
   if status == 200 and phase == "WAITING_CONFIRM" then
      local client_id = string.match(body, '"client_correlation_id":"([^"]+)"')
      local server_id = headers["DTT-2PHP-Server-Correlation-ID"]
      table.insert(pending, confirm_head .. client_id .. "\r\nDTT-2PHP-Server-Correlation-ID: " .. server_id .. confirm_tail)
   elseif status == 200 and phase == "COMMITTED" and #body == 1024 then
      waiting = waiting - 1
      confirmed = confirmed + 1
      if now() < ends_at then
         confirmed_in_window = confirmed_in_window + 1
      end
   elseif phase or status ~= 200 then
      waiting = waiting - 1
      errors = errors + 1
      if first_error == "" then
         first_error = status .. " " .. string.gsub(body, '[^%w%p ]', "?")
      end
   end
end

function done(summary, latency)
   local failed = summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout
   local thread = threads[1]
   if thread:get("errors") > 0 then
      print("first error: " .. thread:get("first_error"))
   end
   print(string.format(
      'BENCH {"requests": %d, "seconds": %.6f, "bytes": %d, "p50_ms": %.3f, "p99_ms": %.3f, "errors": %d, "confirmed": %d}',
      thread:get("confirmed_in_window"), thread:get("window_s"), summary.bytes,
      latency:percentile(50) / 1e3, latency:percentile(99) / 1e3, failed + thread:get("errors"), thread:get("confirmed")))
end
