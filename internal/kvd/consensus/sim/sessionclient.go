package sim

import (
	"errors"
	"time"

	"github.com/weirdb/weir/internal/kvd/consensus/session"
	"github.com/weirdb/weir/internal/kvd/wire"
)

// sessionClient is a client that uses package session, as programs do.
type sessionClient struct {
	w        *World
	client   *client
	session  *session.Session
	open     map[uint64]*operation // by id
	outcomes []outcome
}

func newSessionClient(w *World, c *client) driver {
	policy := pick(c.random, []session.Policy{session.Always, session.Always, session.Always, session.Auto, session.Never})
	retry := time.Duration(c.random.between(40*time.Millisecond, 250*time.Millisecond))
	return &sessionClient{w: w, client: c, session: session.New(session.Config{Fast: policy, Retry: retry}), open: map[uint64]*operation{}}
}

func (d *sessionClient) issue(o *operation) {
	var err error
	switch {
	case o.wait:
		err = d.session.Wait(d.w.now, o.id)
	case o.write:
		err = d.session.Write(d.w.now, o.id, o.command, o.weak)
	default:
		err = d.session.Read(d.w.now, o.id, o.command, o.weak)
	}
	if err != nil {
		d.outcomes = append(d.outcomes, outcome{operation: o, failure: err.Error(), refused: true, lapsed: errors.Is(err, session.ErrExpired)})
		return
	}
	d.open[o.id] = o
}

// endTag is the tag of the request that ends a session.
const endTag = 1 << 63

// end asks for the end of the session, unless something waits for its commit.
func (d *sessionClient) end() bool { return d.session.End(d.w.now, endTag) == nil }

func (d *sessionClient) connected(replica uint64) {
	d.session.Connected(d.w.now, replica)
	d.session.Distance(replica, d.client.random.between(time.Millisecond/10, 10*time.Millisecond))
}

func (d *sessionClient) disconnected(replica uint64) { d.session.Disconnected(d.w.now, replica) }

func (d *sessionClient) receive(replica uint64, m *wire.Message) {
	_, view := d.session.Leader()
	d.w.Defects.mislead(m, view)
	d.session.Receive(d.w.now, replica, m)
}

func (d *sessionClient) tick() {
	d.session.Tick(d.w.now)
	if len(d.client.conns) > 0 && d.client.random.chance(0.02) { // it moves: another replica becomes the nearest
		d.session.Distance(pick(d.client.random, d.client.conns).replica.id, d.client.random.between(time.Millisecond/100, 10*time.Millisecond))
	}
}

func (d *sessionClient) take() ([]request, []outcome) {
	sends, outcomes := d.session.Take()
	var requests []request
	for i := range sends {
		requests = append(requests, request{sends[i].To, &sends[i].Message})
	}
	all := d.outcomes
	d.outcomes = nil
	for i := range outcomes {
		if outcomes[i].Tag == endTag {
			d.client.ended = true
			continue
		}
		if f, ok := d.outcome(&outcomes[i]); ok {
			all = append(all, f)
		}
	}
	return requests, all
}

func (d *sessionClient) outcome(x *session.Outcome) (outcome, bool) {
	o := d.open[x.Tag]
	if o == nil {
		if x.Tag != 0 {
			d.w.violate("outcome", "an outcome for #%d, which is not under way", x.Tag)
		}
		return outcome{}, false // of the registration
	}
	delete(d.open, x.Tag)
	f := outcome{operation: o, result: x.Result, revision: x.Revision, index: x.Token.Index, view: x.Token.View, fast: x.Fast}
	if x.Err != nil {
		f.failure = x.Err.Error()
		f.lapsed = errors.Is(x.Err, session.ErrExpired)
		f.refused = !x.Unknown || errors.Is(x.Err, session.ErrInvalid)
	}
	return f, true
}
