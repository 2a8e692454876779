package peer

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"github.com/weirdb/weir/internal/kvd/wire"
)

// sit gives a connection its seat. If a connection from the same address has
// it, that one is assumed to be dead at the other end, and must end first: its
// handler's Down comes before the new one's Up. sit waits for that no longer than
// ctx.
func (t *Transport) sit(ctx context.Context, s seat, h *holder) error {
	for {
		t.mu.Lock()
		old := t.seats[s]
		switch {
		case t.closed:
			t.mu.Unlock()
			return ErrClosed
		case old == nil:
			t.seats[s] = h
			t.mu.Unlock()
			return nil
		}
		t.mu.Unlock()
		if old.address != h.address {
			return &HandshakeError{Code: CodeTaken, Reason: "this replica is connected from " + old.address}
		}
		old.end(errSuperseded)
		select {
		case <-old.done:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// rise gives the seat back.
func (t *Transport) rise(s seat, h *holder) {
	t.mu.Lock()
	delete(t.seats, s)
	t.mu.Unlock()
	close(h.done)
}

// serve serves a link from Up to Down. ready is called before the handler knows
// of it; an error ends the link without Up.
func (t *Transport) serve(a Addr, l *link, ready func() error) error {
	if err := t.enter(a, l); err != nil {
		l.end(err)
		return err
	}
	if err := ready(); err != nil {
		l.end(err)
		t.leave(a, l)
		return err
	}
	l.count.connects.Add(1)
	level := slog.LevelInfo
	if a.Client() {
		level = slog.LevelDebug // there may be many
	}
	t.opts.Log.Log(t.ctx, level, "connected", "with", a.String(), "from", l.who.From.String())
	t.h.Up(a, l.who)
	why := l.run(func(ms []wire.Message) { t.h.Receive(a, ms) })
	t.leave(a, l)
	switch {
	case errors.Is(why, errCorrupt):
		t.corrupt.Add(1)
		level = slog.LevelWarn
	case errors.Is(why, errSilent):
		t.silent.Add(1)
		level = slog.LevelWarn
	}
	t.opts.Log.Log(t.ctx, level, "disconnected", "from", a.String(), "reason", why.Error())
	t.h.Down(a, why)
	return why
}

// enter makes a link the one that Send uses, unless it is no longer wanted.
func (t *Transport) enter(a Addr, l *link) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return ErrClosed
	}
	if r := t.known[uint64(a)]; r != nil && !r.member && t.opts.AllowPeer == nil {
		return errRemoved
	}
	t.links[a] = l
	if !a.Client() {
		l.setDelay(t.delay)
	}
	return nil
}

func (t *Transport) leave(a Addr, l *link) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.links, a)
	if r := t.known[uint64(a)]; r != nil {
		r.rtt = l.rtt.read()
	}
}

// linkConfig is the configuration of a connection to a replica or client.
func (t *Transport) linkConfig(latency time.Duration, client bool) linkConfig {
	cfg := linkConfig{
		latency: latency, limit: t.opts.QueueBytes, most: MaxMessage, keep: replicaKeep, hold: client, apart: !client,
		silentTicks: silentTicks(t.opts.SilentAfter+2*latency, t.opts.PingEvery),
	}
	if client {
		cfg.keep = clientKeep
	}
	return cfg
}

func silentTicks(silent, every time.Duration) int { return int((silent + every - 1) / every) }

// self is what this side reports of itself.
func (t *Transport) self() self {
	term, index := t.opts.Position()
	return self{ID: t.opts.ID, Address: t.opts.Advertise, Instance: t.instance, Term: term, Index: index}
}

func (t *Transport) latency(to uint64) time.Duration {
	if t.opts.Latency == nil {
		return 0
	}
	return min(max(t.opts.Latency(t.opts.ID, to), 0), maxLatency)
}

// dialer returns a dialer for a replica, for messages or a snapshot.
func (t *Transport) dialer(to uint64, r role, frame int) *dialer {
	d := &dialer{
		hello: hello{Role: r, Cluster: t.opts.Cluster, To: to, Self: t.self()}, group: t.opts.Group(),
		secret: t.opts.Secret, certs: t.opts.TLS,
		connect: t.opts.SilentAfter / 2, handshake: t.opts.HandshakeTimeout, maxFrame: frame,
	}
	if t.opts.AllowPeer != nil {
		d.allow = func(who Remote) error { return t.opts.AllowPeer(who, true) }
	}
	return d
}

// keepDialing keeps a connection with a replica until ctx ends.
func (t *Transport) keepDialing(ctx context.Context, r *replica, addr string) {
	pause := t.opts.RetryMin
	for ctx.Err() == nil {
		begin := time.Now()
		up, err := t.dialOnce(ctx, r, addr)
		if ctx.Err() != nil {
			return
		}
		if up && time.Since(begin) > t.opts.RetryMax { // otherwise it may be refused again and again
			pause = t.opts.RetryMin
		}
		news := t.note(r, err)
		if !up {
			r.count.failures.Add(1)
			level := slog.LevelDebug // a replica that is down
			if refused := (*HandshakeError)(nil); news && errors.As(err, &refused) {
				level = slog.LevelWarn // an operator must act
			}
			t.opts.Log.Log(ctx, level, "cannot connect", "to", Addr(r.id).String(), "address", addr, "reason", err.Error())
		}
		_ = wait(ctx, pause/2+rand.N(pause)) // the loop checks ctx itself
		pause = min(2*pause, t.opts.RetryMax)
	}
}

// wait sleeps for d, or until ctx ends, and then returns its cause.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// note keeps the reason why a connection or an attempt ended, for Stats, and reports whether
// it differs from the last one.
func (t *Transport) note(r *replica, err error) (news bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	news = r.lastErr != err.Error()
	r.lastErr = err.Error()
	return news
}

// dialOnce connects and serves the connection until it ends.
func (t *Transport) dialOnce(ctx context.Context, r *replica, addr string) (up bool, err error) {
	s, err := t.dialer(r.id, roleReplica, maxFrame).open(ctx, addr)
	if err != nil {
		return false, err
	}
	l := newLink(s, &r.count, t.linkConfig(t.latency(r.id), false))
	stop := context.AfterFunc(ctx, func() { l.end(context.Cause(ctx)) })
	defer stop()
	place, h := seat{roleReplica, r.id}, &holder{address: s.who.Address, end: l.end, done: make(chan struct{})}
	if err := t.sit(ctx, place, h); err != nil {
		l.end(err)
		return false, err
	}
	defer t.rise(place, h)
	return true, t.serve(Addr(r.id), l, func() error { return nil })
}

// onLoopback reports whether a connection's other end is on this machine.
func onLoopback(nc net.Conn) bool {
	a, ok := nc.RemoteAddr().(*net.TCPAddr)
	return ok && a.IP.IsLoopback()
}
