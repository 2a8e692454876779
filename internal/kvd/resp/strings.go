package resp

import (
	"math"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

func stringCommands() []command {
	return []command{
		{"get", 2, isRead | isFast, 1, 1, 1, get, "string", "Returns the value of a key."},
		{"set", -3, isWrite, 1, 1, 1, set, "string", "Sets the value of a key: EX PX EXAT PXAT KEEPTTL NX XX GET, and WEIR.REV, WEIR.LEASE."},
		{"getset", 3, isWrite | isFast, 1, 1, 1, getSet, "string", "Sets a key and returns its old value."},
		{"getdel", 2, isWrite | isFast, 1, 1, 1, getDel, "string", "Deletes a key and returns its value."},
		{"getex", -2, isWrite | isFast, 1, 1, 1, getEx, "string", "Returns the value of a key and changes its time to live."},
		{"setnx", 3, isWrite | isFast, 1, 1, 1, setNX, "string", "Sets a key that does not exist."},
		{"setex", 4, isWrite, 1, 1, 1, setEX, "string", "Sets a key with a time to live in seconds."},
		{"psetex", 4, isWrite, 1, 1, 1, setEX, "string", "Sets a key with a time to live in milliseconds."},
		{"mget", -2, isRead | isFast, 1, -1, 1, mGet, "string", "Returns the values of several keys, all of one moment."},
		{"mset", -3, isWrite, 1, -1, 2, mSet, "string", "Sets several keys at once."},
		{"msetnx", -3, isWrite, 1, -1, 2, mSetNX, "string", "Sets several keys at once if none of them exists."},
		{"incr", 2, isWrite | isFast, 1, 1, 1, increment, "string", "Adds 1 to the integer at a key."},
		{"decr", 2, isWrite | isFast, 1, 1, 1, increment, "string", "Subtracts 1 from the integer at a key."},
		{"incrby", 3, isWrite | isFast, 1, 1, 1, increment, "string", "Adds to the integer at a key."},
		{"decrby", 3, isWrite | isFast, 1, 1, 1, increment, "string", "Subtracts from the integer at a key."},
		{"append", 3, isWrite | isFast, 1, 1, 1, appendTo, "string", "Appends to the value of a key."},
		{"strlen", 2, isRead | isFast, 1, 1, 1, strLen, "string", "Returns the length of a value."},
		{"getrange", 4, isRead, 1, 1, 1, getRange, "string", "Returns a part of a value."},
		{"substr", 4, isRead, 1, 1, 1, getRange, "string", "Returns a part of a value: GETRANGE under its old name."},
	}
}

const (
	syntaxError   = "ERR syntax error"
	notAnInteger  = "ERR value is not an integer or out of range"
	secondMs      = 1000
	invalidExpire = "ERR invalid expire time in '%s' command"
)

func get(k *call) {
	k.ask(wire.Command{Verb: wire.Get, Key: borrow(k.args[1])}, shape{render: renderValue})
}

// setting is the options of SET, GETEX and similar commands.
type setting struct {
	cmd     wire.Command
	old     bool   // GET
	persist bool   // PERSIST
	expires []byte // a time to live, not parsed yet: Redis checks all options first
	unit    int64  // of expires, milliseconds
}

// expiry parses an option with a time to live; took is the number of its arguments.
func (s *setting) expiry(args [][]byte) (took int, why string) {
	var unit int64
	var options uint8
	switch {
	case is(args[0], "EX"):
		unit = secondMs
	case is(args[0], "PX"):
		unit = 1
	case is(args[0], "EXAT"):
		unit, options = secondMs, wire.Absolute
	case is(args[0], "PXAT"):
		unit, options = 1, wire.Absolute
	default:
		return 0, ""
	}
	if len(args) < 2 || s.expires != nil || s.persist || s.cmd.Options&wire.KeepTTL != 0 {
		return 0, syntaxError
	}
	s.expires, s.unit = args[1], unit
	s.cmd.Options |= options
	return 2, ""
}

// setExpiry parses the time to live of an option.
func (k *call) setExpiry(s *setting) (why string) {
	if s.expires != nil {
		absolute := s.cmd.Options&wire.Absolute != 0
		if s.cmd.TTL, why = k.milliseconds(s.expires, s.unit, absolute); absolute && why == "" {
			s.cmd.TTL = k.inStoreTime(s.cmd.TTL)
		}
	}
	return why
}

// milliseconds parses a time to live, which must be positive.
func (k *call) milliseconds(arg []byte, unit int64, absolute bool) (ms int64, why string) {
	n, ok := parseInt(arg)
	if !ok {
		return 0, notAnInteger
	}
	limit := int64(wire.MaxTTL)
	if !absolute {
		limit -= time.Now().UnixMilli()
	}
	if n <= 0 || n > limit/unit {
		return 0, "ERR invalid expire time in '" + k.cmd.name + "' command"
	}
	return n * unit, ""
}

func set(k *call) {
	s := setting{cmd: wire.Command{Verb: wire.Set, Key: borrow(k.args[1]), Value: k.args[2]}}
	if len(k.args) > 3 {
		if why := k.setOptions(&s, k.args[3:], "WEIR."); why != "" {
			k.fail(why)
			return
		}
	}
	if s.old {
		k.ask(s.cmd, shape{render: renderOld})
		return
	}
	k.ask(s.cmd, shape{render: renderSet})
}

// setOptions parses the options of SET. Those of weir begin with prefix.
func (k *call) setOptions(s *setting, args [][]byte, prefix string) (why string) {
	for len(args) > 0 {
		took, why := s.expiry(args)
		if took == 0 && why == "" {
			took, why = s.option(args, prefix)
		}
		if why != "" {
			return why
		}
		args = args[took:]
	}
	return k.setExpiry(s)
}

// option parses an option that is not a time to live.
func (s *setting) option(args [][]byte, prefix string) (took int, why string) {
	c := &s.cmd
	arg := args[0]
	switch {
	case is(arg, "NX") && (c.Cond == wire.Always || c.Cond == wire.IfAbsent):
		c.Cond = wire.IfAbsent
	case is(arg, "XX") && (c.Cond == wire.Always || c.Cond == wire.IfPresent):
		c.Cond = wire.IfPresent
	case is(arg, "KEEPTTL") && s.expires == nil:
		c.Options |= wire.KeepTTL
	case is(arg, "GET"):
		s.old = true
		c.Options |= wire.ReturnOld
	case is(arg, prefix+"REV") && len(args) > 1 && c.Cond == wire.Always:
		n, ok := parseInt(args[1])
		if !ok || n < 0 {
			return 0, notAnInteger
		}
		c.Cond, c.Revision = wire.IfRevision, uint64(n)
		return 2, ""
	case is(arg, prefix+"LEASE") && len(args) > 1 && c.Lease == 0:
		n, ok := parseInt(args[1])
		if !ok || n <= 0 {
			return 0, notAnInteger
		}
		c.Lease = uint64(n)
		return 2, ""
	default:
		return 0, syntaxError
	}
	return 1, ""
}

func getSet(k *call) {
	k.ask(wire.Command{
		Verb: wire.Set, Key: borrow(k.args[1]), Value: k.args[2], Options: wire.ReturnOld,
	}, shape{render: renderOld})
}

func getDel(k *call) {
	k.ask(wire.Command{
		Verb: wire.Delete, Keys: borrowAll(k.args[1:2]), Options: wire.ReturnOld,
	}, shape{render: renderOld})
}

func getEx(k *call) {
	s := setting{cmd: wire.Command{Verb: wire.Expire, Key: borrow(k.args[1])}}
	for args := k.args[2:]; len(args) > 0; {
		took, why := s.expiry(args)
		if took == 0 && why == "" {
			if !is(args[0], "PERSIST") || s.expires != nil {
				why = syntaxError
			}
			took, s.persist = 1, true
		}
		if why != "" {
			k.fail(why)
			return
		}
		args = args[took:]
	}
	if why := k.setExpiry(&s); why != "" {
		k.fail(why)
		return
	}
	read := wire.Command{Verb: wire.Get, Key: s.cmd.Key}
	switch {
	case s.persist:
		s.cmd.Verb = wire.Persist
	case s.expires == nil:
		k.ask(read, shape{render: renderValue})
		return
	}
	k.askAll(shape{render: renderValue}, read, s.cmd)
}

func setNX(k *call) {
	k.ask(wire.Command{
		Verb: wire.Set, Cond: wire.IfAbsent, Key: borrow(k.args[1]), Value: k.args[2],
	}, shape{render: renderMet})
}

func setEX(k *call) {
	unit := int64(1)
	if k.cmd.name == "setex" {
		unit = secondMs
	}
	ttl, why := k.milliseconds(k.args[2], unit, false)
	if why != "" {
		k.fail(why)
		return
	}
	k.ask(wire.Command{
		Verb: wire.Set, Key: borrow(k.args[1]), Value: k.args[3], TTL: ttl,
	}, shape{render: renderSet})
}

func mGet(k *call) {
	k.ask(wire.Command{Verb: wire.Many, Keys: borrowAll(k.args[1:])}, shape{render: renderMany})
}

// pairs parses the arguments of MSET and MSETNX.
func (k *call) pairs() ([]wire.Pair, bool) {
	if len(k.args)%2 == 0 {
		k.fail(wrongNumber(k.cmd.name))
		return nil, false
	}
	pairs := make([]wire.Pair, 0, len(k.args)/2)
	for i := 1; i < len(k.args); i += 2 {
		pairs = append(pairs, wire.Pair{Key: borrow(k.args[i]), Value: k.args[i+1]})
	}
	return pairs, true
}

func mSet(k *call) {
	if pairs, ok := k.pairs(); ok {
		k.ask(wire.Command{Verb: wire.SetMany, Pairs: pairs}, shape{render: renderSet})
	}
}

func mSetNX(k *call) {
	if pairs, ok := k.pairs(); ok {
		k.ask(wire.Command{Verb: wire.SetMany, Cond: wire.IfAbsent, Pairs: pairs}, shape{render: renderMet})
	}
}

func increment(k *call) {
	delta := int64(1)
	if len(k.args) == 3 {
		var ok bool
		if delta, ok = parseInt(k.args[2]); !ok {
			k.fail(notAnInteger)
			return
		}
	}
	if k.cmd.name[0] == 'd' {
		if delta == math.MinInt64 {
			k.fail("ERR decrement would overflow")
			return
		}
		delta = -delta
	}
	k.ask(wire.Command{Verb: wire.Increment, Key: borrow(k.args[1]), Delta: delta}, shape{render: renderNumber})
}

func appendTo(k *call) {
	k.ask(wire.Command{Verb: wire.Append, Key: borrow(k.args[1]), Value: k.args[2]}, shape{render: renderNumber})
}

func strLen(k *call) {
	k.ask(wire.Command{Verb: wire.Get, Options: wire.KeysOnly, Key: borrow(k.args[1])}, shape{render: renderNumber})
}

func getRange(k *call) {
	from, ok := parseInt(k.args[2])
	to, also := parseInt(k.args[3])
	if !ok || !also {
		k.fail(notAnInteger)
		return
	}
	k.ask(wire.Command{Verb: wire.Get, Key: borrow(k.args[1])}, shape{render: renderPart, a: from, b: to})
}

// renderValue renders the value of a key, or null.
func renderValue(e *encoder, _ *shape, r []wire.Result) {
	if r[0].Code == wire.NotFound {
		e.null()
		return
	}
	e.bulk(r[0].Value)
}

// renderOld renders the previous value, or null.
func renderOld(e *encoder, _ *shape, r []wire.Result) {
	if !r[0].Found {
		e.null()
		return
	}
	e.bulk(r[0].Value)
}

// renderSet renders OK, or null if the condition does not hold.
func renderSet(e *encoder, _ *shape, r []wire.Result) {
	switch r[0].Code {
	case wire.OK:
		e.ok()
	case wire.NotMet:
		e.null()
	default:
		e.fail(textOf(&r[0]))
	}
}

// renderMet renders whether the condition holds.
func renderMet(e *encoder, _ *shape, r []wire.Result) { e.bool(r[0].Code == wire.OK) }

func renderNumber(e *encoder, _ *shape, r []wire.Result) { e.int(r[0].Number) }

// renderConstant renders the answer of a write without a result.
func renderConstant(e *encoder, s *shape, _ []wire.Result) { e.int(s.a) }

func renderMany(e *encoder, _ *shape, r []wire.Result) {
	e.array(len(r[0].Results))
	for i := range r[0].Results {
		renderValue(e, nil, r[0].Results[i:i+1])
	}
}

// renderPart renders the bytes a to b of a value; negative positions count from its end.
func renderPart(e *encoder, s *shape, r []wire.Result) {
	v := r[0].Value
	n := int64(len(v))
	from, to := s.a, s.b
	if from < 0 && to < 0 && from > to {
		e.text("")
		return
	}
	if from < 0 {
		from = max(from+n, 0)
	}
	if to < 0 {
		to = max(to+n, 0)
	}
	to = min(to, n-1)
	if from > to || n == 0 {
		e.text("")
		return
	}
	e.bulk(v[from : to+1])
}
