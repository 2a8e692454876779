package handover

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// A Giver hands over, in the process that serves.
type Giver struct {
	Path    string // of the Unix socket to which the next process connects
	Version string // of this program
	Log     *slog.Logger
	Sides   map[string]Side // by role
	// Sockets are the listening sockets.
	Sockets []Socket
	// Patience returns how long to wait for clients that cannot be handed over at once.
	Patience func() time.Duration
	// End makes the process end as soon as the remaining clients have left.
	End func()
	// Busy returns why nothing can be handed over now; "" if it can.
	Busy func() string
	// Hung is the time after which the hand-over has failed if the next process neither
	// reads what it was sent nor sends a receipt. Default: 10 s.
	Hung time.Duration

	mu    sync.Mutex
	place *place // guarded by mu
}

// Listen listens for the next process.
func (g *Giver) Listen() (err error) {
	if g.place, err = occupy(g.Path); err != nil {
		return fmt.Errorf("listen for --takeover: %w", err)
	}
	return nil
}

// Run serves processes that connect until ctx ends. When everything has been handed over,
// it calls End.
func (g *Giver) Run(ctx context.Context) error {
	var serving sync.WaitGroup
	defer serving.Wait()
	turn := make(chan struct{}, 1) // one at a time
	for {
		g.mu.Lock()
		p := g.place
		g.mu.Unlock()
		stop := context.AfterFunc(ctx, p.leave)
		conn, err := p.AcceptUnix()
		stop()
		if err != nil && ctx.Err() != nil {
			return nil
		}
		if err != nil {
			if g.replaced(p) {
				continue
			}
			p.leave()
			return fmt.Errorf("await the next process: %w", err)
		}
		serving.Go(func() {
			select {
			case turn <- struct{}{}:
				defer func() { <-turn }()
				g.serve(ctx, conn)
			case <-time.After(turnPatience): // the previous one may just have given up
				g.refuse(conn, "it is being handed over already")
			}
		})
	}
}

// takePatience bounds how long the next process may take to prepare. This one serves
// meanwhile, but refuses other successors.
const takePatience = 2 * time.Minute

// turnPatience is how long a process waits for the end of another one's hand-over.
const turnPatience = time.Second

// replaced reports whether a place no longer belongs to this process.
func (g *Giver) replaced(p *place) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.place != p
}

// refuse tells another process that it cannot take over.
func (g *Giver) refuse(conn *net.UnixConn, why string) {
	w := newWire(conn)
	defer w.close()
	if _, err := w.peer(); err != nil {
		g.Log.Warn("hand-over refused", "error", err)
		return
	}
	if w.agree(agreePatience) == nil {
		_ = w.send(kindRefused, -1, refused{why}) // it sees the end of the connection otherwise
	}
}

// serve hands over to one process.
func (g *Giver) serve(ctx context.Context, conn *net.UnixConn) {
	w := newWire(conn)
	defer w.close()
	pid, err := w.peer()
	if err == nil {
		err = w.agree(agreePatience)
	}
	if err != nil {
		g.Log.Warn("hand-over refused", "pid", pid, "error", err)
		return
	}
	if why := g.Busy(); why != "" {
		_ = w.send(kindRefused, -1, refused{why}) // it sees the end of the connection otherwise
		return
	}
	w.patience = cmp.Or(g.Hung, 10*time.Second)
	_ = conn.SetReadDeadline(time.Now().Add(takePatience))
	stop := context.AfterFunc(ctx, func() { _ = conn.SetReadDeadline(time.Unix(1, 0)) })
	t, err := g.offer(ctx, w)
	if stop() {
		_ = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		g.Log.Warn("nothing was handed over: this process goes on", "pid", pid, "error", err)
		return
	}
	g.Log.Info("weir proxy hands its clients over", "pid", pid)
	d := &delivery{g: g, w: w, sent: make(map[uint64]*Parcel), wake: make(chan struct{}, 1), broken: make(chan struct{})}
	if err := d.begin(ctx, t.Roles); err != nil {
		close(d.broken)
		d.takeBack(err)
		return
	}
	go d.read(ctx)
	if err := d.run(ctx); err != nil {
		d.takeBack(err)
		return
	}
	d.mu.Lock()
	delivered, ended := d.delivered, d.ended+d.left() // those go with this process
	d.mu.Unlock()
	g.Log.Info("weir proxy has handed its clients over, and ends", "pid", pid, "sessions", delivered, "ended", ended)
	g.End()
	_ = conn.Close() // so that the reader ends, whose the descriptors of a frame are
	<-d.broken
}

