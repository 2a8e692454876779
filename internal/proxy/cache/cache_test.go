package cache_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/weirdb/weir/internal/proxy/cache"
	"github.com/weirdb/weir/internal/testkit"
)

// A side is a client of a cache whose clock stands still.
type side struct {
	*testing.T
	c   *cache.Cache
	d   *cache.Database
	now time.Duration
}

func newSide(t *testing.T) *side {
	c := cache.New()
	c.Configure(1<<20, 64<<10)
	return &side{t, c, c.Of("shop"), time.Minute}
}

func (s *side) query(key string) *cache.Query {
	return &cache.Query{Key: []byte(key), Database: s.d, TTL: time.Second, Now: s.now}
}

// ask asks for a key, and wants a role and, with an answer, its bytes.
func (s *side) ask(q *cache.Query, want cache.Role, answer string) *cache.Flight {
	s.Helper()
	role, a, f := s.c.Ask(q)
	if role != want {
		s.Fatalf("role %d, want %d", role, want)
	}
	if answer != "" && (a == nil || string(a.Bytes) != answer) {
		s.Fatalf("answer %v, want %q", a, answer)
	}
	return f
}

func (s *side) keep(key, answer string) {
	s.ask(s.query(key), cache.Lead, "").Keep([]byte(answer), 1, nil)
}

func TestAnswersByAge(t *testing.T) {
	s := newSide(t)
	s.keep("k", "one")
	s.now += time.Second
	s.ask(s.query("k"), cache.Hit, "one")
	s.now++
	f := s.ask(s.query("k"), cache.Refresh, "one")
	s.ask(s.query("k"), cache.Hit, "one") // one refresh is enough
	f.Keep([]byte("two"), 1, nil)
	s.ask(s.query("k"), cache.Hit, "two")
	s.now += 2*time.Second + 1
	s.ask(s.query("k"), cache.Lead, "")
	short := s.query("other")
	s.keep("other", "x")
	short.TTL, short.Now = time.Millisecond, s.now+3*time.Millisecond
	s.ask(short, cache.Lead, "") // what is old is for who asks to say
}

func TestOneFetchesForAll(t *testing.T) {
	s := newSide(t)
	f := s.ask(s.query("k"), cache.Lead, "")
	var got []string
	for range 3 {
		other := s.ask(s.query("k"), cache.Follow, "")
		if !other.Wait(func(how cache.Outcome, a *cache.Answer) { got = append(got, fmt.Sprint(how, string(a.Bytes))) }) {
			t.Fatal("the flight has ended")
		}
	}
	f.Keep([]byte("one"), 1, nil)
	if fmt.Sprint(got) != "[0one 0one 0one]" {
		t.Errorf("those who waited got %v", got)
	}
	if f.Wait(nil) {
		t.Error("a flight that has ended lets others wait")
	}
}

// A statement's answer may be as old as the statement.
func TestNobodyWaitsForWhatIsTooOld(t *testing.T) {
	s := newSide(t)
	slow := s.ask(s.query("k"), cache.Lead, "")
	s.now += 2 * time.Second
	s.ask(s.query("k"), cache.Follow, "")
	s.now++
	f := s.ask(s.query("k"), cache.Lead, "")
	s.ask(s.query("k"), cache.Follow, "")
	f.Keep([]byte("new"), 1, nil)
	slow.Keep([]byte("old"), 1, nil)
	s.ask(s.query("k"), cache.Hit, "new")

	s.now += time.Second + 1
	lost := s.ask(s.query("k"), cache.Refresh, "new")
	s.now += 2*time.Second + 1
	s.ask(s.query("k"), cache.Lead, "").Keep([]byte("newer"), 1, nil)
	lost.Leave()
	s.ask(s.query("k"), cache.Hit, "newer")
}

func TestFailureIsNotShared(t *testing.T) {
	s := newSide(t)
	for name, end := range map[string]func(f *cache.Flight){
		"1": (*cache.Flight).Fail, "2": (*cache.Flight).Leave,
	} {
		f := s.ask(s.query("k"), cache.Lead, "")
		var got string
		s.ask(s.query("k"), cache.Follow, "").Wait(func(how cache.Outcome, a *cache.Answer) { got = fmt.Sprint(how, a == nil) })
		end(f)
		if got != name+" true" {
			t.Errorf("outcome %s, want %s and no answer", got, name)
		}
		s.ask(s.query("k"), cache.Lead, "").Fail()
	}
}

func TestRefusedAnswerIsNotWaitedFor(t *testing.T) {
	s := newSide(t)
	s.ask(s.query("k"), cache.Lead, "").Refuse(cache.SkipLarge)
	s.ask(s.query("k"), cache.Direct, "")
	s.now += time.Second + 1
	s.ask(s.query("k"), cache.Lead, "")
	list := s.c.Stats()
	if n := list[0].Skipped["large"]; n != 2 {
		t.Errorf("%d skipped, want 2", n)
	}
}

// A client that has written is given nothing that was fetched before, nor waits for it.
func TestOwnWrites(t *testing.T) {
	s := newSide(t)
	s.keep("k", "old")
	old := s.ask(s.query("under way"), cache.Lead, "")
	q, u := s.query("k"), s.query("under way")
	q.After, u.After = s.c.Mark(), s.c.Mark()
	f, g := s.ask(q, cache.Lead, ""), s.ask(u, cache.Lead, "")
	g.Keep([]byte("new"), 1, nil)
	old.Keep([]byte("old"), 1, nil) // which lands later and is older
	s.ask(u, cache.Hit, "new")
	s.ask(s.query("k"), cache.Hit, "old") // who has not written
	f.Keep([]byte("new"), 1, nil)
	s.ask(q, cache.Hit, "new")
	s.ask(s.query("k"), cache.Hit, "new")
}

