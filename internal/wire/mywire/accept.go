package mywire

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// DefaultVersion is the server version in a greeting if none is configured: high enough that
// clients do not switch features off.
const DefaultVersion = "8.0.40-weir"

// AcceptConfig says how weir greets clients.
type AcceptConfig struct {
	// Version is the server version that clients see. MariaDB's clients and
	// drivers look for "MariaDB" in it. Default: DefaultVersion.
	Version string
	// ConnectionID is the id in SELECT CONNECTION_ID() and KILL.
	ConnectionID uint32
	// Caps are offered to the client. Those of the login itself and those that this package
	// requires are added, CapsUnspoken removed, CapSSL follows TLSMode. Default: OfferedCaps.
	Caps Caps
	// Charset is the server's collation. Default: CharsetUTF8MB4.
	Charset byte
	// Status flags in the greeting. Default: StatusAutocommit, unless Version is
	// given: a server whose sessions begin without autocommit has none.
	Status Status
	// Plugin is the client's default plugin. Default: mysql_native_password.
	Plugin string
	// Salt is the challenge. Default: a new one; a relayed login uses the server's.
	Salt []byte
	// TLS holds the certificate, and in ClientCAs the authorities that may sign client
	// certificates. Default: none, TLS is not offered.
	TLS *tls.Config
	// TLSMode says what is required of a client that is not on a Unix socket; there TLS is not
	// offered.
	//
	//	DISABLED         TLS is not offered
	//	PREFERRED        with or without TLS, as the client likes
	//	REQUIRED         TLS, client certificate optional
	//	VERIFY_CA        TLS and a certificate signed by one of TLS.ClientCAs
	//	VERIFY_IDENTITY  the same, and its common name is the user's name
	//
	// Default: PREFERRED with a TLS config, otherwise DISABLED.
	TLSMode TLSMode
	// RSAKey decrypts passwords of caching_sha2_password without TLS. Default: a key for the
	// life of the process, generated at its first use.
	RSAKey *rsa.PrivateKey
	// Timeout bounds all of Accept, TLS handshake included. Default: 10
	// seconds, as connect_timeout.
	Timeout time.Duration
}

// OfferedCaps are the capabilities that weir offers to clients by default.
const OfferedCaps = CapFoundRows | CapLongFlag | CapConnectWithDB | CapNoSchema | CapODBC | CapIgnoreSpace |
	CapInteractive | CapIgnoreSigpipe | CapTransactions | CapReserved | CapMultiStatements | CapMultiResults |
	CapPSMultiResults | CapPluginAuth | CapConnectAttrs | CapPluginAuthLenenc | CapExpiredPasswords |
	CapSessionTrack | CapDeprecateEOF | CapLongPassword | CapsRequired

// capsLogin are flags that only concern the login.
const capsLogin = CapPluginAuth | CapPluginAuthLenenc | CapConnectWithDB | CapConnectAttrs

func (c AcceptConfig) withDefaults() AcceptConfig {
	if c.Version == "" {
		c.Version, c.Status = DefaultVersion, cmp.Or(c.Status, StatusAutocommit)
	}
	c.Caps = cmp.Or(c.Caps, OfferedCaps)
	c.Charset = cmp.Or(c.Charset, CharsetUTF8MB4)
	c.Plugin = cmp.Or(c.Plugin, PluginNative)
	if c.Salt == nil {
		c.Salt = newSalt()
	}
	if c.TLSMode == "" {
		c.TLSMode = TLSDisabled
		if c.TLS != nil {
			c.TLSMode = TLSPreferred
		}
	}
	c.Timeout = cmp.Or(c.Timeout, 10*time.Second)
	c.Caps = c.Caps&^(CapsUnspoken|CapSSL) | CapsRequired | capsLogin
	return c
}

// Validate returns an error for a configuration with which no client could log in, or which
// would accept more clients than it seems to.
func (c AcceptConfig) Validate() error {
	c = c.withDefaults()
	if _, err := ParseTLSMode(string(c.TLSMode)); err != nil {
		return err
	}
	switch {
	case c.TLSMode != TLSDisabled && c.TLS == nil:
		return fmt.Errorf("client TLS mode %s needs a server certificate", c.TLSMode)
	case c.TLSMode.verifies() && c.TLS.ClientCAs == nil:
		return fmt.Errorf("client TLS mode %s needs the certificates of the authorities that sign client certificates", c.TLSMode)
	case len(c.Salt) != saltLen:
		return fmt.Errorf("salt of %d bytes: want %d", len(c.Salt), saltLen)
	}
	return nil
}

