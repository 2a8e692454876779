package session

import (
	"fmt"
	"testing"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// load is what BenchmarkSession keeps under way: operations of a kind, on keys of
// their own or not, answered in their order.
type load struct {
	name   string
	preset string
	fast   Policy
	issue  func(s *Session, n uint64, key string) error
}

var loads = []load{
	{"strong", "raft-ht", Never, put(false)},
	{"weak", "raft-ht", Never, put(true)},
	{"nearest", "curp-ho", Never, put(true)},
	{"fast", "curp", Always, put(false)},
	{"read", "raft-ht", Never, get(false)},
	{"mixed", "raft-ht", Never, func(s *Session, n uint64, key string) error {
		return []func(*Session, uint64, string) error{put(true), get(true), put(false), get(false)}[n%4](s, n, key)
	}},
}

func put(weakly bool) func(*Session, uint64, string) error {
	return func(s *Session, n uint64, key string) error {
		c := wire.Command{Verb: wire.Set, Key: key, Value: []byte("value")}
		if weakly {
			c.Options = wire.NoReply
		}
		return s.Write(int64(n), n, c, weakly)
	}
}

func get(weakly bool) func(*Session, uint64, string) error {
	return func(s *Session, n uint64, key string) error {
		return s.Read(int64(n), n, wire.Command{Verb: wire.Get, Key: key}, weakly)
	}
}

// answer plays the cluster's part for one message.
func answer(s *Session, now int64, x *Send) {
	m := &x.Message
	switch m.Kind {
	case wire.Strong:
		if m.Flags&wire.FlagFast != 0 {
			s.Receive(now, x.To, &wire.Message{Kind: wire.Spec, Flags: wire.FlagYes, View: m.View, Session: m.Session, Seq: m.Seq, Count: 3})
			return
		}
		s.Receive(now, x.To, &wire.Message{Kind: wire.Done, Session: m.Session, Seq: m.Seq, Stable: m.Seq})
	case wire.Record:
		s.Receive(now, x.To, &wire.Message{Kind: wire.Vote, Flags: wire.FlagYes, View: m.View, Session: m.Session, Seq: m.Seq})
	case wire.Weak:
		s.Receive(now, x.To, &wire.Message{Kind: wire.WeakDone, Session: m.Session, Seq: m.Seq, Stable: m.Seq})
	case wire.Read, wire.WeakRead:
		s.Receive(now, x.To, &wire.Message{Kind: wire.ReadDone, Session: m.Session, Request: m.Request})
	}
}

// BenchmarkSession measures one operation, from its issue to its outcome, with so
// many under way. It must not grow with their number.
func BenchmarkSession(b *testing.B) {
	for _, l := range loads {
		for _, window := range []int{1, 10, 100, 1000} {
			b.Run(fmt.Sprintf("%s/%d", l.name, window), func(b *testing.B) {
				sw, err := consensus.Preset(l.preset)
				if err != nil {
					b.Fatal(err)
				}
				s := New(Config{ID: sessionID, Fast: l.fast})
				for id := uint64(1); id <= 3; id++ {
					s.Connected(1, id)
				}
				s.Receive(1, 1, &wire.Message{Kind: wire.NewView, View: 2, Leader: 1, Code: sw.Encode()})
				keys := make([]string, 4096)
				for i := range keys {
					keys[i] = fmt.Sprintf("key-%06d", i)
				}
				var flight []Send
				n, ended := uint64(0), 0
				b.ReportAllocs()
				b.ResetTimer()
				for ended < b.N {
					for s.Open() < window {
						n++
						if err := l.issue(s, n, keys[n%uint64(len(keys))]); err != nil {
							b.Fatal(err)
						}
					}
					sends, outcomes := s.Take()
					flight, ended = append(flight, sends...), ended+len(outcomes)
					s.Recycle(sends, outcomes)
					answer(s, int64(n), &flight[0])
					flight = flight[1:]
				}
			})
		}
	}
}
