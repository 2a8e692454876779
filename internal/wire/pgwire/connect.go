package pgwire

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"syscall"
	"time"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// ConnectConfig says which server to connect to, and as which user. Formatting it does not
// print its secrets.
type ConnectConfig struct {
	// Network is "tcp" or "unix". Default: unix if Address starts with "/" or
	// "@", else tcp.
	Network string
	// Address is host:port, or the path of the socket. Required.
	Address string
	User    string // Required, except for Cancel.
	// Database defaults to the user's name, by the server.
	Database string
	// Password answers requests of every kind. Default: Keys.
	Password string
	// Keys is what a client's login revealed; see ClientKeys.
	Keys *ClientKeys
	// Params are sent after user and database, in order.
	Params []Param
	// TLSMode says what is required of a server that is not on a Unix socket; there, TLS is
	// never used, as in libpq.
	//
	//	disable      no TLS
	//	allow        without TLS; with it if the server refuses that
	//	prefer       TLS if the server has it; without if that is refused
	//	require      TLS, without a check of who the server is
	//	verify-ca    and its certificate is signed by one of TLSConfig.RootCAs
	//	verify-full  and is made out for the host
	//
	// Default: prefer.
	TLSMode TLSMode
	// TLSDirect starts TLS without an SSLRequest (PostgreSQL 17, sslnegotiation=direct). It
	// needs mode require or stronger.
	TLSDirect bool
	// TLSConfig holds authorities and a client certificate. ServerName
	// defaults to the host of Address, RootCAs to the system's.
	TLSConfig *tls.Config
	// ChannelBinding is libpq's: disable, prefer or require. Default: prefer.
	ChannelBinding string
	// Dial opens the connection. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout limits each attempt, from dialing to ReadyForQuery. Default: only the context's.
	Timeout time.Duration
	// ProtocolVersion is the version to request; the server may choose a lower one. Default:
	// Version30.
	ProtocolVersion uint32
}

// Renewed returns c with the password, the certificate and the authorities of next. It returns
// false, and c, if next has a different target, or differs in anything else but Dial.
func (c ConnectConfig) Renewed(next ConnectConfig) (ConnectConfig, bool) {
	renewed := c
	renewed.Password, renewed.TLSConfig = next.Password, next.TLSConfig
	a, b := renewed, next
	a.Dial, b.Dial = nil, nil // functions cannot be compared
	if !reflect.DeepEqual(a, b) {
		return c, false
	}
	return renewed, true
}

// String returns address, user and database.
func (c ConnectConfig) String() string {
	s := c.Address
	if c.User != "" {
		s += " as " + c.User
	}
	if c.Database != "" && c.Database != c.User {
		s += ", database " + c.Database
	}
	return s
}

// GoString keeps %#v from printing secrets.
func (c ConnectConfig) GoString() string { return c.String() }

// LogValue keeps loggers from printing secrets.
func (c ConnectConfig) LogValue() slog.Value { return slog.StringValue(c.String()) }

func (c ConnectConfig) withDefaults() ConnectConfig {
	if c.Network == "" {
		c.Network = "tcp"
		if strings.HasPrefix(c.Address, "/") || strings.HasPrefix(c.Address, "@") {
			c.Network = "unix"
		}
	}
	c.TLSMode = cmp.Or(c.TLSMode, TLSPrefer)
	c.ChannelBinding = cmp.Or(c.ChannelBinding, "prefer")
	c.ProtocolVersion = cmp.Or(c.ProtocolVersion, Version30)
	if c.Keys == nil {
		c.Keys = &ClientKeys{}
	}
	c.Password = cmp.Or(c.Password, c.Keys.Password)
	if c.Dial == nil {
		c.Dial = (&net.Dialer{}).DialContext
	}
	return c
}

func (c ConnectConfig) validate() error {
	if c.Address == "" {
		return errors.New("no server address")
	}
	if _, err := ParseTLSMode(string(c.TLSMode)); err != nil {
		return err
	}
	if c.TLSDirect && c.Network != "unix" && !c.TLSMode.demanded() {
		return fmt.Errorf("direct TLS needs mode require, verify-ca or verify-full, not %s", c.TLSMode)
	}
	switch c.ChannelBinding {
	case "disable", "prefer", "require":
	default:
		return fmt.Errorf("channel binding %q: want disable, prefer or require", c.ChannelBinding)
	}
	if c.ProtocolVersion>>16 != 3 {
		return fmt.Errorf("protocol version %d.%d: want 3.0 or 3.2", c.ProtocolVersion>>16, c.ProtocolVersion&0xffff)
	}
	// A NUL would end a string of the startup packet early, and what follows
	// would be read as further parameters.
	if strings.ContainsRune(c.Password, 0) {
		return errors.New("the password holds a NUL byte")
	}
	for _, p := range c.params() {
		if p.Name == "" || strings.ContainsRune(p.Name, 0) || strings.ContainsRune(p.Value, 0) {
			return fmt.Errorf("startup parameter %q is empty or holds a NUL byte", p.Name)
		}
	}
	return nil
}

