package pgwire

import (
	"cmp"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// AcceptConfig configures Accept.
type AcceptConfig struct {
	// TLS holds the certificate, and in ClientCAs the authorities that are trusted for client
	// certificates. Default: none, TLS is declined.
	TLS *tls.Config
	// TLSMode says what is required of a client that does not connect over a Unix socket.
	// There, TLS is never requested, as in PostgreSQL.
	//
	//	disable        TLS is declined
	//	allow, prefer  with or without TLS, as the client likes
	//	require        TLS, client certificate optional
	//	verify-ca      TLS and a certificate signed by one of TLS.ClientCAs
	//	verify-full    the same, and its common name is the user's name
	//
	// Default: prefer with a TLS config, else disable.
	TLSMode TLSMode
	// MaxStartup bounds the startup packet, in bytes. Default: 10000, as in
	// PostgreSQL.
	MaxStartup int
	// Timeout bounds all of Accept, TLS handshake included. Default: 1 minute.
	Timeout time.Duration
	// MaxVersion is the newest protocol version to speak. Default: Version32.
	MaxVersion uint32
}

func (c AcceptConfig) withDefaults() AcceptConfig {
	if c.TLSMode == "" {
		c.TLSMode = TLSDisable
		if c.TLS != nil {
			c.TLSMode = TLSPrefer
		}
	}
	c.MaxStartup = cmp.Or(c.MaxStartup, 10000)
	c.Timeout = cmp.Or(c.Timeout, time.Minute)
	c.MaxVersion = cmp.Or(c.MaxVersion, Version32)
	return c
}

// Validate returns an error for a configuration with which no client could connect, or that
// would trust more than it says.
func (c AcceptConfig) Validate() error {
	c = c.withDefaults()
	if _, err := ParseTLSMode(string(c.TLSMode)); err != nil {
		return err
	}
	switch {
	case c.TLSMode.demanded() && c.TLS == nil:
		return fmt.Errorf("client TLS mode %s needs a server certificate", c.TLSMode)
	case c.TLSMode.verifies() && c.TLS.ClientCAs == nil:
		return fmt.Errorf("client TLS mode %s needs the certificates of the authorities that sign client certificates", c.TLSMode)
	}
	return nil
}

// Accept performs the part of a connection's startup that precedes authentication. It answers
// SSLRequest, accepts TLS that starts without one (ALPN "postgresql"), declines GSSENCRequest,
// and negotiates the version with a client that requests a newer protocol. The returned
// connection is conn itself or a *tls.Conn over it.
//
// Plain-text bytes that a client, or a third party, sends after an SSLRequest never become part
// of the session (CVE-2021-23214): Accept does not read ahead, so they become part of the TLS
// handshake, which fails.
//
// On error, Accept has sent an ErrorResponse if the protocol allows one at that point, and the
// caller closes conn. If the client has closed the connection without sending anything, as
// health checks do, the error is io.EOF.
func Accept(ctx context.Context, conn net.Conn, cfg AcceptConfig) (net.Conn, *Startup, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, nil, fmt.Errorf("accept client: %w", err)
	}
	a := &acceptor{cfg: cfg, raw: conn, conn: conn, local: conn.RemoteAddr().Network() == "unix"}
	release := netwire.Bound(ctx, conn, cfg.Timeout)
	s, err := a.run(ctx)
	if err != nil {
		a.refuse(err)
	}
	if err = release(err); err != nil {
		return nil, nil, fmt.Errorf("accept client: %w", err)
	}
	return a.conn, s, nil
}

// acceptor accepts one client.
type acceptor struct {
	cfg   AcceptConfig
	raw   net.Conn
	conn  net.Conn // raw or TLS over it
	tls   *tls.ConnectionState
	local bool // on the other end of a Unix socket, and not behind a balancer
}

func (a *acceptor) run(ctx context.Context) (*Startup, error) {
	askedTLS, askedGSS := false, false
	for {
		var head [shortest]byte
		n, err := io.ReadAtLeast(a.conn, head[:], 4)
		if err != nil {
			return nil, err
		}
		first := head[:n]
		// A TLS record of type handshake starts with 0x16; as a startup
		// packet it would be 369 million bytes long.
		if first[0] == 0x16 && !askedTLS && !askedGSS {
			askedTLS = true
			if err := a.direct(ctx, first); err != nil {
				return nil, err
			}
			continue
		}
		packet, err := readUntyped(a.conn, first, a.cfg.MaxStartup)
		if err != nil {
			return nil, err
		}
		switch code := binary.BigEndian.Uint32(packet); {
		case code == codeTLS && len(packet) == 4 && !askedTLS:
			askedTLS = true
			if err := a.answerTLS(ctx); err != nil {
				return nil, err
			}
		case code == codeGSS && len(packet) == 4 && !askedGSS && a.tls == nil:
			askedGSS = true
			if _, err := a.conn.Write([]byte{'N'}); err != nil {
				return nil, err
			}
		default:
			return a.startup(packet)
		}
	}
}

