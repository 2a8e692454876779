package resp

import (
	"crypto/sha1"
	"encoding/hex"
	"regexp"
	"strings"
	"sync"

	"github.com/weirdb/weir/internal/kvwire"
)

// weir runs no Lua. Libraries of locks, though, release and extend a lock by one of
// a few scripts, which compare what a key holds and then delete it or set its time to
// live: those are known by their text, and done by one command of the store. What
// is written otherwise is refused, also where it would mean the same.

func scriptCommands() []command {
	const group = "scripting"
	return []command{
		{"eval", -3, isWrite, 0, 0, 0, eval, group, "Does what a known script of a lock library does."},
		{"evalsha", -3, isWrite, 0, 0, 0, evalSHA, group, "The same, by the digest of a script that was loaded or evaluated before."},
		{"script", -2, isFast, 0, 0, 0, script, group, "LOAD, EXISTS and FLUSH of known scripts."},
	}
}

// program is what a known script does.
type program uint8

const (
	release      program = iota + 1 // deletes the key if it holds ARGV[1]: 1, else 0
	releaseTells                    // the same, -1 if there is no key
	touch                           // sets the time to live to ARGV[2] milliseconds if the key holds ARGV[1]
	touchSeconds                    // the same, in seconds
	extend                          // the same, added to the time that is left if ARGV[3] is "0"
)

// programs are the known scripts in the form of canonical.
var programs = func() map[string]program {
	all := map[string]program{}
	for text, p := range map[string]program{
		// As the documentation of SET and of Redlock has it; redlock, redsync,
		// bsm/redislock and many others.
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
		`local token = redis.call("get",KEYS[1]) if not token or token ~= ARGV[1] then return 0 end redis.call("pexpire",KEYS[1],ARGV[2]) return 1`: touch,
	} {
		all[canonical(text)] = p
	}
	return all
}()

var (
	spaces = regexp.MustCompile(`\s+`)
	beside = regexp.MustCompile(` ?([^\w ]) ?`)
	called = regexp.MustCompile(`redis\.call\("[A-Za-z]+"`)
)

// canonical leaves out what Lua and Redis do not look at, where that is certain: the
// kind of white space and of quotes, and whether commands are in capitals. A script
// with a comment, or with white space in a string, is none of the known ones.
func canonical(text string) string {
	text = strings.ReplaceAll(strings.TrimSpace(spaces.ReplaceAllString(text, " ")), "'", `"`)
	text = beside.ReplaceAllString(text, "$1")
	return called.ReplaceAllStringFunc(text, strings.ToLower)
}

// scripts are those that were loaded or evaluated since the start.
type scripts struct {
	mu    sync.Mutex
	bySHA map[string]program
}

// maxScripts bounds how many ways to write the known scripts are kept.
const maxScripts = 1024

// add returns what a script does, 0 if it is not known, and its digest.
func (s *scripts) add(text []byte) (program, string) {
	sum := sha1.Sum(text)
	sha := hex.EncodeToString(sum[:])
	if len(text) > maxInline {
		return 0, sha
	}
	p := programs[canonical(string(text))]
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

const notAScript = "ERR weir runs no Lua: it knows the scripts by which lock libraries compare a value and then delete the key or set its time to live, and this is none of them; use MULTI with WATCH, WEIR.CAS or WEIR.LEASE"

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

// runScript does what a known script does with the keys and arguments of this call.
func (k *call) runScript(p program) {
	want := map[program]int{release: 1, releaseTells: 1, touch: 2, touchSeconds: 2, extend: 3}[p]
	if string(k.args[2]) != "1" || len(k.args) < 4+want {
		k.fail("ERR this script takes 1 key and " + string(rune('0'+want)) + " arguments")
		return
	}
	key, value := k.args[3], k.args[4]
	if p == release || p == releaseTells {
		cmd := kvwire.Command{Verb: kvwire.Delete, Cond: kvwire.IfValue, Keys: borrowAll([][]byte{key}), Expect: value}
		if p == releaseTells {
			cmd.Options = kvwire.ReturnOld
		}
		k.ask(cmd, shape{render: renderRelease, a: int64(p)})
		return
	}
	n, ok := parseInt(k.args[5])
	unit := int64(1)
	if p == touchSeconds {
		unit = secondMs
	}
	if most := int64(kvwire.MaxTTL) / 2 / unit; !ok || n > most || n < -most {
		k.fail(notAnInteger)
		return
	}
	cmd := kvwire.Command{Verb: kvwire.Expire, Cond: kvwire.IfValue, Key: borrow(key), Expect: value, TTL: n * unit}
	if p == extend && string(k.args[6]) == "0" {
		cmd.Options = kvwire.KeepTTL
	}
	k.ask(cmd, shape{render: renderNumber})
}

func renderRelease(e *encoder, s *shape, r []kvwire.Result) {
	switch {
	case r[0].Code == kvwire.OK:
		e.int(r[0].Number)
	case r[0].Code == kvwire.NotMet && program(s.a) == releaseTells && !r[0].Found:
		e.int(-1)
	case r[0].Code == kvwire.NotMet:
		e.int(0)
	default:
		e.fail(textOf(&r[0]))
	}
}
