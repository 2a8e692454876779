package core

import (
	"bytes"
	"encoding/gob"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/session"
)

// This file moves a client to another process, and takes one in from another process, as far
// as that does not depend on the protocol.

// maxMovedBytes bounds the unprocessed input and unwritten output that move with a client; a
// client that has more does not move yet.
const maxMovedBytes = 1 << 20

// FewBytes reports whether a client's buffered bytes are few enough for it to move.
func FewBytes(s *netloop.Sock) bool {
	return len(s.In) <= maxMovedBytes && s.Pending() <= maxMovedBytes
}

// A DepartingClient is a client that is being handed over.
type DepartingClient struct {
	ID   uint32
	Sock *netloop.Sock
	// Session encodes the client, with input that was not processed and output that was not
	// written.
	Session func(in, out []byte) any
	// Gone is called on the loop when the other process has taken the client, Back when it has
	// not; stays means that it must not be handed over again.
	Gone func()
	Back func(fd int, in, out []byte, stays bool)
}

// Depart removes a client from the loop and passes it to Giving.
func (l *Loop[K, P, C]) Depart(d DepartingClient) {
	give := l.giving
	fd, in, out := d.Sock.Depart()
	delete(l.Clients, d.ID)
	give(&handover.Parcel{
		FD: fd, Session: d.Session(in, out),
		Delivered: func() {
			_ = unix.Close(fd) // the other process has it
			l.Post(d.Gone)
		},
		Returned: func(stays bool) {
			if !l.Post(func() { d.Back(fd, in, out, stays) }) {
				_ = unix.Close(fd)
			}
		},
	})
}

// WatchAgain puts the connection of a client that was not handed over back on the loop.
// before was its socket. On an error the connection is closed.
func (l *Loop[K, P, C]) WatchAgain(fd int, c netloop.Handler, before *netloop.Sock, in, out []byte) (*netloop.Sock, error) {
	s, err := l.Watch(fd, c)
	if err != nil {
		_ = unix.Close(fd)
		return nil, err
	}
	s.Taken, s.Written = before.Taken, before.Written
	s.Return(in, out)
	return s, nil
}

// A SettingsNumbers numbers sets of settings that a client has in several places.
type SettingsNumbers struct {
	Lists   [][]session.Setting // by number
	numbers map[*session.Set]int
}

// Of returns the number of a set.
func (n *SettingsNumbers) Of(set *session.Set) int {
	i, ok := n.numbers[set]
	if !ok {
		if n.numbers == nil {
			n.numbers = make(map[*session.Set]int)
		}
		i = len(n.Lists)
		n.numbers[set] = i
		n.Lists = append(n.Lists, set.List())
	}
	return i
}

// Numbered returns the sets that another process has numbered.
func Numbered(t *session.Table, lists [][]session.Setting) []*session.Set {
	sets := make([]*session.Set, len(lists))
	for i, list := range lists {
		sets[i] = t.Intern(list)
	}
	return sets
}

// An ArrivingClient is a client that another process hands over.
type ArrivingClient[L EventLoop] struct {
	FD             int
	ID             uint32
	Database, User string
	Known          bool // everything that it refers to is known
	// MayEnter returns why this weir's configuration does not permit the client, or nil.
	MayEnter func() error
	// TurnOut returns the message that tells the client that its session ends, and the reason.
	TurnOut func(why error) (last []byte, said error)
	// TakeIn makes it a client of the loop, on the loop's thread. If that fails, drop
	// closes the connection and forgets the client.
	TakeIn func(l L, drop func())
}

// Admit takes a client in, or tells it that its session ends.
func (h *Handover[L]) Admit(a *ArrivingClient[L]) handover.Admission {
	turnOut := func(why error) handover.Admission {
		h.HandedOver(false)
		last, said := a.TurnOut(why)
		_, _ = unix.Write(a.FD, last) // the client may be gone, or not read; the reason is what matters
		_ = unix.Close(a.FD)
		return handover.Admission{Refused: said}
	}
	if !a.Known {
		return turnOut(errors.New("its settings are not known"))
	}
	if err := a.MayEnter(); err != nil {
		return turnOut(err)
	}
	if err := h.TakeIn(a.Database, a.User); err != nil {
		return turnOut(err)
	}
	l := h.s.LeastLoaded()
	if !h.s.RegisterAs(l, a.ID) {
		h.PutOut(a.Database, a.User)
		return turnOut(errors.New("its number is another session's by now"))
	}
	l.Given() // given back when the client has left
	drop := func() {
		_ = unix.Close(a.FD)
		l.Taken()
		h.s.Forget(a.ID)
		h.PutOut(a.Database, a.User)
	}
	return handover.Admission{Drop: drop, Serve: func() {
		if h.HandedOver(true); !l.Post(func() { a.TakeIn(l, drop) }) {
			drop()
		}
	}}
}

// Encode encodes what one process tells the next.
func Encode(v any) ([]byte, error) {
	var b bytes.Buffer
	err := gob.NewEncoder(&b).Encode(v)
	return b.Bytes(), err
}

// Decode decodes what Encode has returned.
func Decode(data []byte, v any) error { return gob.NewDecoder(bytes.NewReader(data)).Decode(v) }

// DecodeLegacy decodes what the process before has left.
func DecodeLegacy(data []byte, v any) error {
	if err := Decode(data, v); err != nil {
		return fmt.Errorf("read what the process before has left: %w", err)
	}
	return nil
}
