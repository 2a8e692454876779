package mywire

import (
	"cmp"
	"context"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"reflect"
	"strings"
	"time"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// ConnectConfig says how to connect to a server, and as which user. It prints without its
// secrets.
type ConnectConfig struct {
	// Network is "tcp" or "unix". Default: unix if Address starts with "/" or
	// "@", else tcp.
	Network string
	// Address is host:port, or the path of the socket. Required.
	Address string
	User    string
	// Database to use. Default: none.
	Database string
	// Password serves every plugin. Default: Keys; without those, the empty password.
	Password string
	// Keys is what a client's login revealed; see ClientKeys.
	Keys *ClientKeys
	// Attrs are the connection attributes. Default: program_name=weir.
	Attrs []Attr
	// Caps are requested, as far as the server has them. CapsRequired and CapPluginAuth are
	// added, CapsUnspoken removed; CapSSL follows TLSMode, CapConnectWithDB follows Database.
	// Default: WantedCaps.
	Caps Caps
	// Charset is the collation number of the session. Default: CharsetUTF8MB4.
	Charset byte
	// MaxPacket is the longest message that weir announces to accept, in bytes. Default: 1 GiB,
	// the largest max_allowed_packet.
	MaxPacket uint32
	// TLSMode says what is required of a server that is not on a Unix socket; TLS is never used
	// on those.
	//
	//	DISABLED         no TLS
	//	PREFERRED        TLS if the server has it
	//	REQUIRED         TLS, without a check of the server's certificate
	//	VERIFY_CA        and its certificate is signed by one of TLSConfig.RootCAs
	//	VERIFY_IDENTITY  and is issued for the host
	//
	// Default: PREFERRED.
	TLSMode TLSMode
	// TLSConfig holds authorities and a client certificate. ServerName
	// defaults to the host of Address, RootCAs to the system's.
	TLSConfig *tls.Config
	// ServerKey encrypts the password without TLS. Default: weir requests it from the server,
	// and a man in the middle could answer.
	ServerKey *rsa.PublicKey
	// Dial opens the connection. Default: net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
	// Timeout bounds the login, from dialling to the last OK. Default: only the context's.
	Timeout time.Duration
}

// WantedCaps are the capabilities that weir requests from servers by default.
const WantedCaps = CapLongFlag | CapIgnoreSigpipe | CapTransactions | CapReserved | CapMultiStatements | CapMultiResults |
	CapPSMultiResults | CapPluginAuth | CapConnectAttrs | CapPluginAuthLenenc | CapSessionTrack | CapDeprecateEOF | CapLongPassword | CapsRequired

// Renewed returns c with the password, the certificate, the authorities and the server's key of
// next. It returns c and false if next differs in anything else except Dial, the address for
// example.
func (c ConnectConfig) Renewed(next ConnectConfig) (ConnectConfig, bool) {
	renewed := c
	renewed.Password, renewed.TLSConfig, renewed.ServerKey = next.Password, next.TLSConfig, next.ServerKey
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
	if c.Database != "" {
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
	c.Caps = cmp.Or(c.Caps, WantedCaps)
	c.Caps = c.Caps&^(CapsUnspoken|CapSSL|CapConnectWithDB) | CapsRequired | CapPluginAuth
	if c.Attrs == nil {
		c.Attrs = []Attr{{"program_name", "weir"}}
	}
	c.Charset = cmp.Or(c.Charset, CharsetUTF8MB4)
	c.MaxPacket = cmp.Or(c.MaxPacket, 1<<30)
	c.TLSMode = cmp.Or(c.TLSMode, TLSPreferred)
	if c.Password != "" || c.Keys == nil {
		c.Keys = PasswordKeys(c.Password)
	}
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
	// A NUL would end a string early, and the server would read the rest as the next one.
	for _, s := range []string{c.User, c.Database, c.Keys.Password} {
		if strings.ContainsRune(s, 0) {
			return errors.New("user, database or password holds a NUL byte")
		}
	}
	return nil
}

// Server is a connection to a server after the login.
type Server struct {
	// Conn is the connection, a *tls.Conn if TLS is on. The login has not read beyond its own
	// end.
	Conn     net.Conn
	Greeting *Greeting
	// Caps are the capabilities of the connection.
	Caps Caps
	TLS  bool
	// Plugin is the one with which the login ended.
	Plugin string
	// OK is the OK of the login; its slices belong to the Server.
	OK OK
}

// IsMariaDB reports whether the server is MariaDB.
func (s *Server) IsMariaDB() bool { return s.Greeting.IsMariaDB() }

// IsMariaDB reports whether the greeting is that of a MariaDB server, or of one that claims to
// be.
func (g *Greeting) IsMariaDB() bool {
	return !g.Caps.Has(CapLongPassword) || strings.Contains(g.Version, "MariaDB")
}

// Connect logs in to a server. If the server refuses, the error wraps its *Error.
func Connect(ctx context.Context, cfg ConnectConfig) (*Server, error) {
	p, err := Dial(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return p.Login(ctx)
}

// Pending is a server that has sent its greeting and waits for the login.
type Pending struct {
	Greeting *Greeting
	cfg      ConnectConfig
	link     link
	tls      bool
	began    time.Time
	plugin   string
	salt     []byte
	// responded: the response has been sent, and the server's answer is due. ended: it has sent
	// OK or ERR.
	responded, ended bool
}

// Dial is the first part of Connect: it dials and reads the greeting. The caller continues with
// Login, Relay or Close.
func Dial(ctx context.Context, cfg ConnectConfig) (*Pending, error) {
	cfg = cfg.withDefaults()
	p := &Pending{cfg: cfg, began: time.Now()}
	if err := p.dial(ctx); err != nil {
		return nil, fmt.Errorf("connect to %s: %w", cfg, err)
	}
	return p, nil
}

// farewell bounds how long GiveUp takes to end a login.
const farewell = 2 * time.Second

// GiveUp ends a login that cannot be completed, and closes the connection. A server counts
// connections that end in the middle of the handshake, and blocks the host after
// max_connect_errors of them: clients that disconnect in the middle of their logins would lock
// weir out. So GiveUp sends an empty answer, which the server refuses and does not count, not
// even as a wrong password. It sends nothing to a server that has been silent itself.
func (p *Pending) GiveUp() {
	conn := p.link.conn
	defer func() { _ = conn.Close() }()
	if p.ended || !p.link.heard || conn.SetDeadline(time.Now().Add(farewell)) != nil {
		return
	}
	caps := p.caps() &^ CapConnectWithDB
	if !p.responded {
		r := &Response{Caps: caps, MaxPacket: p.cfg.MaxPacket, Charset: p.cfg.Charset, User: p.cfg.User, Plugin: PluginNative}
		if p.tls {
			r.Caps |= CapSSL
		}
		if p.respond(r) != nil {
			return
		}
	} else if p.link.send(nil) != nil {
		return
	}
	for range maxAuthRounds {
		payload, err := p.link.read()
		if err != nil {
			return
		}
		switch done, _, err := p.outcome(payload, caps); {
		case err != nil:
			return // refused
		case done: // an account without a password
			_, _ = conn.Write(AppendQuit(nil))
			return
		}
		if p.link.send(nil) != nil {
			return
		}
	}
}

// respond sends the response to the greeting.
func (p *Pending) respond(r *Response) error {
	p.responded = true
	return p.link.write(func(dst []byte, seq byte) []byte { return AppendResponse(dst, seq, r) })
}

// left returns the rest of the configured timeout, 0 for no bound.
func (p *Pending) left() time.Duration {
	if p.cfg.Timeout <= 0 {
		return 0
	}
	return max(p.cfg.Timeout-time.Since(p.began), time.Nanosecond)
}

func (p *Pending) dial(ctx context.Context) error {
	if err := p.cfg.validate(); err != nil {
		return err
	}
	if p.cfg.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, p.cfg.Timeout, fmt.Errorf("no answer within %v: %w", p.cfg.Timeout, context.DeadlineExceeded))
		defer cancel()
	}
	conn, err := p.cfg.Dial(ctx, p.cfg.Network, p.cfg.Address)
	if err != nil {
		return netwire.DialError(ctx, err)
	}
	p.link = link{conn: conn, max: maxServerPacket}
	release := netwire.Bound(ctx, conn, 0)
	payload, err := p.link.read()
	if err == nil {
		p.Greeting, err = ParseGreeting(payload)
	}
	if err = release(err); err != nil {
		_ = conn.Close()
		return fmt.Errorf("read greeting: %w", netwire.UnexpectedEOF(err))
	}
	p.plugin, p.salt = p.Greeting.Plugin, p.Greeting.Salt
	return nil
}

// Login is the second part of Connect. On error the connection is closed.
func (p *Pending) Login(ctx context.Context) (*Server, error) {
	release := netwire.Bound(ctx, p.link.conn, p.left())
	s, err := p.login(ctx)
	if err = release(err); err != nil {
		p.GiveUp()
		return nil, fmt.Errorf("connect to %s: %w", p.cfg, err)
	}
	return s, nil
}

// caps returns the capabilities that weir and the server both have.
func (p *Pending) caps() Caps {
	caps := p.cfg.Caps
	if p.cfg.Database != "" {
		caps |= CapConnectWithDB
	}
	if !p.Greeting.Caps.Has(CapLongPassword) {
		caps &^= CapLongPassword // use MariaDB's extension
	} else {
		caps &^= CapsMariaDB
	}
	return caps & p.Greeting.Caps
}

func (p *Pending) response() *Response {
	return &Response{
		Caps: p.caps(), MaxPacket: p.cfg.MaxPacket, Charset: p.cfg.Charset,
		User: p.cfg.User, Database: p.cfg.Database, Plugin: p.plugin, Attrs: p.cfg.Attrs,
	}
}

// Secure reports whether no third party can read the connection to the server.
func (p *Pending) Secure() bool { return p.tls || p.cfg.Network == "unix" }

// begin starts TLS, as the mode requires, before anything about the user is sent.
func (p *Pending) begin(ctx context.Context, r *Response) error {
	if p.cfg.Database != "" && !r.Caps.Has(CapConnectWithDB) {
		return errors.New("the server takes no database at login")
	}
	if p.cfg.Network == "unix" || p.cfg.TLSMode == TLSDisabled {
		return nil
	}
	if !p.Greeting.Caps.Has(CapSSL) {
		if p.cfg.TLSMode.demanded() {
			return fmt.Errorf("the server has no TLS, and TLS mode %s demands it", p.cfg.TLSMode)
		}
		return nil
	}
	r.Caps |= CapSSL
	if err := p.link.write(func(dst []byte, seq byte) []byte { return AppendSSLRequest(dst, seq, r) }); err != nil {
		return err
	}
	host, _, err := net.SplitHostPort(p.cfg.Address)
	if err != nil {
		host = p.cfg.Address
	}
	conn := tls.Client(p.link.conn, clientConfig(p.cfg.TLSConfig, p.cfg.TLSMode, host))
	if err := conn.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	p.link.conn, p.tls = conn, true
	return nil
}

func (p *Pending) login(ctx context.Context) (*Server, error) {
	r := p.response()
	if err := p.begin(ctx, r); err != nil {
		return nil, err
	}
	proof, err := p.proof()
	if errors.Is(err, errPlugin) && r.Caps.Has(CapPluginAuth) {
		// The server's default need not be the user's plugin.
		p.plugin, r.Plugin, err = PluginNative, PluginNative, nil
	}
	if err != nil {
		return nil, err
	}
	r.Auth = proof
	if err := p.respond(r); err != nil {
		return nil, err
	}
	ok, err := p.converse(r.Caps)
	if err != nil {
		return nil, err
	}
	return p.server(r.Caps, ok), nil
}

func (p *Pending) server(caps Caps, ok OK) *Server {
	return &Server{Conn: p.link.conn, Greeting: p.Greeting, Caps: caps, TLS: p.tls, Plugin: p.plugin, OK: ok}
}