func TestPurge(t *testing.T) {
	tagged := func(s *side, key, tag string) *cache.Query {
		q := s.query(key)
		q.Tag = tag
		return q
	}
	for name, purge := range map[string]func(c *cache.Cache){
		"all":      func(c *cache.Cache) { c.Purge("") },
		"database": func(c *cache.Cache) { c.Purge("shop") },
		"tag":      func(c *cache.Cache) { c.PurgeTag("t") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSide(t)
			q, u := tagged(s, "k", "t"), tagged(s, "under way", "t")
			s.ask(q, cache.Lead, "").Keep([]byte("old"), 1, nil)
			old := s.ask(u, cache.Lead, "")
			waited := ""
			s.ask(u, cache.Follow, "").Wait(func(_ cache.Outcome, a *cache.Answer) { waited = string(a.Bytes) })
			purge(s.c)
			s.ask(q, cache.Lead, "")
			f := s.ask(u, cache.Lead, "") // it does not wait for what began before
			old.Keep([]byte("old"), 1, nil)
			if waited != "old" {
				t.Errorf("who asked before the purge got %q", waited)
			}
			s.ask(u, cache.Follow, "")
			f.Keep([]byte("new"), 1, nil)
			s.ask(u, cache.Hit, "new")
		})
	}
	s := newSide(t)
	s.keep("k", "one")
	s.c.Purge("elsewhere")
	s.c.PurgeTag("t")
	s.ask(s.query("k"), cache.Hit, "one")
	s.c.Purge("shop")
	s.c.Sweep()
	if list := s.c.Stats(); list[0].Entries != 0 || list[0].Bytes != 0 {
		t.Errorf("a swept cache has %+v", list[0])
	}
}

func TestSizeIsBounded(t *testing.T) {
	s := newSide(t)
	for i := range 20000 {
		s.keep(fmt.Sprintf("key %d", i), strings.Repeat("x", rand.IntN(1000)))
	}
	bytes := func() int64 { return s.c.Stats()[0].Bytes }
	testkit.Eventually(t, "the cache is within its size", func() bool { return bytes() <= 1<<20 })
	if s.c.Stats()[0].Evicted == 0 {
		t.Error("no evictions counted")
	}
	s.c.Configure(1<<16, 64<<10)
	s.keep("one more", "x")
	testkit.Eventually(t, "the cache is within its new size", func() bool { return bytes() <= 1<<16 })
	s.c.Configure(0, 0)
	s.ask(s.query("one more"), cache.Direct, "")
	testkit.Eventually(t, "the cache is empty", func() bool { return bytes() == 0 })
	s.c.Configure(1<<20, 64<<10)
	s.keep("one more", "x")
	s.ask(s.query("one more"), cache.Hit, "x")
}

func TestKeysDiffer(t *testing.T) {
	key := func(parts ...string) (k string) {
		var b []byte
		for _, p := range parts {
			b = cache.AppendField(b, p)
		}
		return string(b)
	}
	if key("ab", "c") == key("a", "bc") || key("a") == key("a", "") || key("a\x01b") == key("a", "b") {
		t.Error("different parts make one key")
	}
}

// Many clients ask, write and purge at once: none gets an answer that is older than its own
// write.
func TestStorm(t *testing.T) {
	c := cache.New()
	c.Configure(64<<10, 8<<10)
	d := c.Of("shop")
	var value [16]atomic.Uint64
	var fetches atomic.Int64
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			var after uint64
			var least [16]uint64 // that the client has written
			for i := range 3000 {
				k := rand.IntN(len(value))
				switch rand.IntN(20) {
				case 0:
					least[k] = value[k].Add(1)
					after = c.Mark()
					continue
				case 1:
					c.Purge("")
					continue
				}
				q := &cache.Query{Key: []byte{byte(k)}, Database: d, TTL: time.Millisecond, After: after, Now: time.Duration(i) * time.Microsecond * 10}
				fetch := func(f *cache.Flight) uint64 {
					fetches.Add(1)
					v := value[k].Load()
					if rand.IntN(10) == 0 {
						f.Fail()
					} else {
						f.Keep(fmt.Append(nil, v), 1, nil)
					}
					return v
				}
				read := func(a *cache.Answer) (v uint64) {
					if _, err := fmt.Sscan(string(a.Bytes), &v); err != nil {
						t.Error(err)
					}
					return v
				}
				role, a, f := c.Ask(q)
				v := uint64(0)
				switch role {
				case cache.Hit:
					v = read(a)
				case cache.Refresh:
					v = read(a)
					fetch(f)
				case cache.Lead:
					v = fetch(f)
				case cache.Follow:
					got := make(chan uint64, 1)
					if !f.Wait(func(how cache.Outcome, a *cache.Answer) {
						if how != cache.Landed {
							got <- value[k].Load()
							return
						}
						got <- read(a)
					}) {
						continue
					}
					v = <-got
				case cache.Direct:
					t.Error("the cache is off")
				}
				if v < least[k] {
					t.Errorf("a client that had written %d read %d", least[k], v)
				}
			}
		})
	}
	group.Wait()
	if fetches.Load() == 0 {
		t.Error("nothing was fetched")
	}
}
