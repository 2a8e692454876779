package profile

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// wire is a connection that reports each read and write to the timeline of the operation which
// uses it. It is below TLS, so the cost of TLS is part of encode and decode. Without an
// operation it costs a pointer load.
type wire struct {
	net.Conn
	clock   clock
	dialer  *dialer
	stamps  *stampReader // nil if arrival times are not available
	present atomic.Pointer[timeline]
}

// attach directs the connection's events to an operation, or to none if t is nil.
func (w *wire) attach(t *timeline) { w.present.Store(t) }

// Read reads, and finds out when the data arrived. A driver that reads in the background may
// have started the read during an earlier operation: the end of the read belongs to the present
// one.
func (w *wire) Read(b []byte) (int, error) {
	t := w.present.Load()
	if t != nil && t.restAwaited() {
		t.readBegins(w.clock.Now())
	}
	if w.stamps == nil || t == nil {
		n, err := w.Conn.Read(b)
		if t = w.present.Load(); t != nil {
			t.readEnds(0, w.clock.Now())
		}
		return n, err
	}
	n, at, err := w.stamps.read(b)
	if t = w.present.Load(); t == nil {
		return n, err
	}
	ended := time.Now()
	now, arrived := w.clock.of(ended), int64(0)
	if at > 0 {
		// The kernel stamps by the wall clock. Since it is compared with the present moment, a
		// step of that clock can spoil only one read.
		arrived = now - max(ended.UnixNano()-at, 0)
	}
	t.readEnds(arrived, now)
	return n, err
}

func (w *wire) Write(b []byte) (int, error) {
	t := w.present.Load()
	if t == nil {
		return w.Conn.Write(b)
	}
	t.writeBegins(w.clock.Now())
	n, err := w.Conn.Write(b)
	t.writeEnds(w.clock.Now())
	return n, err
}

func (w *wire) Close() error {
	w.dialer.mu.Lock()
	delete(w.dialer.wires, w)
	w.dialer.mu.Unlock()
	return w.Conn.Close()
}

// SyscallConn lets a driver check the socket itself, as go-sql-driver does to see whether a
// connection from the pool has died.
func (w *wire) SyscallConn() (syscall.RawConn, error) {
	sc, ok := w.Conn.(syscall.Conn)
	if !ok {
		return nil, errors.ErrUnsupported
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return nil, err
	}
	return probedConn{raw, w}, nil
}

// probedConn is a RawConn whose reads are checks of the connection.
type probedConn struct {
	syscall.RawConn
	wire *wire
}

func (c probedConn) Read(f func(fd uintptr) bool) error {
	t := c.wire.present.Load()
	if t == nil {
		return c.RawConn.Read(f)
	}
	t.probeBegins(c.wire.clock.Now())
	err := c.RawConn.Read(f)
	t.probeEnds(c.wire.clock.Now())
	return err
}

// dialer opens wires. All drivers dial through it.
type dialer struct {
	clock clock
	// network and address, if set, replace those that the driver asks for.
	network, address string
	// unstamped disables arrival times.
	unstamped bool
	// stamped reports whether the connections opened so far have arrival times.
	stamped atomic.Bool
	net     net.Dialer

	mu    sync.Mutex // guards all below
	wires map[*wire]struct{}
	cut   bool
}

// DialContext opens a connection and stores it in the dialSlot of ctx, if there is one.
func (d *dialer) DialContext(ctx context.Context, network, address string) (net.Conn, error) {
	if d.network != "" {
		network, address = d.network, d.address
	}
	conn, err := d.net.DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	w := &wire{Conn: conn, clock: d.clock, dialer: d}
	if !d.add(w) {
		return nil, errors.Join(net.ErrClosed, conn.Close())
	}
	if !d.unstamped {
		if w.stamps = newStampReader(conn); w.stamps != nil {
			d.stamped.Store(true)
		}
	}
	if slot, ok := ctx.Value(dialSlot{}).(**wire); ok {
		*slot = w
	}
	return w, nil
}

func (d *dialer) add(w *wire) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cut {
		return false
	}
	if d.wires == nil {
		d.wires = make(map[*wire]struct{})
	}
	d.wires[w] = struct{}{}
	return true
}

// closeAll closes all connections and prevents new ones. It ends operations that wait for a
// server which does not answer: they run without a cancellable context, since drivers pay for
// one with every statement.
func (d *dialer) closeAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = true
	for w := range d.wires {
		_ = w.Conn.Close()
	}
}

// dialSlot is the key of a context's **wire, from which a pool learns which wire belongs to the
// connection that it just opened.
type dialSlot struct{}

// wireOf returns the wire below a driver's connection, or nil.
func wireOf(conn net.Conn) *wire {
	for {
		switch c := conn.(type) {
		case *wire:
			return c
		case interface{ NetConn() net.Conn }: // *tls.Conn
			conn = c.NetConn()
		default:
			return nil
		}
	}
}

// timelineKey is the key of a context's *timeline.
type timelineKey struct{}

// timelineOf returns the timeline of the operation that a context belongs to, or nil.
func timelineOf(ctx context.Context) *timeline {
	t, _ := ctx.Value(timelineKey{}).(*timeline)
	return t
}
