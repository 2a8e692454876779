package handover

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"reflect"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/netloop"
)

// agreePatience bounds the exchange of preambles, and each answer of the process that
// serves until it stops accepting: it does nothing else meanwhile.
const agreePatience = 30 * time.Second

// A Taker takes over, in the next process.
type Taker struct {
	w        *wire
	pid      int
	process  int           // a descriptor of it; -1 if there is none
	patience time.Duration // for its end
	hung     time.Duration // for its answers until Run
	version  string
	sockets  map[socket]*netloop.Pausable
	taken    []Socket
	legacies map[string][]byte
	sides    map[string]Side // of this process, once it has taken the other one's place

	mu       sync.Mutex
	lastSeq  uint64                 // guarded by mu: of questions
	awaiting map[uint64]chan []byte // guarded by mu: answers
	ended    bool                   // guarded by mu: there will be no more answers
}

// Dial asks the process that serves at path for its offer. It returns nil, without an
// error, if there is no such process.
func Dial(path string) (*Taker, error) { return dial(path, agreePatience) }

// dial is Dial with a patience for each answer.
func dial(path string, hung time.Duration) (*Taker, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if noListener(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	t := &Taker{w: newWire(conn), process: -1, patience: endPatience, hung: hung, sockets: make(map[socket]*netloop.Pausable), legacies: make(map[string][]byte), awaiting: make(map[uint64]chan []byte)}
	if err := t.hear(); err != nil {
		t.Close()
		switch {
		case hangsUp(err):
			err = errors.New("the process at the other end has hung up: it ends, or its log says why")
		case errors.Is(err, os.ErrDeadlineExceeded):
			err = t.hangs()
		}
		return nil, err
	}
	return t, nil
}

// hangs is the error of a hand-over by a process that does not answer.
func (t *Taker) hangs() error {
	return fmt.Errorf("process %d, which serves, has not answered within %v: it hangs (end it, then start this one again)", t.pid, t.hung)
}

// hear reads the offer.
func (t *Taker) hear() (err error) {
	if t.pid, err = t.w.peer(); err != nil {
		return err
	}
	if fd, err := unix.PidfdOpen(t.pid, 0); err == nil {
		t.process = fd
	}
	if err := t.w.agree(t.hung); err != nil {
		return err
	}
	defer func() { _ = t.w.conn.SetReadDeadline(time.Time{}) }()
	for {
		_ = t.w.conn.SetReadDeadline(time.Now().Add(t.hung))
		k, err := t.w.receive()
		if err != nil {
			return err
		}
		switch k {
		case kindRefused:
			var r refused
			if err := t.w.decode(&r); err != nil {
				return err
			}
			return errors.New(r.Why)
		case kindSocket:
			err = t.addSocket()
		case kindLegacy:
			var l legacy
			err = t.w.decode(&l)
			t.legacies[l.Role] = l.Data
		case kindOffered:
			var o offered
			err = t.w.decode(&o)
			t.version = o.Version
			return err
		default:
			err = unexpected(k)
		}
		if err != nil {
			return err
		}
	}
}

func unexpected(k kind) error { return fmt.Errorf("a frame of kind %q was not expected", byte(k)) }

func (t *Taker) addSocket() error {
	var s socket
	if err := t.w.decode(&s); err != nil {
		return err
	}
	fd, err := t.w.takeFD()
	if err != nil {
		return err
	}
	ln, err := netloop.ListenerOf(fd, s.Role)
	if err == nil {
		t.sockets[s] = ln
	}
	return err
}

// PID returns the id of the process that serves.
func (t *Taker) PID() int { return t.pid }

// Version returns the version of the program that serves.
func (t *Taker) Version() string { return t.version }

// Socket returns the other process's listener for a role if it has the same address,
// otherwise nil.
func (t *Taker) Socket(role, address string) *netloop.Pausable {
	s := socket{role, address}
	ln := t.sockets[s]
	if ln != nil {
		t.taken = append(t.taken, Socket{role, address, ln})
		delete(t.sockets, s)
	}
	return ln
}

// Legacy returns what Side.Legacy of the other process returned for a role.
func (t *Taker) Legacy(role string) []byte { return t.legacies[role] }

// Take replaces the other process, which stops accepting clients. sides are by role. They
// may ask the other process about its clients at once, before they serve any; Run reads the
// answers.
func (t *Taker) Take(sides map[string]Side) error {
	t.closeSockets()
	roles := make([]string, len(t.taken))
	for i := range t.taken {
		roles[i] = t.taken[i].Role
	}
	_ = t.w.conn.SetDeadline(time.Now().Add(t.hung))
	defer func() { _ = t.w.conn.SetDeadline(time.Time{}) }()
	if err := t.w.send(kindTake, -1, take{roles}); err != nil {
		return err
	}
	k, err := t.w.receive()
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return t.hangs()
	case err == nil && k != kindGo:
		return unexpected(k)
	case hangsUp(err) && t.hasEnded(): // killed: no other process accepts clients
	case err != nil:
		return err
	}
	for i := range t.taken {
		t.taken[i].keepsPath(false)
	}
	t.sides = sides
	for role, s := range sides {
		s.AskBefore(func(ctx context.Context, q []byte) ([]byte, bool) { return t.ask(ctx, role, q) })
	}
	return nil
}

