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

// wire is a connection that tells the timeline of the operation which uses it of
// each read and write. It lies below TLS, so what TLS costs is inside encode and
// decode. Without an operation it costs a load of a pointer.
type wire struct {
	net.Conn
	clock   clock
	dialer  *dialer
	stamps  *stampReader // nil where arrivals cannot be known
	present atomic.Pointer[timeline]
}

// attach has the connection's events go to an operation, or to none if t is nil.
func (w *wire) attach(t *timeline) { w.present.Store(t) }

// Read reads, and on the way finds out when the data had arrived. A driver that
// reads in the background may have begun before the operation that the data are
// for, in one that has ended: the end of the read is the present one's.
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
		// The kernel stamps by the wall clock. Against this very moment, a step
		// of that clock can spoil one read and no more.
		arrived = now - max(ended.UnixNano()-at, 0)
	}
	t.readEnds(arrived, now)
	return n, err
}

// Write writes.
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

// Close closes the connection.
func (w *wire) Close() error {
	w.dialer.mu.Lock()
	delete(w.dialer.wires, w)
	w.dialer.mu.Unlock()
	return w.Conn.Close()
}

// SyscallConn lets a driver look at the socket by itself, as go-sql-driver does
// to see whether a connection from the pool has died meanwhile.
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

// dialer opens wires. All drivers dial through one.
type dialer struct {
	clock clock
	// network and address replace those that the driver asks for, if set.
	network, address string
	// unstamped gives up the arrival times.
	unstamped bool
	// stamped tells that arrivals are known of the connections opened so far.
	stamped atomic.Bool
	net     net.Dialer

	mu    sync.Mutex // guards all below
	wires map[*wire]struct{}
	cut   bool
}

// DialContext opens a connection and leaves it in the slot of ctx, if it has one.
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

// cutAll closes all connections and lets no more be opened. It is how operations
// end that wait for a server which does not answer: they run without a context
// that can be cancelled, since drivers pay for one with every statement.
func (d *dialer) cutAll() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.cut = true
	for w := range d.wires {
		_ = w.Conn.Close()
	}
}

// dialSlot is the key of a context's **wire, by which a pool learns which wire
// belongs to the connection that it has just opened.
type dialSlot struct{}

// wireOf returns the wire below a driver's connection, nil if there is none.
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

// timelineOf returns the operation that a context belongs to, nil if none.
func timelineOf(ctx context.Context) *timeline {
	t, _ := ctx.Value(timelineKey{}).(*timeline)
	return t
}
