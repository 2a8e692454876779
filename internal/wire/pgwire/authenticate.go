package pgwire

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// AuthMethod names a way of authentication as pg_hba.conf does.
type AuthMethod string

// The methods that weir speaks.
const (
	AuthTrust    AuthMethod = "trust"         // nothing is asked
	AuthPassword AuthMethod = "password"      // cleartext password
	AuthMD5      AuthMethod = "md5"           // md5 challenge; SCRAM if the secret is a SCRAM secret
	AuthSCRAM    AuthMethod = "scram-sha-256" // with channel binding over TLS
	AuthCert     AuthMethod = "cert"          // verified TLS client certificate with the user's name
)

// ParseAuthMethod checks the name of a method.
func ParseAuthMethod(s string) (AuthMethod, error) {
	switch m := AuthMethod(s); m {
	case AuthTrust, AuthPassword, AuthMD5, AuthSCRAM, AuthCert:
		return m, nil
	}
	return "", fmt.Errorf("authentication method %q: want trust, password, md5, scram-sha-256 or cert", s)
}

// Authenticate checks a client that Accept returned. On success the client has
// been sent AuthenticationOk and waits for what follows it. The keys that the
// login revealed are returned, nil if it revealed none.
//
// A client that fails has been sent the one error that PostgreSQL gives for a
// wrong password, an unknown user (the zero Secret) and an unfit secret alike,
// and an unknown user is led through the same messages before. (Under AuthMD5
// those are md5's: who has SCRAM secrets and unknown users should ask for
// AuthSCRAM.) The returned error tells them apart, and CodeOf gives the SQLSTATE that was sent. A client
// that left, as psql does to ask for a password, gives an error that is io.EOF.
// The caller bounds the time by ctx.
func Authenticate(ctx context.Context, conn net.Conn, user string, method AuthMethod, secret Secret) (*ClientKeys, error) {
	return AuthenticateIn(ctx, conn, user, method, secret, nil)
}

// AuthenticateIn is Authenticate with other words: word, unless it is nil, may change
// the error before a client that fails is sent it.
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

// Check is Authenticate for who sends AuthenticationOk itself, together with what
// follows it: ok is what is to be sent.
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

// AskPassword has the client say its password in clear and verify judge it, with an error
// that is or wraps the *Error for a client that fails. Everything else is as with
// AuthenticateIn; ok is what is to be sent on success, as with Check.
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

// run carries out an exchange.
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

// refuse sends the client the error that err amounts to and returns both.
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

// refusalOf is what a client is told whose proof failed with err, nil if there is
// nobody to tell, and both as one error.
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
