package ldap

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	ber "github.com/go-asn1-ber/asn1-ber"
	goldap "github.com/go-ldap/ldap/v3"
)

// ErrRefused says that the LDAP server has rejected the name or the password. Any other error
// of Check means that no server has answered.
var ErrRefused = errors.New("the LDAP server refuses the login")

const (
	// DefaultTimeout is how long one server may take to answer.
	DefaultTimeout = 5 * time.Second
	// maxChecks limits the concurrent checks, each with a connection of its own, because any
	// unauthenticated client can cause them.
	maxChecks = 32
	// maxAnswer limits a message from the server, in bytes.
	maxAnswer = 1 << 20
	// maxName limits the length of a user name, in bytes: PostgreSQL allows 63, MySQL 128
	// characters.
	maxName = 1024
)

// A Directory checks users with an LDAP server, or with several equivalent ones. It is safe for
// concurrent use.
type Directory struct {
	o       Options
	roots   *x509.CertPool
	timeout time.Duration
	slots   chan struct{}
	first   atomic.Int32 // the server that answered last; it is tried first
}

// quietly stops the library from logging, and limits the length of messages that it accepts.
// Both are global variables of its packages.
var quietly = sync.OnceFunc(func() {
	goldap.Logger(log.New(io.Discard, "", 0))
	ber.MaxPacketLengthBytes = maxAnswer
})

// New returns a directory. Certificates of servers are verified with the authorities in the
// file ca (PEM). If ca is "", these are the ones that OpenLDAP's clients would use
// ($LDAPTLS_CACERT, or TLS_CACERT in ldap.conf), or else the system's. timeout is how long one
// server may take to answer; 0 means DefaultTimeout.
func New(o *Options, ca string, timeout time.Duration) (*Directory, error) {
	quietly()
	if timeout == 0 {
		timeout = DefaultTimeout
	}
	d := &Directory{o: *o, timeout: timeout, slots: make(chan struct{}, maxChecks)}
	if !o.TLS && !o.StartTLS {
		return d, nil
	}
	if ca == "" {
		ca = clientCA(os.Getenv)
	}
	if ca == "" {
		return d, nil
	}
	pem, err := os.ReadFile(ca)
	if err != nil {
		return nil, fmt.Errorf("authorities of the LDAP server's certificate: %w", err)
	}
	d.roots = x509.NewCertPool()
	if !d.roots.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("authorities of the LDAP server's certificate: %s holds no certificate", ca)
	}
	return d, nil
}

// clientCA returns the file from which OpenLDAP's clients, including PgBouncer and
// PostgreSQL, read authorities.
func clientCA(getenv func(string) string) string {
	if file := getenv("LDAPTLS_CACERT"); file != "" {
		return file
	}
	for _, conf := range []string{getenv("LDAPCONF"), "/etc/ldap/ldap.conf", "/etc/openldap/ldap.conf"} {
		text, err := os.ReadFile(conf)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) == 2 && strings.EqualFold(f[0], "TLS_CACERT") {
				return f[1]
			}
		}
		return ""
	}
	return ""
}

// Check checks the password of a user. It returns ErrRefused if the password is wrong, or if
// there is no such user, or more than one.
func (d *Directory) Check(ctx context.Context, user, password string) error {
	switch {
	case password == "":
		// A bind without a password is anonymous: servers accept it.
		return fmt.Errorf("%w: the password is empty", ErrRefused)
	case user == "" || len(user) > maxName || strings.ContainsFunc(user, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return fmt.Errorf("%w: no user has such a name", ErrRefused)
	}
	if err := d.enter(ctx); err != nil {
		return fmt.Errorf("ask the LDAP server about %q: %w", user, err)
	}
	defer func() { <-d.slots }()
	var errs []error
	first := int(d.first.Load())
	for i := range d.o.Servers {
		at := (first + i) % len(d.o.Servers)
		err := d.ask(ctx, d.o.Servers[at], user, password)
		if err == nil || errors.Is(err, ErrRefused) {
			d.first.Store(int32(at))
			return err
		}
		errs = append(errs, fmt.Errorf("ask the LDAP server %s about %q: %w", d.o.Servers[at], user, err))
		if ctx.Err() != nil {
			break
		}
	}
	return errors.Join(errs...)
}

// enter waits until another check may start.
func (d *Directory) enter(ctx context.Context) error {
	select {
	case d.slots <- struct{}{}:
		return nil
	default:
	}
	select {
	case d.slots <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("%d questions are under way already: %w", maxChecks, context.Cause(ctx))
	}
}

// ask checks the password with one server.
func (d *Directory) ask(ctx context.Context, server, user, password string) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d.timeout, fmt.Errorf("it has not answered within %s", d.timeout))
	defer cancel()
	conn, err := d.connect(ctx, server)
	if err == nil {
		err = d.login(conn, user, password)
		_ = conn.Close()
	}
	if cause := context.Cause(ctx); err != nil && cause != nil && !errors.Is(err, ErrRefused) {
		return cause
	}
	return err
}

