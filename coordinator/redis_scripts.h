// The Lua scripts that change Redis: one a state change, so each is atomic, and every one but the
// lock's own first checks that this coordinator still holds the lock.
//
// All are idempotent: after a lost connection the store runs again what was not answered.
//
// Leases and results, which are nearly all of the traffic, go in groups: one script call, so one
// check of the lock, one AOF transaction and one fsync for hundreds of changes. (A pipeline of
// single calls would not do: Redis reads 16 KiB of a pipeline a turn and syncs after each turn.)
//
// Keys: `bitalloc:coordinator` (hash fence, holder, expires_ms, changes, connection),
// `bitalloc:searches` (set of ids), and of a search, under `bitalloc:{id}:` with the braces, which
// keep one search in one slot of a cluster: `spec` (hash spec, fingerprint, created_unix), `state`
// (JSON), `fence` (integer), `leases` (hash unit → "fence worker"), `results` (hash unit → packed),
// `failures` (hash unit → JSON, the units that are set aside), `tokens` (hash of blobs), `events`
// (capped stream).
#pragma once

namespace bitalloc::redis_scripts {

// KEYS[1] is the lock and ARGV[1] "fence/changes/connection" of this coordinator in every script
// below. Changes: how many it knows to be durable. A Redis that holds fewer was restarted with an
// older file; a write on top of that would hide what is missing. Connection: its number, counted by
// the coordinator. What was sent on an earlier one and comes after a later one has written is
// refused: it has been sent again, and a search may have been deleted or replaced since.
inline constexpr const char* kCheckLock = R"lua(
local fence, known, connection = string.match(ARGV[1], '^(%d+)/(%d+)/(%d+)$')
local lock = redis.call('HMGET', KEYS[1], 'fence', 'changes', 'holder', 'connection')
if not lock[1] then
  return redis.error_reply('FENCED the lock is gone: Redis has lost its data or was flushed')
end
if tonumber(lock[1]) > tonumber(fence) then
  return redis.error_reply('FENCED a newer coordinator has taken over: ' .. tostring(lock[3]))
end
local changes = tonumber(lock[2] or 0)
if lock[1] ~= fence or changes < tonumber(known) then
  return redis.error_reply('FENCED Redis has gone back to an older state (' ..
      string.format('change %.0f', changes) .. ', ' .. known .. ' was acknowledged): start the ' ..
      'coordinator again, and what is missing is scored again')
end
local newest = tonumber(lock[4] or 0)
if newest > tonumber(connection) then
  return redis.error_reply('FENCED a later connection of this coordinator has written since')
elseif newest < tonumber(connection) then
  redis.call('HSET', KEYS[1], 'connection', connection)
end
changes = redis.call('HINCRBY', KEYS[1], 'changes', 1)
)lua";

// A lock that would live longer than ttl_ms was written before the clock went back: it is stale.
// The fence is the time unless that has gone back, so that a Redis restored from an old copy does
// not give out a fence that a living coordinator holds already.
// ARGV: holder, "take-over" or "", ttl_ms
// → {fence, "", 0, changes} or {0, holder, ms until it is stale}.
inline constexpr const char* kAcquire = R"lua(
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local expires = tonumber(redis.call('HGET', KEYS[1], 'expires_ms') or 0)
if expires > now and expires <= now + ARGV[3] and ARGV[2] ~= 'take-over' then
  return {0, redis.call('HGET', KEYS[1], 'holder'), expires - now}
end
local fence = math.max(now, tonumber(redis.call('HGET', KEYS[1], 'fence') or 0) + 1)
redis.call('HSET', KEYS[1], 'holder', ARGV[1], 'fence', string.format('%.0f', fence),
           'expires_ms', string.format('%.0f', now + ARGV[3]), 'connection', 0)
return {fence, '', 0, redis.call('HINCRBY', KEYS[1], 'changes', 1)}
)lua";

// ARGV: fence, ttl_ms (0: give the lock back) → changes.
inline constexpr const char* kRenew = R"lua(
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
redis.call('HSET', KEYS[1], 'expires_ms', string.format('%.0f', now + ARGV[2]))
return changes
)lua";