// Client is a client that is logging in: it has answered the greeting and waits for OK or ERR.
// One goroutine may use it at a time.
type Client struct {
	// Conn is the connection, a *tls.Conn if the client has asked for TLS.
	Conn net.Conn
	// Response is the client's answer to the greeting.
	Response *Response
	// Caps are the capabilities of both sides.
	Caps Caps
	// TLS is nil if the connection does not use TLS.
	TLS *tls.ConnectionState
	// Salt is the last challenge sent to the client: that of the greeting, or of a later
	// request. A COM_CHANGE_USER refers to it.
	Salt []byte

	link    link
	plugin  string // the plugin that the salt is for
	trusted bool   // by ChangedUser
	changes bool   // it is a COM_CHANGE_USER
	said    []byte // its answer to Salt
	rsaKey  func() (*rsa.PrivateKey, error)
}

// Accept greets a client and reads its answer, over TLS if the client requests that. On error
// the client has got an ERR packet if there is something to report, and the caller closes conn.
// A client that disconnects without an answer, as health checks do, gives an error that is
// io.EOF.
//
// Bytes that a third party sends in plain text after the SSLRequest never become part of the
// session: Accept does not read ahead, so they end up in the TLS handshake and break it.
func Accept(ctx context.Context, conn net.Conn, cfg AcceptConfig) (*Client, error) {
	cfg = cfg.withDefaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("accept client: %w", err)
	}
	a := &acceptor{cfg: cfg, client: &Client{
		Conn: conn, Salt: cfg.Salt, plugin: cfg.Plugin, rsaKey: cfg.rsaKey,
		link: link{conn: conn, max: maxClientPacket},
	}}
	release := netwire.Bound(ctx, conn, cfg.Timeout)
	err := a.run(ctx)
	if err != nil {
		a.refuse(err)
	}
	if err = release(err); err != nil {
		return nil, fmt.Errorf("accept client: %w", err)
	}
	return a.client, nil
}

// acceptor is one run of Accept.
type acceptor struct {
	cfg    AcceptConfig
	client *Client
	broken bool // the stream cannot take an ERR packet
}

// offered returns the capabilities that the client may request.
func (a *acceptor) offered() Caps {
	if a.cfg.TLSMode != TLSDisabled && !isUnix(a.client.Conn) {
		return a.cfg.Caps | CapSSL
	}
	return a.cfg.Caps
}

func (a *acceptor) run(ctx context.Context) error {
	greeting := (&Greeter{a}).Greeting()
	if err := a.client.link.write(func(dst []byte, _ byte) []byte { return append(dst, greeting...) }); err != nil {
		return err
	}
	return a.readAnswer(ctx)
}

// readAnswer reads the client's answer to the greeting.
func (a *acceptor) readAnswer(ctx context.Context) error {
	c := a.client
	payload, err := c.link.read()
	if err != nil {
		return err
	}
	if IsSSLRequest(payload) {
		if !a.offered().Has(CapSSL) {
			return fmt.Errorf("the client asks for TLS, which was not offered: %w", ErrMalformed)
		}
		if err := a.handshake(ctx); err != nil {
			a.broken = true
			return err
		}
		if payload, err = c.link.read(); err != nil {
			return netwire.UnexpectedEOF(err)
		}
	}
	if err := a.answered(payload); err != nil {
		return err
	}
	return a.check()
}

// answered processes the client's answer.
func (a *acceptor) answered(payload []byte) (err error) {
	c := a.client
	if c.Response, err = ParseResponse(payload); err != nil {
		return err
	}
	c.Caps = c.Response.Caps & a.offered()
	if !c.Caps.Has(CapPluginAuth) {
		c.plugin = PluginNative // the only one that such clients have
	}
	return nil
}

func (a *acceptor) handshake(ctx context.Context) error {
	c := tls.Server(a.client.Conn, serverConfig(a.cfg.TLS, a.cfg.TLSMode))
	if err := c.HandshakeContext(ctx); err != nil {
		return fmt.Errorf("TLS handshake: %w", err)
	}
	state := c.ConnectionState()
	a.client.Conn, a.client.link.conn, a.client.TLS = c, c, &state
	return nil
}