// params returns the parameters of the startup packet.
func (c ConnectConfig) params() []Param {
	params := []Param{{"user", c.User}}
	if c.Database != "" {
		params = append(params, Param{"database", c.Database})
	}
	return append(params, c.Params...)
}

// Backend is a server connection that is logged in and idle.
type Backend struct {
	// Conn has been read exactly up to the end of ReadyForQuery.
	Conn net.Conn
	// PID and Secret are the arguments for Cancel. PID is 0 if the server has sent none.
	PID    uint32
	Secret []byte
	// Version is the negotiated protocol version.
	Version uint32
	// Params are the ParameterStatus messages of the login, in order.
	Params []Param
	// Notices are the NoticeResponses of the login.
	Notices []*Error
	TLS     bool
	// Method is the method that the server requested: AuthTrust if none, otherwise
	// AuthPassword, AuthMD5 or AuthSCRAM.
	Method AuthMethod
}

// Param returns the value that the server reported for a setting, else "".
func (b *Backend) Param(name string) string {
	for i := len(b.Params) - 1; i >= 0; i-- {
		if b.Params[i].Name == name {
			return b.Params[i].Value
		}
	}
	return ""
}

// Connect logs in to a server. If the server rejects the login, the error wraps its *Error.
func Connect(ctx context.Context, cfg ConnectConfig) (*Backend, error) {
	cfg = cfg.withDefaults()
	var before error
	attempts := cfg.attempts()
	for i, attempt := range attempts {
		b, err := cfg.login(ctx, attempt)
		if err == nil {
			return b, nil
		}
		if i+1 == len(attempts) || !fallback(err) {
			return nil, cfg.failed("connect to", err, before)
		}
		before = err
	}
	return nil, cfg.failed("connect to", errors.New("no attempt made"), nil)
}

func (c ConnectConfig) failed(step string, err, before error) error {
	if before != nil {
		return fmt.Errorf("%s %s: %w (the attempt before: %w)", step, c, err, before)
	}
	return fmt.Errorf("%s %s: %w", step, c, err)
}

// attempt says how one attempt uses TLS.
type attempt uint8

const (
	attemptPlain    attempt = iota
	attemptOptional         // TLS if the server supports it
	attemptTLS
)

func (c ConnectConfig) attempts() []attempt {
	switch {
	case c.Network == "unix" || c.TLSMode == TLSDisable:
		return []attempt{attemptPlain}
	case c.TLSMode == TLSAllow:
		return []attempt{attemptPlain, attemptTLS}
	case c.TLSMode == TLSPrefer:
		return []attempt{attemptOptional, attemptPlain}
	}
	return []attempt{attemptTLS}
}

// fallback reports whether an attempt with the other use of TLS may succeed: the TLS handshake
// failed, or the server has no pg_hba.conf entry for this one. After a wrong password there is
// no other attempt.
func fallback(err error) bool {
	var broken *handshakeError
	return errors.As(err, &broken) || CodeOf(err) == CodeInvalidAuthorization
}

// handshakeError is an error between SSLRequest and startup packet.
type handshakeError struct{ error }

func (e *handshakeError) Unwrap() error { return e.error }

