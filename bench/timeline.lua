-- For wrk: how many requests were made in each tenth of a second (of CLOCK_MONOTONIC), and how long the slowest answer took, in microseconds.
-- A request on a connection follows the answer to the one before.
local ffi = require("ffi")
ffi.cdef("typedef struct { long s; long ns; } moment; int clock_gettime(int, moment *);")
local moment, threads = ffi.new("moment"), {}

function setup(thread)
    table.insert(threads, thread)
end

function init()
    counts, question = {}, wrk.format()
end

function request()
    ffi.C.clock_gettime(1, moment)
    local tenth = tonumber(moment.s) * 10 + math.floor(tonumber(moment.ns) / 1e8)
    counts[tenth] = (counts[tenth] or 0) + 1
    return question
end

function done(summary, latency)
    for _, thread in ipairs(threads) do
        for tenth, count in pairs(thread:get("counts")) do
            print(string.format("tenth %d %d", tenth, count))
        end
    end
    local errors = summary.errors
    print(string.format("failed %d", errors.connect + errors.read + errors.write + errors.status + errors.timeout))
    print(string.format("slowest %d", latency.max))
end