// offer tells the next process what there is, and waits until it takes that.
func (g *Giver) offer(ctx context.Context, w *wire) (t take, err error) {
	for _, s := range g.Sockets {
		fd, err := s.Listener.Descriptor()
		if err != nil {
			return t, err
		}
		err = w.send(kindSocket, fd, socket{s.Role, s.Address})
		_ = unix.Close(fd)
		if err != nil {
			return t, err
		}
	}
	for role, s := range g.Sides {
		data, err := s.Legacy(ctx)
		if err != nil {
			return t, err
		}
		if err := w.send(kindLegacy, -1, legacy{role, data}); err != nil {
			return t, err
		}
	}
	if err := w.send(kindOffered, -1, offered{os.Getpid(), g.Version}); err != nil {
		return t, err
	}
	k, err := w.receive()
	if err != nil {
		return t, err
	}
	if k != kindTake {
		return t, unexpected(k)
	}
	return t, w.decode(&t)
}

// A delivery is one hand-over from the moment on when the next process has taken it.
type delivery struct {
	g *Giver
	w *wire

	mu        sync.Mutex
	heard     time.Time          // guarded by mu: since when it has owed a receipt, or had the last
	queue     []addressed        // guarded by mu: to be sent
	sent      map[uint64]*Parcel // guarded by mu: without a receipt
	delivered int                // guarded by mu
	ended     int                // guarded by mu

	seq    uint64
	wake   chan struct{}
	broken chan struct{} // closed when there will be no more receipts
	// garbled: the next process sends invalid frames. To be read when broken is closed.
	garbled bool
}

type addressed struct {
	role string
	*Parcel
}

// begin stops accepting, and lets the sides hand over their clients.
func (d *delivery) begin(ctx context.Context, roles []string) error {
	for i := range d.g.Sockets {
		s := &d.g.Sockets[i]
		if err := s.Listener.Pause(); err != nil {
			return err
		}
		if slices.Contains(roles, s.Role) {
			s.keepsPath(true)
		}
	}
	if err := d.w.send(kindGo, -1); err != nil {
		return err
	}
	for role, s := range d.g.Sides {
		if err := s.Give(ctx, func(p *Parcel) { d.give(addressed{role, p}) }); err != nil {
			d.g.Log.Warn("clients are not handed over", "role", role, "error", err) // the loops have ended
		}
	}
	return nil
}

// give takes a parcel, on a loop's thread.
func (d *delivery) give(p addressed) {
	d.mu.Lock()
	d.queue = append(d.queue, p)
	d.mu.Unlock()
	select {
	case d.wake <- struct{}{}:
	default:
	}
}

// emptyEvery is how often a hand-over checks whether clients are left.
const emptyEvery = 20 * time.Millisecond

// errHungUp ends a hand-over whose next process has ended; errHangs, one whose next
// process hangs.
var (
	errHungUp = errors.New("the next process has ended")
	errHangs  = errors.New("the next process hangs: it has acknowledged no client for too long")
)

// run sends the queue. It returns nil when no client is left that can be handed over in
// time. It returns an error if this process must continue, because the next one has closed
// the connection or hangs.
func (d *delivery) run(ctx context.Context) error {
	patience := time.NewTimer(d.g.Patience())
	defer patience.Stop()
	tick := time.NewTicker(emptyEvery)
	defer tick.Stop()
	over := false // the remaining clients stay
	for {
		select {
		case <-d.wake:
		case <-tick.C:
			if d.hangs() {
				return errHangs
			}
		case <-patience.C:
			over = true
			d.stay(ctx)
		case <-d.broken:
			if d.garbled {
				return nil
			}
			return errHungUp
		case <-ctx.Done(): // the servers have ended
			return d.w.send(kindDone, -1)
		}
		err := d.sendAll()
		switch {
		case errors.Is(err, errEncode):
			d.g.Log.Error("no more sessions are handed over", "error", err)
			over = true
			d.stay(ctx)
			d.putBack(d.unsent(), true)
		case err != nil:
			return err
		}
		if (over || d.left() == 0) && d.settled() {
			return d.w.send(kindDone, -1)
		}
	}
}

// hangs reports whether the next process has owed receipts for too long.
func (d *delivery) hangs() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.sent) > 0 && time.Since(d.heard) > d.w.patience
}

// stay stops handing over clients.
func (d *delivery) stay(ctx context.Context) {
	for role, s := range d.g.Sides {
		if err := s.Give(ctx, nil); err != nil && ctx.Err() == nil {
			d.g.Log.Warn("clients are still to be handed over", "role", role, "error", err) // the loops have ended
		}
	}
}

// unsent empties the queue.
func (d *delivery) unsent() (list []*Parcel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.queue {
		list = append(list, p.Parcel)
	}
	d.queue = nil
	return list
}

func (d *delivery) putBack(list []*Parcel, stay bool) {
	for _, p := range list {
		p.Returned(stay)
	}
}

