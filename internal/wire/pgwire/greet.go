package pgwire

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// ErrWantsTLS reports a client with which only Accept can go on, from the bytes on that
// were not taken.
var ErrWantsTLS = errors.New("the client wants TLS")

// A Greeter does what Accept does, for clients without TLS, and reads and writes
// nothing: an event loop brings it the bytes of one client.
type Greeter struct {
	cfg                AcceptConfig
	local              bool // on a Unix socket
	askedTLS, askedGSS bool
}

// NewGreeter awaits a client, which is on a Unix socket if it is local.
func NewGreeter(cfg AcceptConfig, local bool) *Greeter {
	return &Greeter{cfg: cfg.withDefaults(), local: local}
}

// Take takes what the client says from p, the bytes that it has sent. n is the length
// of what was taken, 0 if more bytes are needed, out what is to be sent to it. s is its
// startup, nil until that has come: then there is more to take.
//
// On an error out is what the client is told about it, nil if there is nothing to tell.
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
