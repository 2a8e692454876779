package pgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrWantsTLS says that the client requests TLS: only Accept can continue, with the bytes that
// were not taken.
var ErrWantsTLS = errors.New("the client wants TLS")

// A Greeter does what Accept does, for clients without TLS, without I/O: an event loop passes
// the bytes of one client to it.
type Greeter struct {
	cfg                AcceptConfig
	local              bool // on a Unix socket
	askedTLS, askedGSS bool
}

// NewGreeter returns a Greeter for one client; local says that it is on a Unix socket.
func NewGreeter(cfg AcceptConfig, local bool) *Greeter {
	return &Greeter{cfg: cfg.withDefaults(), local: local}
}

// Take processes p, the bytes received from the client. n is the number of bytes used, 0 if
// more are needed; out is what to send to the client. s is nil until the startup packet is
// complete: then Take must be called again.
//
// On an error, out is the message for the client, or nil.
func (g *Greeter) Take(p []byte) (n int, out []byte, s *Startup, err error) {
	if len(p) == 0 {
		return 0, nil, nil, nil
	}
	if n, out, s, err = g.take(p); err == nil || errors.Is(err, ErrWantsTLS) {
		return n, out, s, err
	}
	if e := startupRefusal(err); e != nil {
		out = AppendError(nil, e)
	}
	return 0, out, nil, fmt.Errorf("accept client: %w", err)
}

func (g *Greeter) take(p []byte) (n int, out []byte, s *Startup, err error) {
	if p[0] == 0x16 && !g.askedTLS && !g.askedGSS { // see Accept
		return 0, nil, nil, ErrWantsTLS
	}
	if len(p) < 4 {
		return 0, nil, nil, nil
	}
	n = int(int32(binary.BigEndian.Uint32(p)))
	if err := startupLength(n, g.cfg.MaxStartup); err != nil {
		return 0, nil, nil, err
	}
	if len(p) < n {
		return 0, nil, nil, nil
	}
	packet := p[4:n]
	switch code := binary.BigEndian.Uint32(packet); {
	case code == codeTLS && n == shortest && !g.askedTLS:
		if !g.local && g.cfg.TLSMode != TLSDisable {
			return 0, nil, nil, ErrWantsTLS
		}
		g.askedTLS = true
		return n, []byte{'N'}, nil, nil
	case code == codeGSS && n == shortest && !g.askedGSS:
		g.askedGSS = true
		return n, []byte{'N'}, nil, nil
	}
	s, out, err = g.cfg.startup(packet, g.local, nil)
	return n, out, s, err
}