// login makes one attempt.
func (c ConnectConfig) login(ctx context.Context, how attempt) (*Backend, error) {
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("no answer within %v: %w", c.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	conn, err := c.open(ctx, how)
	if err != nil {
		return nil, err
	}
	release := netwire.Bound(ctx, conn, 0)
	l := &login{link: link{conn: conn, max: maxServerMessage}, cfg: c}
	b, err := l.run()
	if err = release(err); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return b, nil
}

// Open does the first part of Connect: it dials, negotiates TLS by the mode (prefer takes what
// it gets; allow means disable) and sends the startup packet. The server's next message is an
// Authentication message or an ErrorResponse, as RelayAuth expects; FinishLogin reads the
// messages after authentication.
func Open(ctx context.Context, cfg ConnectConfig) (net.Conn, error) {
	cfg = cfg.withDefaults()
	conn, err := cfg.open(ctx, cfg.attempts()[0])
	if err != nil {
		return nil, cfg.failed("connect to", err, nil)
	}
	return conn, nil
}

func (c ConnectConfig) open(ctx context.Context, how attempt) (net.Conn, error) {
	if err := c.validate(); err != nil {
		return nil, err
	}
	if c.User == "" {
		return nil, errors.New("no user name")
	}
	return c.dial(ctx, how, AppendStartup(nil, c.ProtocolVersion, c.params()))
}

// dial connects, negotiates TLS and sends the first packet.
func (c ConnectConfig) dial(ctx context.Context, how attempt, packet []byte) (net.Conn, error) {
	raw, err := c.Dial(ctx, c.Network, c.Address)
	if err != nil {
		return nil, netwire.DialError(ctx, err)
	}
	release := netwire.Bound(ctx, raw, 0)
	conn, err := c.secure(ctx, raw, how)
	if err == nil {
		_, err = conn.Write(packet)
	}
	if err = release(err); err != nil {
		_ = raw.Close()
		return nil, err
	}
	return conn, nil
}

// secure requests TLS and performs the handshake. It reads only the one byte of the response,
// so that plain text after it cannot be taken for server messages (CVE-2021-23222).
func (c ConnectConfig) secure(ctx context.Context, raw net.Conn, how attempt) (net.Conn, error) {
	if how == attemptPlain {
		return raw, nil
	}
	if !c.TLSDirect {
		if _, err := raw.Write(AppendSSLRequest(nil)); err != nil {
			return nil, err
		}
		var answer [1]byte
		if _, err := io.ReadFull(raw, answer[:]); err != nil {
			return nil, &handshakeError{fmt.Errorf("read answer to TLS request: %w", err)}
		}
		switch {
		case answer[0] == 'S':
		case answer[0] == 'N' && how == attemptOptional:
			return raw, nil
		case answer[0] == 'N':
			return nil, fmt.Errorf("the server has no TLS, and TLS mode %s demands it", c.TLSMode)
		default:
			// An 'E' begins an error text that is not authenticated (CVE-2024-10977), so it is
			// not shown.
			return nil, fmt.Errorf("the server answers a TLS request with byte %#02x", answer[0])
		}
	}
	host, _, err := net.SplitHostPort(c.Address)
	if err != nil {
		host = c.Address
	}
	conn := tls.Client(raw, clientConfig(c.TLSConfig, c.TLSMode, host))
	if err := conn.HandshakeContext(ctx); err != nil {
		return nil, &handshakeError{fmt.Errorf("TLS handshake: %w", err)}
	}
	if c.TLSDirect && conn.ConnectionState().NegotiatedProtocol != alpn {
		return nil, &handshakeError{fmt.Errorf("direct TLS connection, and the server did not choose ALPN protocol %q", alpn)}
	}
	return conn, nil
}

// Cancel asks the server to cancel the current statement of the backend with this pid and
// secret. It returns when the server has closed the connection: by then the signal has been
// sent, and can hit a later statement no more than with libpq's PQcancel. The protocol does not
// tell whether there was a statement to cancel.
func Cancel(ctx context.Context, cfg ConnectConfig, pid uint32, secret []byte) error {
	cfg = cfg.withDefaults()
	if err := cfg.cancel(ctx, AppendCancelRequest(nil, pid, secret)); err != nil {
		return cfg.failed("cancel on", err, nil)
	}
	return nil
}

func (c ConnectConfig) cancel(ctx context.Context, packet []byte) error {
	if err := c.validate(); err != nil {
		return err
	}
	if c.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, c.Timeout, fmt.Errorf("no answer within %v: %w", c.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	attempts := c.attempts()
	conn, err := c.dial(ctx, attempts[0], packet)
	if err != nil && len(attempts) > 1 && fallback(err) {
		conn, err = c.dial(ctx, attempts[1], packet)
	}
	if err != nil {
		return err
	}
	defer conn.Close()
	release := netwire.Bound(ctx, conn, 0)
	var buf [64]byte
	for err == nil {
		_, err = conn.Read(buf[:])
	}
	// A server that closes the connection without reading its last bytes resets it.
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		err = nil
	}
	return release(err)
}
