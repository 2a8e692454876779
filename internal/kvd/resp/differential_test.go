package resp_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/weirdb/weir/internal/kvd/resp"
	"github.com/weirdb/weir/internal/lab/labtest"
	"github.com/weirdb/weir/internal/testkit"
)

// envSeed chooses the random commands: set it to what a failure says.
const envSeed = "WEIR_RESP_SEED"

// TestSameAsRedis sends random commands to weir and to Redis, in both versions
// of the protocol, from two connections each, and compares every byte that comes
// back. Left out is what depends on the moment (a time to live is set as a moment
// far away or past), and WATCH of a key that comes and goes, which is the leader's
// matter, and there is none here.
func TestSameAsRedis(t *testing.T) {
	redis := labtest.SharedRedis(t).Addr()
	seed := rand.Uint64()
	if s := os.Getenv(envSeed); s != "" {
		var err error
		if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
			t.Fatal(err)
		}
	}
	const commands = 1500
	for round := range uint64(testkit.Rounds(2, 6)) {
		t.Run(fmt.Sprint(round), func(t *testing.T) {
			_, weir := serveFake(t, resp.Config{})
			g := generator{Rand: rand.New(rand.NewPCG(seed, round))}
			ours := []*peer{dial(t, weir), dial(t, weir)}
			theirs := []*peer{dial(t, redis), dial(t, redis)}
			theirs[0].want("+OK\r\n", "FLUSHALL")
			for _, p := range []*peer{ours[0], theirs[0]} {
				p.want("+OK\r\n", "MSET", "w1", "1", "w2", "2")
			}
			if round%2 == 1 {
				ours[1].resp3()
				theirs[1].resp3()
			}
			var history [][]string
			for range commands {
				who := g.IntN(2)
				args := g.command(who)
				history = append(history, append([]string{strconv.Itoa(who)}, args...))
				got, want := ours[who].do(args...), theirs[who].do(args...)
				if unordered(args[0]) {
					got, want = sorted(got), sorted(want)
				}
				if got != want {
					t.Fatalf("%s=%d: %q answers %q, Redis %q, after\n%q",
						envSeed, seed, args, got, want, history[max(0, len(history)-20):])
				}
			}
		})
	}
}

// unordered reports whether Redis answers in the order of its hash table.
func unordered(name string) bool { return name == "KEYS" || name == "SCAN" }

func sorted(reply string) string {
	lines := strings.SplitAfter(reply, "\r\n")
	slices.Sort(lines)
	return strings.Join(lines, "")
}

// generator makes commands up, most of them sensible.
type generator struct {
	*rand.Rand
	multi [2]bool // which connection is within a transaction
}

func (g generator) one(of ...string) string { return of[g.IntN(len(of))] }

func (g generator) key() string {
	return g.one("a", "b", "c", "d", "e", "n1", "n2", "x:1", "x:2", "x:10", "", "long key {tag}")
}

func (g generator) value() string {
	return g.one("", "1", "-5", "100", "9223372036854775806", "v", "some longer value", "with\r\nbreaks\x00", "012", "+1", " 1", "1.5")
}

func (g generator) number() string {
	return g.one("0", "1", "-1", "2", "10", "-7", "100000", "x", "", "9223372036854775806", "-9223372036854775808", "1e3")
}

// moment is far away, past, or none, in seconds or milliseconds.
func (g generator) moment(seconds bool) string {
	if seconds {
		return g.one("4102444800", "4102444801", "4102444900", "1", "0", "-1", "x")
	}
	return g.one("4102444800000", "4102444800001", "4102444900123", "1", "0", "-1", "x")
}

// future is far away.
func (g generator) future(seconds bool) string {
	if seconds {
		return g.one("4102444800", "4102444801")
	}
	return g.one("4102444800000", "4102444800001")
}

func (g generator) keys() []string {
	list := []string{g.key()}
	for g.IntN(2) == 0 {
		list = append(list, g.key())
	}
	return list
}

// some returns some of the words, in random order.
func (g generator) some(words ...string) []string {
	g.Shuffle(len(words), func(i, j int) { words[i], words[j] = words[j], words[i] })
	return words[:g.IntN(min(3, len(words)+1))]
}

func (g *generator) command(who int) []string {
	n := g.IntN(30)
	if g.multi[who] && (n == 19 || n == 20) { // whose order Redis chooses
		n = 21
	}
	switch n {
	case 0, 1, 2:
		args := append([]string{"SET", g.key(), g.value()}, g.some("NX", "XX", "GET", "KEEPTTL", "get", "FOO")...)
		if g.IntN(3) == 0 {
			seconds := g.IntN(2) == 0
			args = append(args, map[bool]string{true: "EXAT", false: "PXAT"}[seconds], g.moment(seconds))
		}
		return args
	case 3, 4:
		return []string{"GET", g.key()}
	case 5:
		return append([]string{g.one("MGET", "DEL", "UNLINK", "EXISTS", "TOUCH")}, g.keys()...)
	case 6, 7:
		args := []string{g.one("MSET", "MSETNX")}
		for range 1 + g.IntN(3) {
			args = append(args, g.key(), g.value())
		}
		return args
	case 8, 9:
		return []string{g.one("INCR", "DECR"), g.key()}
	case 10, 11:
		return []string{g.one("INCRBY", "DECRBY"), g.key(), g.number()}
	case 12:
		return []string{g.one("APPEND", "GETSET", "SETNX"), g.key(), g.value()}
	case 13:
		return []string{g.one("STRLEN", "GETDEL", "TYPE", "PERSIST", "EXPIRETIME", "PEXPIRETIME"), g.key()}
	case 14:
		return []string{"GETRANGE", g.key(), g.number(), g.number()}
	case 15, 16:
		seconds := g.IntN(2) == 0
		args := []string{map[bool]string{true: "EXPIREAT", false: "PEXPIREAT"}[seconds], g.key(), g.moment(seconds)}
		if g.IntN(3) == 0 {
			args = append(args, g.one("NX", "XX", "GT", "LT", "FOO", "gt"))
		}
		return args
	case 17:
		seconds := g.IntN(2) == 0
		return []string{"GETEX", g.key(), map[bool]string{true: "EXAT", false: "PXAT"}[seconds], g.future(seconds)}
	case 18:
		return append([]string{"GETEX", g.key()}, g.some("PERSIST")...)
	case 19:
		return []string{"KEYS", g.one("*", "x:*", "?", "[a-c]", "[^a]", "x:1?", "\\a", "nothing", "n[12]", "*1*", "x:[1")}
	case 20:
		return []string{"SCAN", "0", "COUNT", "1000", "MATCH", g.one("*", "x:*", "n?")}
	case 21:
		return []string{"SUBSTR", g.key(), g.number(), g.number()}
	case 22, 23:
		g.multi[who] = true
		return []string{"MULTI"}
	case 24, 25:
		g.multi[who] = false
		return []string{"EXEC"}
	case 26:
		g.multi[who] = false
		return []string{"DISCARD"}
	case 27:
		if g.IntN(2) == 0 {
			return []string{"WATCH", g.one("w1", "w2")}
		}
		return []string{g.one("SET", "APPEND", "GETSET"), g.one("w1", "w2"), g.value()}
	case 28:
		return []string{g.one("UNWATCH", "PING", "NOSUCH", "GET", "SET")}
	default:
		return []string{g.one("ECHO", "PING"), g.value()}
	}
}