// check enforces TLSMode.
func (a *acceptor) check() error {
	c := a.client
	if c.TLS == nil && a.cfg.TLSMode.demanded() && !isUnix(c.Conn) {
		return NewError(ErrSecureTransport, "Connections using insecure transport are prohibited: connect with TLS (--ssl, --ssl-mode=REQUIRED)")
	}
	if c.TLS != nil && a.cfg.TLSMode == TLSVerifyIdentity && netwire.CertName(c.TLS) != c.Response.User {
		return accessDenied(c.Response.User, c.Conn, true)
	}
	return nil
}

// refuse sends the client the reason, if it may know that.
func (a *acceptor) refuse(err error) {
	var e *Error
	switch {
	case a.broken:
		return
	case errors.As(err, &e):
	case errors.Is(err, ErrMalformed):
		e = NewError(ErrBadHandshake, "Bad handshake")
	default:
		return
	}
	_ = a.client.refuse(e)
}

// rsaKey returns the configured key, or that of the process.
func (c AcceptConfig) rsaKey() (*rsa.PrivateKey, error) {
	if c.RSAKey != nil {
		return c.RSAKey, nil
	}
	return processKey()
}

var processKey = sync.OnceValues(func() (*rsa.PrivateKey, error) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		return nil, fmt.Errorf("make RSA key: %w", err)
	}
	return key, nil
})

// ChangedUser returns the client as after a COM_CHANGE_USER, for Authenticate and Welcome. conn
// is the client's connection; salt and caps are those of its login; secure says that no third
// party can read the connection (TLS, Unix socket).
func ChangedUser(conn net.Conn, secure bool, salt []byte, caps Caps, cu *ChangeUser) *Client {
	c := &Client{
		Conn: conn, Salt: salt, Caps: caps, rsaKey: processKey, plugin: cu.Plugin,
		link: link{conn: conn, max: maxClientPacket, seq: 1},
		Response: &Response{
			Caps: caps, Charset: byte(cu.Charset), User: cu.User, Auth: cu.Auth,
			Database: cu.Database, Plugin: cu.Plugin, Attrs: cu.Attrs,
		},
	}
	c.trusted, c.changes, c.said = secure, true, cu.Auth
	return c
}

// Secure reports whether no third party can read the connection between client and weir.
func (c *Client) Secure() bool { return c.trusted || c.TLS != nil || isUnix(c.Conn) }

// Trust accepts the client without a check. On success the client waits for Welcome or Refuse,
// as after Authenticate.
func (c *Client) Trust(ctx context.Context) error {
	if c.Response.Plugin != PluginSHA2 || !provesSomething(c.Response.Auth) {
		return nil
	}
	// A client that has sent this plugin's proof waits for the result; one without a password
	// does not.
	release := netwire.Bound(ctx, c.Conn, 0)
	if err := release(c.more([]byte{authFastDone})); err != nil {
		return fmt.Errorf("trust client: %w", err)
	}
	return nil
}

// Welcome sends the OK of the login: after it the client may send commands.
func (c *Client) Welcome(ctx context.Context, ok *OK) error {
	release := netwire.Bound(ctx, c.Conn, 0)
	err := c.link.write(func(dst []byte, seq byte) []byte { return AppendOK(dst, seq, c.Caps, ok) })
	if err = release(err); err != nil {
		return fmt.Errorf("welcome client: %w", err)
	}
	return nil
}

// AppendWelcome appends what Welcome sends, for callers that send it by other means.
func (c *Client) AppendWelcome(dst []byte, ok *OK) []byte {
	return AppendOK(dst, c.link.seq, c.Caps, ok)
}

// Refuse sends the ERR of the login. The caller closes the connection.
func (c *Client) Refuse(ctx context.Context, e *Error) error {
	release := netwire.Bound(ctx, c.Conn, 0)
	if err := release(c.refuse(e)); err != nil {
		return fmt.Errorf("refuse client: %w", err)
	}
	return nil
}

func (c *Client) refuse(e *Error) error {
	return c.link.write(func(dst []byte, seq byte) []byte { return AppendError(dst, seq, e) })
}

// accessDenied returns the common error for a wrong password and an unknown user.
func accessDenied(user string, conn net.Conn, password bool) *Error {
	host := "localhost"
	if addr, ok := conn.RemoteAddr().(*net.TCPAddr); ok {
		host = addr.IP.String()
	}
	using := "NO"
	if password {
		using = "YES"
	}
	return NewError(ErrAccessDenied, "Access denied for user '%s'@'%s' (using password: %s)", user, host, using)
}
