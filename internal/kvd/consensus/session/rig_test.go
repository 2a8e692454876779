package session

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weirdb/weir/internal/kvd/consensus"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// script plays the cluster for one session, number 7 unless its test registers
// it. What the session sends and what has ended gathers until the test asks.
type script struct {
	t     *testing.T
	s     *Session
	now   int64
	sends []string
	ends  []string
}

const sessionID = 7

// play is a session with replicas 1 to n, of which the first leads view 2 with
// the switches of a preset.
func play(t *testing.T, n int, preset string, cfg Config) *script {
	t.Helper()
	cfg.ID = sessionID
	p := &script{t: t, s: New(cfg), now: 1}
	for id := uint64(1); id <= uint64(n); id++ {
		p.s.Connected(p.now, id)
	}
	p.view(2, 1, preset)
	p.sent()
	p.ended()
	return p
}

func encoded(t *testing.T, preset string) uint8 {
	t.Helper()
	sw, err := consensus.Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	return sw.Encode()
}

func (p *script) view(view, leader uint64, preset string) {
	p.t.Helper()
	p.receive(leader, wire.Message{Kind: wire.NewView, View: view, Leader: leader, Code: encoded(p.t, preset)})
}

func (p *script) receive(from uint64, m wire.Message) {
	if m.Session == 0 {
		m.Session = p.s.ID()
	}
	p.s.Receive(p.now, from, &m)
	p.take()
}

// take notes what the session wants done.
func (p *script) take() {
	sends, ends := p.s.Take()
	for i := range sends {
		p.sends = append(p.sends, shown(p.t, &sends[i]))
	}
	for i := range ends {
		p.ends = append(p.ends, told(&ends[i]))
	}
}

// shown is a message as the tests write it:
//
//	to Kind view/index #seq key fast prior=… ack=… request=… with 1w(key) 2s(key)
func shown(t *testing.T, x *Send) string {
	t.Helper()
	m := &x.Message
	w := []string{fmt.Sprint(x.To), m.Kind.String(), fmt.Sprintf("%d/%d", m.View, m.Index)}
	if m.Seq > 0 {
		w = append(w, fmt.Sprintf("#%d", m.Seq))
	}
	if len(m.Data) > 0 {
		w = append(w, keyOf(t, m.Data))
	}
	if m.Flags&wire.FlagFast != 0 {
		w = append(w, "fast")
	}
	if m.Flags&wire.FlagNearest != 0 {
		w = append(w, "nearest")
	}
	if m.Flags&wire.FlagEnd != 0 {
		w = append(w, "end")
	}
	for _, f := range []struct {
		name string
		v    uint64
	}{{"prior", m.Prior}, {"ack", m.Ack}, {"request", m.Request}} {
		if f.v > 0 {
			w = append(w, fmt.Sprintf("%s=%d", f.name, f.v))
		}
	}
	for i, b := range m.Bundle {
		if i == 0 {
			w = append(w, "with")
		}
		level := "w"
		if b.Strong {
			level = "s"
		}
		w = append(w, fmt.Sprintf("%d%s(%s)", b.Seq, level, keyOf(t, b.Command)))
	}
	return strings.Join(w, " ")
}

func keyOf(t *testing.T, command []byte) string {
	t.Helper()
	c, err := wire.ParseCommand(command)
	if err != nil {
		t.Fatal(err)
	}
	if c.Verb == wire.Delete && len(c.Keys) == 0 {
		return "()"
	}
	return c.Key
}

// told is an outcome as the tests write it.
func told(o *Outcome) string {
	w := []string{fmt.Sprint(o.Tag)}
	if o.Fast {
		w = append(w, "fast")
	}
	if len(o.Result) > 0 {
		w = append(w, "result="+string(o.Result))
	}
	if o.Revision > 0 {
		w = append(w, fmt.Sprintf("revision=%d", o.Revision))
	}
	if o.Token != (Token{}) {
		w = append(w, fmt.Sprintf("at=%d/%d", o.Token.View, o.Token.Index))
	}
	switch {
	case errors.Is(o.Err, ErrExpired):
		w = append(w, "expired")
	case errors.Is(o.Err, ErrInvalid):
		w = append(w, "invalid")
	case o.Err != nil:
		w = append(w, o.Err.Error())
	}
	if o.Unknown {
		w = append(w, "unknown")
	}
	return strings.Join(w, " ")
}

// sent compares what was sent since the last time. Without arguments it forgets
// it.
func (p *script) sent(want ...string) {
	p.t.Helper()
	p.compare("sent", &p.sends, want)
}

// ended compares what has ended since the last time.
func (p *script) ended(want ...string) {
	p.t.Helper()
	p.compare("ended", &p.ends, want)
}

// silent says that nothing was sent and nothing has ended.
func (p *script) silent() {
	p.t.Helper()
	p.compare("sent", &p.sends, []string{})
	p.compare("ended", &p.ends, []string{})
}

func (p *script) compare(what string, got *[]string, want []string) {
	p.t.Helper()
	p.take()
	if diff := cmp.Diff(want, slices.Clip(*got)); diff != "" && want != nil && len(want)+len(*got) > 0 {
		p.t.Errorf("%s (-want +got):\n%s", what, diff)
	}
	*got = nil
}

// write issues a write under the number tag. Its kind says how strong it is and
// whether the result matters.
func (p *script) strong(tag uint64, key string) { p.t.Helper(); p.issue(tag, key, false) }
func (p *script) weak(tag uint64, key string)   { p.t.Helper(); p.issue(tag, key, true) }

func (p *script) issue(tag uint64, key string, weakly bool) {
	p.t.Helper()
	if err := p.s.Write(p.now, tag, wire.Command{Verb: wire.Set, Key: key, Value: []byte("v")}, weakly); err != nil {
		p.t.Fatalf("write %d: %v", tag, err)
	}
	p.take()
}

func (p *script) read(tag uint64, key string, weakly bool) {
	p.t.Helper()
	if err := p.s.Read(p.now, tag, wire.Command{Verb: wire.Get, Key: key}, weakly); err != nil {
		p.t.Fatalf("read %d: %v", tag, err)
	}
	p.take()
}

// after lets time pass.
func (p *script) after(d int64) {
	p.now += d
	p.s.Tick(p.now)
	p.take()
}

func (p *script) done(seq, stable, index uint64, result string) {
	p.receive(1, wire.Message{Kind: wire.Done, View: 2, Seq: seq, Stable: stable, Index: index, Revision: index, Data: []byte(result)})
}

func yes(seq uint64) wire.Message {
	return wire.Message{Kind: wire.Vote, View: 2, Seq: seq, Flags: wire.FlagYes}
}

func no(seq uint64) wire.Message { return wire.Message{Kind: wire.Vote, View: 2, Seq: seq} }

// spec is the word of the leader of n voters.
func spec(seq, n uint64) wire.Message {
	return wire.Message{Kind: wire.Spec, View: 2, Seq: seq, Flags: wire.FlagYes, Count: n, Index: 10 + seq, Data: []byte("early")}
}
