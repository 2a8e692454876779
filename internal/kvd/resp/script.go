package resp

import (
	"crypto/sha1"
	"encoding/hex"
	"regexp"
	"strings"
	"sync"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// weir does not run Lua. But libraries for locks acquire, release and extend a lock by one of a
// few scripts, which compare the values of keys and then set or delete them, or set their time
// to live. These scripts are known by their text, and executed as one command of the store. Any
// other script is refused, even if it has the same meaning.

func scriptCommands() []command {
	const group = "scripting"
	return []command{
		{"eval", -3, isWrite, 0, 0, 0, eval, group, "Does what a known script of a lock library does."},
		{"evalsha", -3, isWrite, 0, 0, 0, evalSHA, group, "The same, by the digest of a script that was loaded or evaluated before."},
		{"script", -2, isFast, 0, 0, 0, script, group, "LOAD, EXISTS and FLUSH of known scripts."},
	}
}

// program is a known script.
type program uint8

const (
	release      program = iota + 1 // deletes the key if its value is ARGV[1]: 1, otherwise 0
	releaseTells                    // the same, -1 if there is no key
	touch                           // sets the time to live to ARGV[2] milliseconds if the key's value is ARGV[1]
	touchSeconds                    // the same, in seconds
	extend                          // the same, added to the remaining time if ARGV[3] is "0"
	lock                            // sets all keys to ARGV[1] for ARGV[2] milliseconds if none exists: the number of keys, otherwise 0
	lockSeconds                     // the same for one key, in seconds
	lockTells                       // the same for one key, answered like SET
	renew                           // sets the key to its value again, for ARGV[2] milliseconds, if that is ARGV[1]: 1, otherwise 0
	releaseAll                      // deletes the keys whose value is ARGV[1]: the number
	remaining                       // the remaining time in milliseconds if the key's value is ARGV[1], otherwise 0
)

// programs returns the known scripts in canonical form. It is computed when a client sends a
// script, because otherwise each start of weir would pay for it.
var programs = sync.OnceValue(func() map[string]program {
	all := map[string]program{}
	for text, p := range map[string]program{
		// From the documentation of SET and of Redlock; redlock, redsync, bsm/redislock and
		// many others.
		`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("del",KEYS[1]) else return 0 end`:             release,
		`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("pexpire",KEYS[1],ARGV[2]) else return 0 end`: touch,
		`if redis.call("get",KEYS[1]) == ARGV[1] then return redis.call("expire",KEYS[1],ARGV[2]) else return 0 end`:  touchSeconds,
		// redsync.
		`local val = redis.call("get",KEYS[1]) if val == ARGV[1] then return redis.call("del",KEYS[1]) elseif val == false then return -1 else return 0 end`: releaseTells,
		// Lock of redis-py: release, extend, reacquire.
		`local token = redis.call("get",KEYS[1]) if not token or token ~= ARGV[1] then return 0 end redis.call("del",KEYS[1]) return 1`: release,
		`local token = redis.call("get",KEYS[1]) if not token or token ~= ARGV[1] then return 0 end local expiration = redis.call("pttl",KEYS[1])
		if not expiration then expiration = 0 end if expiration < 0 then return 0 end local newttl = ARGV[2]
		if ARGV[3] == "0" then newttl = ARGV[2] + expiration end redis.call("pexpire",KEYS[1],newttl) return 1`: extend,
		// redlock of npm: 2 and 3, then 4 and 5.
		`return redis.call("set",KEYS[1],ARGV[1],"NX","PX",ARGV[2])`: lockTells,
		`for i, key in ipairs(KEYS) do if redis.call("exists", key) == 1 then return 0 end end
		for i, key in ipairs(KEYS) do redis.call("set", key, ARGV[1], "PX", ARGV[2]) end return #KEYS`: lock,
		`for i, key in ipairs(KEYS) do if redis.call("get", key) ~= ARGV[1] then return 0 end end
		for i, key in ipairs(KEYS) do redis.call("set", key, ARGV[1], "PX", ARGV[2]) end return #KEYS`: renew,
		`local count = 0 for i, key in ipairs(KEYS) do if redis.call("get", key) == ARGV[1] then redis.pcall("del", key) count = count + 1 end end return count`: releaseAll,
		// sherlock.
		`local result = redis.call("setnx",KEYS[1],ARGV[1]) if result == 1 and ARGV[2] ~= -1 then redis.call("expire",KEYS[1],ARGV[2]) end return result`: lockSeconds,
		`local result = 0 if redis.call("get",KEYS[1]) == ARGV[1] then redis.call("del",KEYS[1]) result = 1 end return result`:                            release,
		`local result = 0 if redis.call("get",KEYS[1]) == ARGV[1] then if ARGV[2] ~= -1 then redis.call("expire",KEYS[1],ARGV[2])
		else redis.call("persist",KEYS[1]) end result = 1 end return result`: touchSeconds, // ARGV[2] is a string, never the number -1
		// pottery.
		`if redis.call("get",KEYS[1]) == ARGV[1] then local pttl = redis.call("pttl",KEYS[1]) return (pttl > 0) and pttl or 0 else return 0 end`:    remaining,
		`local token = redis.call("get",KEYS[1]) if not token or token ~= ARGV[1] then return 0 end redis.call("pexpire",KEYS[1],ARGV[2]) return 1`: touch,
	} {
		all[canonical(text)] = p
	}
	return all
})

var (
	spaces = regexp.MustCompile(`\s+`)
	beside = regexp.MustCompile(` ?([^\w ]) ?`)
	called = regexp.MustCompile(`redis\.call\("[A-Za-z]+"`)
)

// canonical removes what Lua and Redis ignore, where that is certain: comments to the end of a
// line, and differences of white space, quotes and the case of commands. A script with a
// comment of several lines, or with white space or what looks like a comment in a string, is
// never a known one.
func canonical(text string) string {
	text = withoutRemarks(text)
	text = strings.ReplaceAll(strings.TrimSpace(spaces.ReplaceAllString(text, " ")), "'", `"`)
	text = beside.ReplaceAllString(text, "$1")
	return called.ReplaceAllStringFunc(text, strings.ToLower)
}

func withoutRemarks(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i, line := range lines {
		code, _, found := strings.Cut(line, "--")
		if !found {
			continue
		}
		inString := strings.Count(code, `"`)%2 == 1 || strings.Count(code, "'")%2 == 1
		if inString || strings.HasPrefix(line[len(code):], "--[") {
			return text
		}
		lines[i] = code
	}
	return strings.Join(lines, "\n")
}

// scripts are those loaded or evaluated since the start.
type scripts struct {
	mu    sync.Mutex
	bySHA map[string]program
}

// maxScripts limits how many texts of the known scripts are kept.
const maxScripts = 1024

// add returns the known script with this text, 0 if there is none, and its digest.
func (s *scripts) add(text []byte) (program, string) {
	sum := sha1.Sum(text)
	sha := hex.EncodeToString(sum[:])
	if len(text) > maxInline {
		return 0, sha
	}
	p := programs()[canonical(string(text))]
	s.mu.Lock()
	defer s.mu.Unlock()
	if p != 0 && len(s.bySHA) < maxScripts {
		if s.bySHA == nil {
			s.bySHA = map[string]program{}
		}
		s.bySHA[sha] = p
	}
	return p, sha
}

func (s *scripts) find(sha []byte) program {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bySHA[strings.ToLower(string(sha))]
}

func (s *scripts) flush() {
	s.mu.Lock()
	defer s.mu.Unlock()
	clear(s.bySHA)
}

const notAScript = "ERR weir runs no Lua: it knows the scripts by which lock libraries take, release and extend locks, and this is none of them; use MULTI with WATCH, WEIR.CAS or WEIR.LEASE"

func eval(k *call) {
	p, _ := k.c.srv.scripts.add(k.args[1])
	if p == 0 {
		k.fail(notAScript)
		return
	}
	k.runScript(p)
}

func evalSHA(k *call) {
	p := k.c.srv.scripts.find(k.args[1])
	if p == 0 {
		k.fail("NOSCRIPT No matching script. Please use EVAL.")
		return
	}
	k.runScript(p)
}

func script(k *call) {
	s := &k.c.srv.scripts
	switch {
	case is(k.args[1], "LOAD") && len(k.args) == 3:
		p, sha := s.add(k.args[2])
		if p == 0 {
			k.fail(notAScript)
			return
		}
		k.bulk([]byte(sha))
	case is(k.args[1], "EXISTS") && len(k.args) > 2:
		k.array(len(k.args) - 2)
		for _, sha := range k.args[2:] {
			n := int64(0)
			if s.find(sha) != 0 {
				n = 1
			}
			k.int(n)
		}
	case is(k.args[1], "FLUSH"):
		s.flush()
		k.ok()
	case is(k.args[1], "LOAD"), is(k.args[1], "EXISTS"):
		k.wrongArity()
	default:
		k.unknownSub()
	}
}

// runScript executes a known script with the keys and arguments of this call.
func (k *call) runScript(p program) {
	want := map[program]int{release: 1, releaseTells: 1, releaseAll: 1, remaining: 1, extend: 3}[p]
	if want == 0 {
		want = 2
	}
	count, ok := parseInt(k.args[2])
	if !ok || count < 1 || count > 1 && p != lock && p != releaseAll || int64(len(k.args)-3-want) < count {
		k.fail("ERR this script takes 1 key and " + string(rune('0'+want)) + " arguments; several keys can be locked and released at once, not extended")
		return
	}
	if p == releaseAll && count == 1 {
		p = release
	}
	keys, args := k.args[3:3+count], k.args[3+count:]
	key, value := keys[0], args[0]
	switch p {
	case release, releaseTells:
		cmd := wire.Command{Verb: wire.Delete, Cond: wire.IfValue, Keys: borrowAll(keys), Expect: value}
		if p == releaseTells {
			cmd.Options = wire.ReturnOld
		}
		k.ask(cmd, shape{render: renderRelease, a: int64(p)})
		return
	case releaseAll:
		cmds := make([]wire.Command, count)
		for i := range cmds {
			cmds[i] = wire.Command{Verb: wire.Delete, Cond: wire.IfValue, Keys: borrowAll(keys[i : i+1]), Expect: value}
		}
		k.askAll(shape{render: renderReleased}, cmds...)
		return
	case remaining:
		k.askAll(shape{render: renderRemaining, extra: string(value)},
			wire.Command{Verb: wire.Get, Key: borrow(key)}, wire.Command{Verb: wire.TTL, Key: borrow(key)})
		return
	}
	n, ok := parseInt(args[1])
	unit := int64(1)
	if p == touchSeconds || p == lockSeconds {
		unit = secondMs
	}
	if most := int64(wire.MaxTTL) / 2 / unit; !ok || n > most || n < -most {
		k.fail(notAnInteger)
		return
	}
	if p == lock || p == lockSeconds || p == lockTells || p == renew {
		k.lock(p, keys, value, n*unit)
		return
	}
	cmd := wire.Command{Verb: wire.Expire, Cond: wire.IfValue, Key: borrow(key), Expect: value, TTL: n * unit}
	if p == extend && string(args[2]) == "0" {
		cmd.Options = wire.KeepTTL
	}
	k.ask(cmd, shape{render: renderNumber})
}

// lock sets all keys to a value for some milliseconds, or none.
func (k *call) lock(p program, keys [][]byte, value []byte, ms int64) {
	if ms <= 0 {
		k.fail("ERR invalid expire time in 'set' command")
		return
	}
	cmds := make([]wire.Command, len(keys))
	guards := make([]wire.Guard, len(keys))
	for i, key := range keys {
		// Without a condition if there are several: the same key may occur twice.
		cmds[i] = wire.Command{Verb: wire.Set, Key: borrow(key), Value: value, TTL: ms}
		guards[i].Key = borrow(key)
	}
	switch one := cmds[0]; {
	case len(keys) > 1 && k.txn != nil:
		k.fail("ERR this script takes 1 key inside a transaction")
	case len(keys) > 1:
		k.ask(wire.Command{Verb: wire.Transaction, Guards: guards, Commands: cmds}, shape{render: renderLocked})
	case p == renew:
		one.Cond, one.Expect = wire.IfValue, value
		k.ask(one, shape{render: renderMet})
	case p == lockTells:
		one.Cond = wire.IfAbsent
		k.ask(one, shape{render: renderSet})
	default:
		one.Cond = wire.IfAbsent
		k.ask(one, shape{render: renderMet})
	}
}

// renderLocked renders the number of keys that were set.
func renderLocked(e *encoder, _ *shape, r []wire.Result) {
	switch r[0].Code {
	case wire.OK:
		e.int(int64(len(r[0].Results)))
	case wire.NotMet:
		e.int(0)
	default:
		e.fail(textOf(&r[0]))
	}
}

func renderReleased(e *encoder, _ *shape, r []wire.Result) {
	n := int64(0)
	for i := range r {
		if r[i].Code == wire.OK {
			n += r[i].Number
		}
	}
	e.int(n)
}

func renderRemaining(e *encoder, s *shape, r []wire.Result) {
	left := int64(0)
	if r[0].Found && string(r[0].Value) == s.extra {
		left = max(0, r[1].Number)
	}
	e.int(left)
}

func renderRelease(e *encoder, s *shape, r []wire.Result) {
	switch {
	case r[0].Code == wire.OK:
		e.int(r[0].Number)
	case r[0].Code == wire.NotMet && program(s.a) == releaseTells && !r[0].Found:
		e.int(-1)
	case r[0].Code == wire.NotMet:
		e.int(0)
	default:
		e.fail(textOf(&r[0]))
	}
}