// KEYS: lock, searches, spec, state, fence, leases, results, tokens, events, failures.
// ARGV: fence, id, spec, fingerprint, created_unix, state, n, n × (token field, blob),
//       then pairs (unit, packed).
inline constexpr const char* kPutSearch = R"lua(
if redis.call('HGET', KEYS[3], 'fingerprint') ~= ARGV[4] then
  redis.call('DEL', unpack(KEYS, 4))  -- left-overs must not become results of another search
end
redis.call('HSET', KEYS[3], 'spec', ARGV[3], 'fingerprint', ARGV[4], 'created_unix', ARGV[5])
redis.call('SET', KEYS[4], ARGV[6])
local at = 8
for _ = 1, tonumber(ARGV[7]) do
  redis.call('HSET', KEYS[8], ARGV[at], ARGV[at + 1])
  at = at + 2
end
while at < #ARGV do
  redis.call('HSETNX', KEYS[7], ARGV[at], ARGV[at + 1])
  at = at + 2
end
redis.call('SADD', KEYS[2], ARGV[2])
redis.call('XADD', KEYS[9], 'MAXLEN', '~', 10000, '*', 'type', 'state', 'state', ARGV[6])
return 0
)lua";

// KEYS: lock, spec, state, events. ARGV: fence, state.
inline constexpr const char* kPutStatus = R"lua(
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
redis.call('SET', KEYS[3], ARGV[2])
redis.call('XADD', KEYS[4], 'MAXLEN', '~', 10000, '*', 'type', 'state', 'state', ARGV[2])
return 0
)lua";

// A group of changes of leases and results, in their order.
// KEYS: lock, then for each search: spec, fence, leases, results, events.
// ARGV: fence, then for each change: what, index of its search's first key, unit, two values:
//   'lease'   lease fence, worker
//   'drop'    lease fence, ''      a newer lease stays
//   'result'  packed, ''           first write wins
// → for each change '' or, of a result, 'duplicate' or 'conflict' and the value that stays.
// Changes of a search that is not there do nothing: it was deleted.
inline constexpr const char* kChangeUnits = R"lua(
local call = redis.call
local exists = {}
for at = 2, #KEYS, 5 do exists[at] = call('EXISTS', KEYS[at]) == 1 end

local change = {}
function change.lease(at, unit, fence, worker)
  if tonumber(call('GET', KEYS[at + 1]) or 0) < tonumber(fence) then
    call('SET', KEYS[at + 1], fence)
  end
  call('HSET', KEYS[at + 2], unit, fence .. ' ' .. worker)
  return ''
end
function change.drop(at, unit, fence)
  local lease = call('HGET', KEYS[at + 2], unit)
  if lease and tonumber(string.match(lease, '^%d+')) <= tonumber(fence) then
    call('HDEL', KEYS[at + 2], unit)
  end
  return ''
end
function change.result(at, unit, packed)
  call('HDEL', KEYS[at + 2], unit)
  if call('HSETNX', KEYS[at + 3], unit, packed) == 1 then
    call('XADD', KEYS[at + 4], 'MAXLEN', '~', 10000, '*', 'type', 'result', 'unit', unit)
    return ''
  end
  local stored = call('HGET', KEYS[at + 3], unit)
  if stored == packed then return 'duplicate' end
  return {'conflict', stored}
end

local replies = {}
for i = 2, #ARGV, 5 do
  local at = tonumber(ARGV[i + 1])
  replies[#replies + 1] = exists[at] and change[ARGV[i]](at, ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]) or ''
end
return replies
)lua";

// KEYS: lock, spec, failures. ARGV: fence, unit, JSON.
inline constexpr const char* kPutFailure = R"lua(
if redis.call('EXISTS', KEYS[2]) == 0 then return 0 end
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
return 0
)lua";

// KEYS: lock, failures. ARGV: fence.
inline constexpr const char* kClearFailures = R"lua(
redis.call('DEL', KEYS[2])
return 0
)lua";

// KEYS: lock, searches, then all keys of the search. ARGV: fence, id.
inline constexpr const char* kDeleteSearch = R"lua(
redis.call('SREM', KEYS[2], ARGV[2])
redis.call('DEL', unpack(KEYS, 3))
return 0
)lua";

}  // namespace bitalloc::redis_scripts
