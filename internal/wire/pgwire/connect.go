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

// ConnectConfig says how to reach a server and who to be there. It prints
// without its secrets.
type ConnectConfig struct {
	// Network is "tcp" or "unix". Default: unix if Address starts with "/" or
	// "@", else tcp.
	Network string
	// Address is host:port, or the path of the socket. Required.
	Address string
	User    string // Required, except for Cancel.
	// Database defaults to the user's name, by the server.
	Database string
	// Password answers every kind of request. Default: Keys.
	Password string
	// Keys is what a client's login revealed; see ClientKeys.
	Keys *ClientKeys
	// Params are sent after user and database, in order.
	Params []Param
	// TLSMode says what is demanded of a server that is not on a Unix socket;
	// there is never TLS on those, as with libpq.
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
	// TLSDirect starts TLS without asking (PostgreSQL 17, sslnegotiation=direct).
	// It needs a mode from require up.
	TLSDirect bool
	// TLSConfig holds authorities and a client certificate. ServerName
	// defaults to the host of Address, RootCAs to the system's.
	TLSConfig *tls.Config
	// ChannelBinding is libpq's: disable, prefer or require. Default: prefer.
	ChannelBinding string
	// Dial opens the connection. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout bounds each attempt, from dialling to ReadyForQuery. Default:
	// none but the context's.
	Timeout time.Duration
	// ProtocolVersion to ask for; the server may choose less. Default:
	// Version30.
	ProtocolVersion uint32
}

// Renewed returns c with the password, the certificate and the authorities of next. It
// returns false, and c, if next leads elsewhere or differs in anything else but Dial.
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

// String names address, user and database.
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

// params returns what the startup packet says.
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
	// PID and Secret are what Cancel takes. PID is 0 if the server has none.
	PID    uint32
	Secret []byte
	// Version is the protocol version in force.
	Version uint32
	// Params are the ParameterStatus messages of the login, in order.
	Params []Param
	// Notices are the NoticeResponses of the login.
	Notices []*Error
	TLS     bool
	// Method is what the server asked for: AuthTrust if nothing, else
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

// Connect logs in to a server. If the server refuses, the error wraps its
// *Error.
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

// attempt is how one try treats TLS.
type attempt uint8

const (
	attemptPlain    attempt = iota
	attemptOptional         // TLS if the server has it
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

// fallback reports whether the other way of connecting may succeed: the TLS
// handshake broke, or the server has no pg_hba.conf entry for this way. A wrong
// password is no reason to send it again.
func fallback(err error) bool {
	var broken *handshakeError
	return errors.As(err, &broken) || CodeOf(err) == CodeInvalidAuthorization
}

// handshakeError marks what went wrong between SSLRequest and startup packet.
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

// Open does the first part of Connect: it dials, negotiates TLS by the mode
// (prefer takes what it gets; allow means disable) and sends the startup packet.
// The server's next word is an Authentication message or an ErrorResponse, as
// RelayAuth expects; FinishLogin is for what comes after.
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

// secure asks for TLS and makes the handshake. It reads the one byte of the
// answer and no more, so nothing sent in plain text behind it can pass for
// server messages (CVE-2021-23222).
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
			// An 'E' starts an error text that nothing vouches for
			// (CVE-2024-10977): it is not shown.
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

// Cancel asks the server to cancel what the backend with this pid and secret is
// doing. It returns when the server has closed the connection: from then on the
// signal has been sent, and cannot hit a later statement any more than libpq's
// PQcancel could. Whether there was anything to cancel, the protocol does not
// tell.
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
	// A server that closes without reading its last bytes resets.
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) {
		err = nil
	}
	return release(err)
}
