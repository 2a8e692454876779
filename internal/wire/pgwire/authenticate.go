package pgwire

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// AuthMethod is the name of an authentication method, as in pg_hba.conf.
type AuthMethod string

// The methods that weir supports.
const (
	AuthTrust    AuthMethod = "trust"         // the client proves nothing
	AuthPassword AuthMethod = "password"      // cleartext password
	AuthMD5      AuthMethod = "md5"           // md5 challenge; SCRAM if the secret is a SCRAM secret
	AuthSCRAM    AuthMethod = "scram-sha-256" // with channel binding over TLS
	AuthCert     AuthMethod = "cert"          // verified TLS client certificate with the user's name
)

// ParseAuthMethod returns the method with the given name.
func ParseAuthMethod(s string) (AuthMethod, error) {
	switch m := AuthMethod(s); m {
	case AuthTrust, AuthPassword, AuthMD5, AuthSCRAM, AuthCert:
		return m, nil
	}
	return "", fmt.Errorf("authentication method %q: want trust, password, md5, scram-sha-256 or cert", s)
}

// Authenticate authenticates a client that Accept returned. On success it has sent
// AuthenticationOk, and the client waits for what follows. It returns the keys that the login
// revealed, or nil.
//
// On failure it has sent the one error that PostgreSQL sends for a wrong password, an unknown
// user (the zero Secret) and an unsuitable secret alike; the messages before the error are also
// the same for an unknown user. (With AuthMD5 they are those of md5: with SCRAM secrets and
// unknown users, use AuthSCRAM.) The returned error distinguishes the cases, and CodeOf returns
// the SQLSTATE that was sent. If the client closes the connection, as psql does to ask for a
// password, the error is io.EOF. The caller limits the time with ctx.
func Authenticate(ctx context.Context, conn net.Conn, user string, method AuthMethod, secret Secret) (*ClientKeys, error) {
	return AuthenticateIn(ctx, conn, user, method, secret, nil)
}

// AuthenticateIn is Authenticate with a different text of the error: word, if not nil, may
// change the error before it is sent to the client.
func AuthenticateIn(ctx context.Context, conn net.Conn, user string, method AuthMethod, secret Secret, word func(*Error)) (*ClientKeys, error) {
	a := &authenticator{link: link{conn: conn, max: maxAuthMessage}, user: user, secret: secret, word: word}
	keys, ok, err := a.check(ctx, method)
	if err != nil {
		return nil, err
	}
	release := netwire.Bound(ctx, conn, 0)
	if err = release(a.write(ok)); err != nil {
		return nil, fmt.Errorf("authenticate %q by %s: %w", user, method, err)
	}
	return keys, nil
}

// Check is Authenticate without sending AuthenticationOk: the caller sends ok, together with
// the messages that follow it.
func Check(ctx context.Context, conn net.Conn, user string, method AuthMethod, secret Secret) (keys *ClientKeys, ok []byte, err error) {
	a := &authenticator{link: link{conn: conn, max: maxAuthMessage}, user: user, secret: secret}
	return a.check(ctx, method)
}

func (a *authenticator) check(ctx context.Context, method AuthMethod) (keys *ClientKeys, ok []byte, err error) {
	release := netwire.Bound(ctx, a.conn, 0)
	x := NewExchange(a.user, method, a.secret, a.conn)
	if err = a.run(x); err != nil {
		err = a.refuse(err)
	}
	if err = release(err); err != nil {
		return nil, nil, fmt.Errorf("authenticate %q by %s: %w", a.user, method, err)
	}
	keys, ok = x.Proved()
	return keys, ok, nil
}

// AskPassword requests the client's password in clear text and passes it to verify, whose error
// is or wraps the *Error for the client. Otherwise it is like AuthenticateIn; on success the
// caller sends ok, as with Check.
func AskPassword(ctx context.Context, conn net.Conn, user string, verify func(ctx context.Context, password string) error, word func(*Error)) (keys *ClientKeys, ok []byte, err error) {
	a := &authenticator{link: link{conn: conn, max: maxAuthMessage}, user: user, word: word}
	release := netwire.Bound(ctx, conn, 0)
	password, err := a.askPassword()
	if err == nil {
		err = verify(ctx, password)
	}
	if err != nil {
		err = a.refuse(err)
	}
	if err = release(err); err != nil {
		return nil, nil, fmt.Errorf("authenticate %q by %s: %w", user, AuthPassword, err)
	}
	return &ClientKeys{Password: password}, AppendAuthOK(nil), nil
}

func (a *authenticator) askPassword() (string, error) {
	if err := a.write(AppendAuthCleartext(nil)); err != nil {
		return "", err
	}
	body, err := a.readResponse()
	if err != nil {
		return "", err
	}
	return passwordIn(body)
}

type authenticator struct {
	link
	user   string
	secret Secret
	word   func(*Error)
}

// run runs an exchange to its end.
func (a *authenticator) run(x *Exchange) error {
	out, err := x.Begin()
	for err == nil && out != nil {
		if err = a.write(out); err != nil {
			return err
		}
		var body []byte
		if body, err = a.readResponse(); err != nil {
			return err
		}
		out, err = x.Answer(body)
	}
	return err
}

// refuse sends the client the error for err and returns both.
func (a *authenticator) refuse(err error) error {
	e, err := refusalOf(a.user, err)
	if e == nil {
		return err
	}
	if a.word != nil {
		a.word(e)
	}
	if werr := a.write(AppendError(nil, e)); werr != nil {
		return fmt.Errorf("%w (and the client could not be told: %w)", err, werr)
	}
	return err
}

// refusalOf returns the error for a client whose authentication failed with err (nil if the
// client has closed the connection), and both as one error.
func refusalOf(user string, err error) (*Error, error) {
	var e *Error
	switch {
	case errors.As(err, &e):
		return e, err
	case errors.Is(err, errProof) || errors.Is(err, errUnfit):
		e = NewFatal(CodeInvalidPassword, "password authentication failed for user %q", user)
	case errors.Is(err, errCert):
		e = NewFatal(CodeInvalidAuthorization, "certificate authentication failed for user %q", user)
	case errors.Is(err, ErrMalformed):
		e = NewFatal(CodeProtocolViolation, "malformed authentication message")
	default:
		return nil, err
	}
	return e, fmt.Errorf("%w: %w", err, e)
}