func (a *acceptor) answerTLS(ctx context.Context) error {
	if a.local || a.cfg.TLSMode == TLSDisable {
		_, err := a.conn.Write([]byte{'N'})
		return err
	}
	if _, err := a.conn.Write([]byte{'S'}); err != nil {
		return err
	}
	return a.handshake(ctx, nil)
}

// direct accepts TLS without an SSLRequest. As in PostgreSQL 17, ALPN is required, so that a
// client of another protocol cannot be redirected here.
func (a *acceptor) direct(ctx context.Context, first []byte) error {
	if a.local || a.cfg.TLSMode == TLSDisable {
		return errors.New("direct TLS connection, and TLS is disabled")
	}
	if err := a.handshake(ctx, first); err != nil {
		return err
	}
	if a.tls.NegotiatedProtocol != alpn {
		return fmt.Errorf("direct TLS connection without the ALPN protocol %q", alpn)
	}
	return nil
}

func (a *acceptor) handshake(ctx context.Context, prefix []byte) error {
	t := &tlsTransport{Conn: a.raw, prefix: prefix}
	c := tls.Server(t, t.serverConfig(a.cfg.TLS, a.cfg.TLSMode))
	if err := c.HandshakeContext(ctx); err != nil {
		// The stream cannot carry an ErrorResponse now.
		a.conn = nil
		return fmt.Errorf("TLS handshake: %w", err)
	}
	state := c.ConnectionState()
	a.conn, a.tls = c, &state
	return nil
}

func (a *acceptor) startup(packet []byte) (*Startup, error) {
	s, out, err := a.cfg.startup(packet, a.local, a.tls)
	if err == nil && out != nil {
		_, err = a.conn.Write(out)
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// startup parses a startup packet; local says that the client is on a Unix socket. out is the
// message about the protocol version that the client must get, or nil.
func (c *AcceptConfig) startup(packet []byte, local bool, t *tls.ConnectionState) (s *Startup, out []byte, err error) {
	s, unknown, err := ParseStartup(packet)
	if err != nil {
		return nil, nil, err
	}
	s.TLS = t
	if s.Kind == StartupCancel {
		// Before version 17, libpq sends these in plain text whatever its sslmode. The key in
		// the request is all that authorizes it.
		return s, nil, nil
	}
	if t == nil && !local && c.TLSMode.demanded() {
		e := NewFatal(CodeInvalidAuthorization, "connection without TLS refused for user %q", s.User)
		e.Hint = "Connect with sslmode=require or stronger."
		return nil, nil, e
	}
	if c.TLSMode == TLSVerifyFull && t != nil && netwire.CertName(t) != s.User {
		return nil, nil, NewFatal(CodeInvalidAuthorization, "certificate authentication failed for user %q", s.User)
	}
	if s.Version > c.MaxVersion || len(unknown) > 0 {
		s.Version = min(s.Version, c.MaxVersion)
		out = AppendNegotiateVersion(nil, s.Version, unknown)
	}
	return s, out, nil
}

// refuse sends the reason to the client if the client may see it.
func (a *acceptor) refuse(err error) {
	if a.conn == nil {
		return
	}
	if e := startupRefusal(err); e != nil {
		_, _ = a.conn.Write(AppendError(nil, e))
	}
}

// startupRefusal returns the error to send to the client, or nil if err is not meant for it.
func startupRefusal(err error) *Error {
	var e *Error
	if !errors.As(err, &e) && errors.Is(err, ErrMalformed) {
		e = NewFatal(CodeProtocolViolation, "invalid startup packet")
	}
	return e
}

// errGoodbye says that the client sent Terminate before its startup packet. As in PostgreSQL,
// it gets no error.
var errGoodbye = errors.New("the client left with Terminate")

// goodbye is the length that a Terminate has when it is read as a startup packet.
const goodbye = ClientTerminate << 24

// startupLength checks the length of a startup packet.
func startupLength(n, limit int) error {
	switch {
	case n == goodbye:
		return errGoodbye
	case n < shortest || n > limit:
		return fmt.Errorf("startup packet of %d bytes: limit %d: %w", n, limit, ErrMalformed)
	}
	return nil
}
