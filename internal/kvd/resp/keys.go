package resp

import (
	"math/rand/v2"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func keyCommands() []command {
	return []command{
		{"del", -2, isWrite, 1, -1, 1, del, "generic", "Deletes keys."},
		{"unlink", -2, isWrite | isFast, 1, -1, 1, del, "generic", "Deletes keys."},
		{"exists", -2, isRead | isFast, 1, -1, 1, exists, "generic", "Counts those of the keys that exist."},
		{"touch", -2, isRead | isFast, 1, -1, 1, exists, "generic", "Counts those of the keys that exist."},
		{"type", 2, isRead | isFast, 1, 1, 1, typeOf, "generic", "Returns string or none."},
		{"expire", -3, isWrite | isFast, 1, 1, 1, expire, "generic", "Sets the time to live of a key in seconds: NX XX GT LT."},
		{"pexpire", -3, isWrite | isFast, 1, 1, 1, expire, "generic", "Sets the time to live of a key in milliseconds."},
		{"expireat", -3, isWrite | isFast, 1, 1, 1, expire, "generic", "Sets the moment at which a key expires, in seconds."},
		{"pexpireat", -3, isWrite | isFast, 1, 1, 1, expire, "generic", "Sets the moment at which a key expires, in milliseconds."},
		{"persist", 2, isWrite | isFast, 1, 1, 1, persist, "generic", "Removes the time to live of a key."},
		{"ttl", 2, isRead | isFast, 1, 1, 1, ttl, "generic", "Returns the time to live of a key in seconds."},
		{"pttl", 2, isRead | isFast, 1, 1, 1, ttl, "generic", "Returns the time to live of a key in milliseconds."},
		{"expiretime", 2, isRead | isFast, 1, 1, 1, ttl, "generic", "Returns when a key expires, in seconds since 1970."},
		{"pexpiretime", 2, isRead | isFast, 1, 1, 1, ttl, "generic", "Returns when a key expires, in milliseconds since 1970."},
		{"scan", -2, isRead, 0, 0, 0, scan, "generic", "Returns a part of the keys, and where to go on."},
		{"keys", 2, isRead, 0, 0, 0, keys, "generic", "Returns the keys that match a pattern."},
		{"randomkey", 1, isRead, 0, 0, 0, randomKey, "generic", "Returns one of the first thousand keys."},
		{"dbsize", 1, isRead | isFast, 0, 0, 0, dbSize, "server", "Counts the keys."},
		{"flushall", -1, isWrite, 0, 0, 0, flush, "server", "Deletes all keys."},
		{"flushdb", -1, isWrite, 0, 0, 0, flush, "server", "Deletes all keys."},
	}
}

// weak reports whether writes of the connection are weak. Then those whose answer is
// predictable are sent without asking for one.
func (k *call) weak() bool { return k.c.level != Strong && k.txn == nil }

func del(k *call) {
	cmd := wire.Command{Verb: wire.Delete, Keys: borrowAll(k.args[1:])}
	if k.weak() {
		cmd.Options |= wire.NoReply
		k.ask(cmd, shape{render: renderConstant, a: int64(len(cmd.Keys))})
		return
	}
	k.ask(cmd, shape{render: renderNumber})
}

func exists(k *call) {
	k.ask(wire.Command{Verb: wire.Many, Options: wire.KeysOnly, Keys: borrowAll(k.args[1:])}, shape{render: renderFound})
}

func renderFound(e *encoder, _ *shape, r []wire.Result) {
	n := int64(0)
	for i := range r[0].Results {
		if r[0].Results[i].Code == wire.OK {
			n++
		}
	}
	e.int(n)
}

func typeOf(k *call) {
	k.ask(wire.Command{Verb: wire.Get, Options: wire.KeysOnly, Key: borrow(k.args[1])}, shape{render: renderType})
}

func renderType(e *encoder, _ *shape, r []wire.Result) {
	if r[0].Code == wire.NotFound {
		e.simple("none")
		return
	}
	e.simple("string")
}

func expire(k *call) {
	cmd := wire.Command{Verb: wire.Expire, Key: borrow(k.args[1])}
	var why string
	if cmd.Cond, why = expireCondition(k.args[3:]); why != "" {
		k.fail(why)
		return
	}
	n, ok := parseInt(k.args[2])
	if !ok {
		k.fail(notAnInteger)
		return
	}
	unit := int64(1)
	if k.cmd.name[0] == 'e' {
		unit = secondMs
	}
	limit := int64(wire.MaxTTL)
	if strings.HasSuffix(k.cmd.name, "at") {
		cmd.Options |= wire.Absolute
	} else {
		limit -= time.Now().UnixMilli()
	}
	if n > limit/unit || n < -limit/unit {
		k.fail("ERR invalid expire time in '" + k.cmd.name + "' command")
		return
	}
	cmd.TTL = n * unit
	if cmd.Options&wire.Absolute != 0 {
		cmd.TTL = k.inStoreTime(cmd.TTL)
	}
	if k.weak() && cmd.Cond == wire.Always {
		cmd.Options |= wire.NoReply
		k.ask(cmd, shape{render: renderConstant, a: 1})
		return
	}
	k.ask(cmd, shape{render: renderNumber})
}

// inStoreTime converts a time, in milliseconds since 1970, from this machine's wall clock to
// the store's time, which is independent of wall clocks.
func (k *call) inStoreTime(ms int64) int64 {
	ahead := k.c.srv.backend.Status().Ahead.Milliseconds()
	if ahead == 0 || ms <= 0 { // long past by either clock
		return ms
	}
	return min(max(ms+ahead, 1), wire.MaxTTL)
}

// renderMoment converts a time back.
func renderMoment(e *encoder, s *shape, r []wire.Result) {
	n := r[0].Number
	if n > 0 {
		n = max(n-s.a, 1)
	}
	if s.b != 1 {
		n = seconds(n)
	}
	e.int(n)
}

// expireCondition parses NX, XX, GT and LT.
func expireCondition(args [][]byte) (cond uint8, why string) {
	var nx, xx, gt, lt bool
	for _, arg := range args {
		switch {
		case is(arg, "NX"):
			nx = true
		case is(arg, "XX"):
			xx = true
		case is(arg, "GT"):
			gt = true
		case is(arg, "LT"):
			lt = true
		default:
			return 0, "ERR Unsupported option " + string(arg)
		}
	}
	switch {
	case nx && (xx || gt || lt):
		return 0, "ERR NX and XX, GT or LT options at the same time are not compatible"
	case gt && lt:
		return 0, "ERR GT and LT options at the same time are not compatible"
	case xx && lt:
		return 0, "ERR weir does not know XX together with LT"
	case nx:
		return wire.IfNoTTL, ""
	case gt: // a key without a time to live outlives all others
		return wire.IfGreater, ""
	case lt:
		return wire.IfLess, ""
	case xx:
		return wire.IfTTL, ""
	default:
		return wire.Always, ""
	}
}

func persist(k *call) {
	k.ask(wire.Command{Verb: wire.Persist, Key: borrow(k.args[1])}, shape{render: renderNumber})
}

func ttl(k *call) {
	cmd := wire.Command{Verb: wire.TTL, Key: borrow(k.args[1])}
	if strings.HasSuffix(k.cmd.name, "time") {
		cmd.Options |= wire.Absolute
		unit := int64(secondMs)
		if k.cmd.name[0] == 'p' {
			unit = 1
		}
		k.ask(cmd, shape{render: renderMoment, a: k.c.srv.backend.Status().Ahead.Milliseconds(), b: unit})
		return
	}
	if k.cmd.name[0] == 'p' {
		k.ask(cmd, shape{render: renderNumber})
		return
	}
	k.ask(cmd, shape{render: renderSeconds})
}

func renderSeconds(e *encoder, _ *shape, r []wire.Result) { e.int(seconds(r[0].Number)) }

// seconds rounds milliseconds as Redis does.
func seconds(n int64) int64 {
	if n >= 0 {
		n = (n + secondMs/2) / secondMs
	}
	return n
}

func dbSize(k *call) {
	k.ask(wire.Command{Verb: wire.Count}, shape{render: renderNumber})
}

func flush(k *call) {
	if len(k.args) > 2 || len(k.args) == 2 && !is(k.args[1], "SYNC") && !is(k.args[1], "ASYNC") {
		k.fail(syntaxError)
		return
	}
	cmd := wire.Command{Verb: wire.DeleteRange}
	if k.weak() {
		cmd.Options |= wire.NoReply
	}
	k.ask(cmd, shape{render: renderSet})
}

// randomFrom is the number of keys that RANDOMKEY chooses from.
const randomFrom = 1000

func randomKey(k *call) {
	k.ask(wire.Command{Verb: wire.Range, Options: wire.KeysOnly, Limit: randomFrom}, shape{
		render: func(e *encoder, _ *shape, r []wire.Result) {
			if len(r[0].Pairs) == 0 {
				e.null()
				return
			}
			e.text(r[0].Pairs[rand.IntN(len(r[0].Pairs))].Key)
		},
	})
}

func keys(k *call) {
	pattern := string(k.args[1])
	prefix, _ := globPrefix(pattern)
	k.ask(
		wire.Command{Verb: wire.Range, Options: wire.KeysOnly, Key: prefix, End: prefixEnd(prefix)},
		shape{render: renderKeys, extra: pattern},
	)
}

func renderKeys(e *encoder, s *shape, r []wire.Result) {
	if r[0].More {
		e.fail("ERR too many keys for one answer: use SCAN")
		return
	}
	appendMatches(e, r[0].Pairs, s.extra.(string))
}

// appendMatches appends the keys that match a pattern as an array.
func appendMatches(e *encoder, pairs []wire.Pair, pattern string) {
	n := 0
	for i := range pairs {
		if pattern == "*" || matchGlob(pattern, pairs[i].Key) {
			n++
		}
	}
	e.array(n)
	for i := range pairs {
		if pattern == "*" || matchGlob(pattern, pairs[i].Key) {
			e.text(pairs[i].Key)
		}
	}
}