// endPatience is how long a process may take to end after it has closed the connection.
const endPatience = 5 * time.Second

// hasEnded reports whether the other process has ended, or is about to, and has not only
// closed the connection.
func (t *Taker) hasEnded() bool {
	if t.process < 0 {
		return false
	}
	poll := []unix.PollFd{{Fd: int32(t.process), Events: unix.POLLIN}}
	for {
		n, err := unix.Poll(poll, int(t.patience.Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return err == nil && n > 0
		}
	}
}

func (t *Taker) closeSockets() {
	for _, ln := range t.sockets {
		ln.KeepsPath(true) // the other process removes it
		_ = ln.Close()
	}
	t.sockets = nil
}

// Close closes the connection. Before Take, or before Run has ended, the other process then
// continues as before.
func (t *Taker) Close() {
	t.closeSockets()
	t.w.close()
	if t.process >= 0 {
		_ = unix.Close(t.process)
		t.process = -1
	}
}

// Counts are the results of a hand-over.
type Counts struct{ Taken, Refused int }

// errGoesOn is the error of a hand-over that the other process has given up.
var errGoesOn = errors.New("it has waited too long for this process and goes on serving: this one ends")

// Run admits clients until the other process has none left, or ctx ends, after which the
// other process keeps those that have not arrived. If it returns an error this process must
// end, because the other one continues.
func (t *Taker) Run(ctx context.Context, log *slog.Logger) (Counts, error) {
	stop := context.AfterFunc(ctx, func() { _ = t.w.conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	defer func() {
		for _, s := range t.sides {
			s.AskBefore(nil)
		}
		t.end()
		t.Close()
	}()
	var n Counts
	for {
		k, err := t.w.receive()
		if err != nil {
			if ctx.Err() != nil {
				return n, nil
			}
			return n, t.outcome(err)
		}
		switch k {
		case kindClient:
			err = t.admit(&n, log)
		case kindAnswer:
			err = t.answered()
		case kindDone:
			return n, nil
		default:
			err = unexpected(k)
		}
		if err != nil && ctx.Err() != nil {
			return n, nil // the other one keeps what could not be acknowledged
		}
		if err != nil {
			return n, t.outcome(err)
		}
	}
}

// outcome returns the result of a hand-over after an error of its connection: nil if the
// other process has ended.
func (t *Taker) outcome(err error) error {
	switch {
	case !hangsUp(err):
		return err
	case t.process < 0 || t.hasEnded():
		return nil
	}
	return errGoesOn
}

// errNoSide is why a client of an unknown role stays with the other process.
var errNoSide = errors.New("the new process does not serve this protocol")

// admit admits one client. It is served only after the receipt was written: until then it
// belongs to the other process.
func (t *Taker) admit(n *Counts, log *slog.Logger) error {
	var c client
	if err := t.w.decode(&c); err != nil {
		return err
	}
	fd, err := t.w.takeFD()
	s := t.sides[c.Role]
	if err == nil && s == nil {
		err = errNoSide
		_ = unix.Close(fd) // the other process still has it
	}
	if err != nil { // out of descriptors, most likely
		if err := t.w.dec.DecodeValue(reflect.Value{}); err != nil {
			return err
		}
		return t.w.send(kindReceipt, -1, receipt{Seq: c.Seq, Kept: err.Error()})
	}
	a, err := s.Receive(t.w.decode, fd)
	if err != nil {
		return err
	}
	r := receipt{Seq: c.Seq}
	if a.Refused != nil {
		r.Ended = a.Refused.Error()
		n.Refused++
		log.Warn("session not taken over: it was ended", "role", c.Role, "error", a.Refused)
		return t.w.send(kindReceipt, -1, r)
	}
	if err := t.w.send(kindReceipt, -1, r); err != nil {
		a.Drop()
		return err
	}
	n.Taken++
	a.Serve()
	return nil
}

// ask asks the other process.
func (t *Taker) ask(ctx context.Context, role string, data []byte) ([]byte, bool) {
	t.mu.Lock()
	if t.ended {
		t.mu.Unlock()
		return nil, false
	}
	t.lastSeq++
	seq, ch := t.lastSeq, make(chan []byte, 1)
	t.awaiting[seq] = ch
	t.mu.Unlock()
	defer func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		delete(t.awaiting, seq)
	}()
	if t.w.send(kindQuestion, -1, question{seq, role, data}) != nil {
		return nil, false
	}
	select {
	case got, ok := <-ch:
		return got, ok
	case <-ctx.Done():
		return nil, false
	}
}

func (t *Taker) answered() error {
	var a answer
	if err := t.w.decode(&a); err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if ch := t.awaiting[a.Seq]; ch != nil {
		ch <- a.Data // has room: there is one answer
		delete(t.awaiting, a.Seq)
	}
	return nil
}

// end wakes all callers of ask.
func (t *Taker) end() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.ended = true
	for seq, ch := range t.awaiting {
		close(ch)
		delete(t.awaiting, seq)
	}
}
