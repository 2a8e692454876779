package process

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/proxy/core"
	"github.com/weirdb/weir/internal/proxy/handover"
	"github.com/weirdb/weir/internal/proxy/netloop"
	"github.com/weirdb/weir/internal/proxy/sight"
)

// This file is --takeover: a process that takes the place of the one that serves, and
// hands its own to the next.

// roleAdmin is the admin server's among what is handed over. Others are named by engine.
const roleAdmin = "admin"

// findBefore looks for the process whose place this one takes.
func (p *process) findBefore() (err error) {
	if p.cfg.Takeover == "" {
		return nil
	}
	if p.before, err = handover.Dial(p.cfg.Takeover); err != nil {
		return fmt.Errorf("--takeover: the process at %s: %w", p.cfg.Takeover, err)
	}
	if p.before != nil {
		p.log.Info("weir proxy takes over", "pid", p.before.PID(), "version", p.before.Version())
	}
	return nil
}

// inherited is a socket of the process before, if there is one and it listens where the
// configuration says, as the one that a side listens on; else nil, and it opens its own.
func (p *process) inherited(role, address string) []core.Socket {
	if p.before == nil {
		return nil
	}
	if ln := p.before.Socket(role, address); ln != nil {
		return []core.Socket{{Listener: ln}}
	}
	return nil
}

// listenAdmin opens --admin; nil if that is off.
func (p *process) listenAdmin() (*netloop.Pausable, error) {
	if p.cfg.Admin == "" {
		return nil, nil
	}
	if p.before != nil {
		if ln := p.before.Socket(roleAdmin, p.cfg.Admin); ln != nil {
			return ln, nil
		}
	}
	ln, err := net.Listen("tcp", p.cfg.Admin)
	if errors.Is(err, syscall.EADDRINUSE) {
		return nil, fmt.Errorf("listen for --admin: %w (another weir or program has it: give each weir of a machine an address of its own, or --admin off)", err)
	} else if err != nil {
		return nil, fmt.Errorf("listen for --admin: %w", err)
	}
	return netloop.NewPausable(ln), nil
}

// take has the process before accept no more clients, and makes ready for the next one.
func (p *process) take(admin *netloop.Pausable) (next *handover.Giver, err error) {
	if p.cfg.Takeover == "" {
		return nil, nil
	}
	if p.before != nil {
		for _, s := range p.sides {
			if legacy := p.before.Legacy(s.engine); legacy != nil {
				if err := s.heirs.Inherit(legacy); err != nil {
					return nil, fmt.Errorf("--takeover: %w", err)
				}
			}
		}
		if err := p.before.Take(p.handoverSides()); err != nil {
			return nil, fmt.Errorf("--takeover: process %d: %w", p.before.PID(), err)
		}
		p.taking.Store(true)
	}
	next = &handover.Giver{
		Path: p.cfg.Takeover, Version: sight.Version, Log: p.log, Sides: p.handoverSides(), Busy: p.busy,
		Patience: func() time.Duration { return p.sides[0].srv.Options().DrainTimeout },
		End:      func() { p.End(core.ShutdownNow) },
	}
	for _, s := range p.sides {
		next.Sockets = append(next.Sockets, handover.Socket{Role: s.engine, Address: s.listen, Listener: s.heirs.Listener()})
	}
	if admin != nil {
		next.Sockets = append(next.Sockets, handover.Socket{Role: roleAdmin, Address: p.cfg.Admin, Listener: admin})
	}
	return next, next.Listen()
}

func (p *process) handoverSides() map[string]handover.Side {
	sides := make(map[string]handover.Side, len(p.sides))
	for _, s := range p.sides {
		sides[s.engine] = s.heirs
	}
	return sides
}

// busy tells why this process cannot be taken over now.
func (p *process) busy() string {
	switch {
	case p.taking.Load():
		return fmt.Sprintf("it takes over from process %d still: try again when that has ended", p.before.PID())
	case p.stopping.Load():
		return "it is about to stop"
	}
	return ""
}

// takeIn takes the clients of the process before in, until it has ended.
func (p *process) takeIn(ctx context.Context) error {
	n, err := p.before.Run(ctx, p.log)
	p.taking.Store(false)
	if err != nil {
		return fmt.Errorf("--takeover: process %d: %w", p.before.PID(), err)
	}
	p.log.Info("weir proxy has taken over", "pid", p.before.PID(), "sessions", n.Taken, "refused", n.Refused)
	return nil
}
