package core

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/weirdb/weir/internal/proxy/sight"
	"github.com/weirdb/weir/internal/proxy/upstream"
)

// This file is about a database with several hosts, one of which gets the connections at any
// time: upstream finds out which one, and connections to the others end at once.

// moved makes every loop leave the endpoint that connections went to.
func (s *Server[L]) moved(_, now upstream.Endpoint) {
	for _, l := range s.Loops {
		l.Post(func() {
			l.Moved(now)
			s.Cache.Purge("") // after answers that were in flight elsewhere
		})
	}
}

// Patience is how long statements and logins wait while the server cannot be reached. With
// several hosts, another one may be promoted meanwhile.
func (s *Server[L]) Patience() time.Duration {
	o := s.side.Options()
	if s.Monitor.Static() {
		return o.ConnectPatience
	}
	return max(o.ConnectPatience, o.FailoverTimeout)
}

// AwaitHost waits until there is a host to connect to, for at most as long as statements
// wait.
func (s *Server[L]) AwaitHost(ctx context.Context) (upstream.Endpoint, error) {
	ctx, cancel := context.WithTimeout(ctx, s.Patience())
	defer cancel()
	tick := time.NewTicker(awaitEvery)
	defer tick.Stop()
	for {
		e, err := s.Monitor.Current(ctx)
		if err == nil {
			return e, nil
		}
		select {
		case <-ctx.Done():
			return e, err
		case <-tick.C:
		}
	}
}

// Host is the current host, for display.
func (s *Server[L]) Host() string {
	if !s.Monitor.Looked() {
		return s.side.Upstream()
	}
	e, err := s.Monitor.Current(context.Background()) // which does not wait
	if err != nil {
		return s.side.Upstream()
	}
	return e.Host
}

// hosts is what is known of each host.
func (s *Server[L]) hosts() (list []sight.HostStatus) {
	var now upstream.Endpoint
	if s.Monitor.Looked() {
		now, _ = s.Monitor.Current(context.Background()) // which does not wait; the errors are in the list
	}
	for _, h := range s.Monitor.Hosts() {
		st := sight.HostStatus{Host: h.Host, Address: h.Address, Role: h.Role.String(), Term: h.Term, Leader: h.Leader, Current: h.Endpoint == now}
		st.LagKnown, st.Lag, st.Behind = h.Lag.Known, h.Lag.For, h.Lag.Behind
		if h.Err != nil {
			st.Err = h.Err.Error()
		}
		list = append(list, st)
	}
	return list
}

// hostTable is SHOW HOSTS.
func (s *Server[L]) hostTable() sight.Table {
	t := sight.Table{Cols: []string{"host", "address", "role", "term", "leader", "current", "behind", "lag_ms", "error"}}
	for _, h := range s.hosts() {
		var behind, lag any = "", "" // unknown
		if h.LagKnown {
			behind, lag = h.Behind, h.Lag.Milliseconds()
		}
		t.Add(h.Host, h.Address, h.Role, h.Term, h.Leader, h.Current, behind, lag, h.Err)
	}
	return t
}

// Moved closes the connections of the loop's pools to every other endpoint.
func (l *Loop[K, P, C]) Moved(now upstream.Endpoint) {
	for _, p := range l.PoolList {
		p.Moved(now)
	}
}

// Leave ends the connections to every endpoint but now, with whatever is in flight on them:
// weir must not write to a server that is no longer the primary, and clients have waited long
// enough for one that hangs.
func (p *Base[B, C, U, L, N]) Leave(now upstream.Endpoint) {
	p.conns.epoch++ // what is being opened goes elsewhere
	for _, b := range slices.Clone(p.Backends) {
		c := b.Pooled()
		if c.Endpoint == now {
			continue
		}
		if now.Host == "" {
			b.Cut(fmt.Errorf("%s does not serve any more, and no other host has taken its place yet", c.Endpoint.Host))
		} else {
			b.Cut(fmt.Errorf("connections go to %s now, and not to %s", now.Host, c.Endpoint.Host))
		}
	}
	p.Works()
	p.Wake()
}

// Renewed returns the hosts of now with the passwords and certificates that they have in
// next. It returns now and false if the two differ in anything else.
func Renewed[C interface{ Renewed(next C) (C, bool) }](now, next []C) ([]C, bool) {
	if len(now) != len(next) {
		return now, false
	}
	out := make([]C, len(now))
	for i := range now {
		var same bool
		if out[i], same = now[i].Renewed(next[i]); !same {
			return now, false
		}
	}
	return out, true
}
