package netloop

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// A Porch accepts connections of a listening socket on a loop's thread, so that a client
// needs no goroutine and wakes up no other thread.
type Porch struct {
	of   *Pausable
	fd   int
	tcp  bool
	log  *slog.Logger
	take func(fd int, from net.Addr)

	l      *Loop
	last   uint64        // the turn in which connections were last accepted
	ready  bool          // there are connections to accept
	again  time.Duration // when it is watched again after a failure; 0 while it is watched
	failed int           // attempts since the last connection
	told   time.Duration // when they were last logged
}

// acceptAtOnce is the maximum of connections that are accepted in one turn of a loop.
const acceptAtOnce = 64

// NewPorch makes a porch of a listener, from which nothing else may accept; the socket stays
// open as long as either of them is. take gets each connection, non-blocking, on the loop's
// thread; see Loop.Accept.
func NewPorch(ln net.Listener, log *slog.Logger, take func(fd int, from net.Addr)) (*Porch, error) {
	of, ok := ln.(*Pausable)
	if !ok {
		of = NewPausable(ln)
	}
	fd, err := of.Descriptor()
	if err != nil {
		return nil, fmt.Errorf("accept on a loop: %w", err)
	}
	p := &Porch{of: of, fd: fd, log: log, take: take}
	if _, p.tcp = ln.Addr().(*net.TCPAddr); p.tcp {
		// Connections inherit these; package net sets them on each.
		err := unix.SetsockoptInt(p.fd, unix.IPPROTO_TCP, unix.TCP_NODELAY, 1)
		if err = errors.Join(err, Keepalive{}.WithDefaults().set(p.fd)); err != nil {
			return nil, errors.Join(fmt.Errorf("accept on a loop: %w", err), unix.Close(p.fd))
		}
	}
	if err := of.bare(); err != nil {
		return nil, errors.Join(fmt.Errorf("accept on a loop: %w", err), unix.Close(p.fd))
	}
	return p, nil
}

// Discard frees a porch that was not given to a loop.
func (p *Porch) Discard() { _ = unix.Close(p.fd) }

// Accept starts to accept a porch's connections; on the loop's thread only.
func (l *Loop) Accept(p *Porch) error {
	p.l = l
	if err := p.watch(); err != nil {
		_ = unix.Close(p.fd)
		return err
	}
	l.porches = append(l.porches, p)
	return nil
}

// Close stops accepting; on the loop's thread only.
func (p *Porch) Close() {
	if p.l == nil {
		return
	}
	if i := slices.Index(p.l.porches, p); i >= 0 {
		p.l.porches = slices.Delete(p.l.porches, i, i+1)
		_ = unix.Close(p.fd)
	}
}

func (p *Porch) watch() error {
	// A connection wakes up every process that polls the listener, but a paused one does
	// not accept.
	ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(p.fd)}
	if err := unix.EpollCtl(p.l.epfd, unix.EPOLL_CTL_ADD, p.fd, &ev); err != nil {
		return fmt.Errorf("watch listener: %w", err)
	}
	return nil
}

// knocked notes that a listener has connections to accept.
func (l *Loop) knocked(fd int) {
	for _, p := range l.porches {
		if p.fd == fd {
			p.ready = true
		}
	}
}

// acceptAll accepts the connections. It is called after all events of a turn, since a new
// socket may get the number of one that was closed in this turn.
func (l *Loop) acceptAll() {
	for i := 0; i < len(l.porches); i++ {
		if p := l.porches[i]; p.ready {
			p.ready = false
			p.accept()
		}
	}
}

func (p *Porch) accept() {
	// Most connections come alone, and a second accept that finds none costs as much as one
	// that does. If they come in consecutive turns, there are more.
	most := 1
	if p.l.stats.Turns == p.last+1 {
		most = acceptAtOnce
	}
	p.last = p.l.stats.Turns
	for range most {
		if p.of.Paused() {
			p.leaveAlone()
			return
		}
		// Not the one of package unix, which asks the kernel for the protocol each time.
		fd, from, err := syscall.Accept4(p.fd, unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC)
		switch {
		case err == nil:
			p.failed = 0
			p.take(fd, netAddr(from))
		case errors.Is(err, unix.EINTR), errors.Is(err, unix.ECONNABORTED):
		case errors.Is(err, unix.EAGAIN):
			return
		default:
			p.pause(err)
			return
		}
	}
	p.ready = most > 1 // the next turn continues, even without an event: see untilNext
}

// pause stops accepting for a moment; most likely there are no descriptors left.
// Clients wait in the socket's queue meanwhile.
func (p *Porch) pause(err error) {
	if p.failed++; p.told == 0 || p.l.Now-p.told >= tellAcceptEvery {
		p.told = max(p.l.Now, 1)
		p.log.Error("no client can be accepted: they wait", "error", err, "failed", p.failed, "hint", acceptHint(err))
	}
	p.leaveAlone()
}

// leaveAlone stops watching the listener for a moment.
func (p *Porch) leaveAlone() {
	p.again = p.l.Now + tickEvery
	_ = unix.EpollCtl(p.l.epfd, unix.EPOLL_CTL_DEL, p.fd, nil) // it is watched
}

// watchAgain ends pauses.
func (l *Loop) watchAgain() {
	for _, p := range l.porches {
		if p.again == 0 || l.Now < p.again || p.of.Paused() {
			continue
		}
		if err := p.watch(); err != nil {
			p.again = l.Now + tickEvery
			continue
		}
		p.again = 0
	}
}

// netAddr is the address of a peer as package net has it.
func netAddr(sa syscall.Sockaddr) net.Addr {
	switch sa := sa.(type) {
	case *syscall.SockaddrInet4:
		return &net.TCPAddr{IP: net.IP(sa.Addr[:]), Port: sa.Port}
	case *syscall.SockaddrInet6:
		a := &net.TCPAddr{IP: net.IP(sa.Addr[:]), Port: sa.Port}
		if sa.ZoneId != 0 {
			if ifi, err := net.InterfaceByIndex(int(sa.ZoneId)); err == nil {
				a.Zone = ifi.Name
			}
		}
		return a
	case *syscall.SockaddrUnix:
		return &net.UnixAddr{Name: sa.Name, Net: "unix"}
	}
	return &net.UnixAddr{Net: "unix"}
}