// connect opens a connection, with TLS if configured. It is closed when ctx ends.
func (d *Directory) connect(ctx context.Context, server string) (*goldap.Conn, error) {
	raw, err := new(net.Dialer).DialContext(ctx, "tcp", server)
	if err != nil {
		return nil, err
	}
	host, _, _ := net.SplitHostPort(server)
	config := &tls.Config{ServerName: host, RootCAs: d.roots, MinVersion: tls.VersionTLS12}
	// The library does not support contexts: closing the connection ends an operation.
	tcp := raw // with TLS, raw is the TLS connection
	context.AfterFunc(ctx, func() { _ = tcp.SetDeadline(time.Unix(1, 0)) })
	if d.o.TLS {
		secure := tls.Client(raw, config)
		if err := secure.HandshakeContext(ctx); err != nil {
			_ = raw.Close()
			return nil, fmt.Errorf("TLS: %w", err)
		}
		raw = secure
	}
	conn := goldap.NewConn(raw, d.o.TLS)
	conn.SetTimeout(2 * d.timeout) // ctx ends the operation before that, with a better error
	conn.Start()
	if d.o.StartTLS {
		if err := conn.StartTLS(config); err != nil {
			_ = conn.Close()
			return nil, fmt.Errorf("StartTLS: %w", err)
		}
	}
	return conn, nil
}

// login tries the password.
func (d *Directory) login(conn *goldap.Conn, user, password string) error {
	name := d.o.name(user)
	if d.o.BaseDN != "" {
		var err error
		if name, err = d.find(conn, user); err != nil {
			return err
		}
	}
	err := conn.Bind(name, password)
	if goldap.IsErrorAnyOf(err, refusals...) {
		return fmt.Errorf("%w: bind as %q: %w", ErrRefused, name, err)
	} else if err != nil {
		return fmt.Errorf("bind as %q: %w", name, err)
	}
	return nil
}

// refusals are the result codes of a bind with which a server rejects the user: a wrong
// password, an unknown user, a locked or expired account.
var refusals = []uint16{
	goldap.LDAPResultInvalidCredentials, goldap.LDAPResultNoSuchObject, goldap.LDAPResultInvalidDNSyntax, goldap.LDAPResultConstraintViolation,
	goldap.LDAPResultInappropriateAuthentication, goldap.LDAPResultInsufficientAccessRights, goldap.LDAPResultUnwillingToPerform,
}

// find searches for the user's distinguished name.
func (d *Directory) find(conn *goldap.Conn, user string) (string, error) {
	var err error
	if d.o.BindPassword == "" {
		err = conn.UnauthenticatedBind(d.o.BindDN)
	} else {
		err = conn.Bind(d.o.BindDN, d.o.BindPassword)
	}
	if err != nil {
		return "", fmt.Errorf("bind as %q for the search (ldapbinddn, ldapbindpasswd): %w", d.o.BindDN, err)
	}
	// A second entry is enough to know that there is more than one; "1.1" requests no
	// attributes.
	res, err := conn.Search(goldap.NewSearchRequest(d.o.BaseDN, d.o.Scope, goldap.NeverDerefAliases, 2,
		int(max(d.timeout, time.Second)/time.Second), false, d.o.filter(user), []string{"1.1"}, nil))
	if err != nil && !goldap.IsErrorWithCode(err, goldap.LDAPResultSizeLimitExceeded) {
		return "", fmt.Errorf("search %q below %q: %w", d.o.filter(user), d.o.BaseDN, err)
	}
	switch {
	case err != nil || len(res.Entries) > 1:
		return "", fmt.Errorf("%w: %q below %q finds several entries", ErrRefused, d.o.filter(user), d.o.BaseDN)
	case len(res.Entries) == 0 || res.Entries[0].DN == "":
		return "", fmt.Errorf("%w: %q below %q finds no entry", ErrRefused, d.o.filter(user), d.o.BaseDN)
	}
	return res.Entries[0].DN, nil
}