// left returns how many clients have not left.
func (d *delivery) left() (n int) {
	for _, s := range d.g.Sides {
		n += s.Left()
	}
	return n
}

// settled reports whether nothing is in flight.
func (d *delivery) settled() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.queue) == 0 && len(d.sent) == 0
}

func (d *delivery) sendAll() error {
	for {
		d.mu.Lock()
		if len(d.queue) == 0 {
			d.mu.Unlock()
			return nil
		}
		p := d.queue[0]
		d.queue[0] = addressed{}
		d.queue = d.queue[1:]
		if len(d.sent) == 0 {
			d.heard = time.Now()
		}
		d.seq++
		seq := d.seq
		d.sent[seq] = p.Parcel // before it is sent: the receipt may come at once
		d.mu.Unlock()
		err := d.w.send(kindClient, p.FD, client{seq, p.role}, p.Session)
		if errors.Is(err, errEncode) {
			d.mu.Lock()
			delete(d.sent, seq)
			d.mu.Unlock()
			p.Returned(true)
		}
		if err != nil {
			return err
		}
	}
}

// read reads receipts and questions until the next process closes the connection.
func (d *delivery) read(ctx context.Context) {
	defer close(d.broken)
	var answering sync.WaitGroup
	defer answering.Wait()
	for {
		k, err := d.w.receive()
		if err == nil {
			switch k {
			case kindReceipt:
				err = d.receipted()
			case kindQuestion:
				var q question
				if err = d.w.decode(&q); err == nil && d.g.Sides[q.Role] != nil {
					answering.Go(func() {
						data := d.g.Sides[q.Role].Answer(ctx, q.Data)
						_ = d.w.send(kindAnswer, -1, answer{q.Seq, data}) // the end of the connection is an answer, too
					})
				}
			default:
				err = unexpected(k)
			}
		}
		if err == nil {
			continue
		}
		if !hangsUp(err) && !errors.Is(err, net.ErrClosed) {
			// What the next process has read is unknown: everything was sent. It serves, and
			// this one ends.
			d.g.Log.Error("the next process says what this one does not understand", "error", err)
			d.garbled = true
			for _, p := range d.unreceipted() {
				p.Delivered()
			}
		}
		return
	}
}

// unreceipted removes and returns the parcels without a receipt.
func (d *delivery) unreceipted() (list []*Parcel) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, p := range d.sent {
		list = append(list, p)
	}
	clear(d.sent)
	return list
}

// receipted processes a client's receipt.
func (d *delivery) receipted() error {
	var r receipt
	if err := d.w.decode(&r); err != nil {
		return err
	}
	d.mu.Lock()
	p := d.sent[r.Seq]
	delete(d.sent, r.Seq)
	d.heard = time.Now()
	switch {
	case p == nil || r.Kept != "":
	case r.Ended == "":
		d.delivered++
	default:
		d.ended++
	}
	d.mu.Unlock()
	switch {
	case p == nil:
		return fmt.Errorf("receipt %d is for nothing that was sent", r.Seq)
	case r.Kept != "":
		d.g.Log.Warn("session not handed over: it stays", "because", r.Kept)
		p.Returned(true)
		return nil
	case r.Ended != "":
		d.g.Log.Warn("session ended: the next process does not take it", "because", r.Ended)
	}
	p.Delivered()
	return nil
}

// takeBack continues as if there had been no hand-over, except for the clients that were
// delivered. It waits until all receipts have been read. A next process that is only late
// cannot write another receipt, and so serves none of the others.
func (d *delivery) takeBack(why error) {
	_ = d.w.conn.CloseWrite() // ends the connection if it is still open
	_ = d.w.conn.CloseRead()
	<-d.broken
	g := d.g
	d.stay(context.Background())
	back := append(d.unsent(), d.unreceipted()...)
	d.putBack(back, false)
	for i := range g.Sockets {
		s := &g.Sockets[i]
		s.keepsPath(false)
		if err := s.Listener.Resume(); err != nil {
			g.Log.Error("a socket accepts no connections", "address", s.Address, "error", err)
		}
	}
	g.Log.Warn("the hand-over has failed: this process goes on", "because", why, "delivered", d.delivered, "returned", len(back))
	if err := g.again(); err != nil {
		g.Log.Error("the next process is awaited no longer", "error", err)
	}
}

// again listens for a next process again, if one has replaced the socket.
func (g *Giver) again() error {
	p, err := occupy(g.Path)
	if err != nil {
		return fmt.Errorf("listen for --takeover: %w", err)
	}
	g.mu.Lock()
	old := g.place
	g.place = p
	g.mu.Unlock()
	return old.Close() // lets Run use the new one
}
