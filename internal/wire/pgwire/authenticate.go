package pgwire

import (
	"context"
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
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
	if keys, err = a.run(method); err != nil {
		err = a.refuse(err)
	}
	if err = release(err); err != nil {
		return nil, nil, fmt.Errorf("authenticate %q by %s: %w", a.user, method, err)
	}
	return keys, AppendAuthOK(a.final), nil
}

type authenticator struct {
	link
	user   string
	secret Secret
	final  []byte // message to send together with AuthenticationOk
	word   func(*Error)
}

func (a *authenticator) run(method AuthMethod) (*ClientKeys, error) {
	switch method {
	case AuthTrust:
		return nil, nil
	case AuthPassword:
		return a.password()
	case AuthMD5:
		// As PostgreSQL: the method is md5 or better, by what is stored.
		if a.secret.kind == secretSCRAM {
			return a.scram()
		}
		return a.md5()
	case AuthSCRAM:
		return a.scram()
	case AuthCert:
		return nil, a.cert()
	}
	_, err := ParseAuthMethod(string(method))
	return nil, err
}

// refuse sends the client the error that err amounts to and returns both.
func (a *authenticator) refuse(err error) error {
	var e *Error
	switch {
	case errors.As(err, &e):
	case errors.Is(err, errProof) || errors.Is(err, errUnfit):
		e = NewFatal(CodeInvalidPassword, "password authentication failed for user %q", a.user)
		err = fmt.Errorf("%w: %w", err, e)
	case errors.Is(err, errCert):
		e = NewFatal(CodeInvalidAuthorization, "certificate authentication failed for user %q", a.user)
		err = fmt.Errorf("%w: %w", err, e)
	case errors.Is(err, ErrMalformed):
		e = NewFatal(CodeProtocolViolation, "malformed authentication message")
		err = fmt.Errorf("%w: %w", err, e)
	default:
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

var (
	errUnfit = errors.New("no secret that fits the method")
	errCert  = errors.New("no verified client certificate with the user's name")
)

// unfit tells what is wrong with the secret when it cannot serve.
func (a *authenticator) unfit() error {
	if a.secret.IsZero() {
		return fmt.Errorf("unknown user: %w", errUnfit)
	}
	return fmt.Errorf("%s: %w", a.secret, errUnfit)
}

// readPassword returns the answer to a request for a password.
func (a *authenticator) readPassword() (string, error) {
	body, err := a.readResponse()
	if err != nil {
		return "", err
	}
	text, err := soleString(body)
	if err != nil {
		return "", err
	}
	if len(text) == 0 {
		return "", NewFatal(CodeInvalidPassword, "empty password returned by client")
	}
	return string(text), nil
}

func (a *authenticator) password() (*ClientKeys, error) {
	if err := a.write(AppendAuthCleartext(nil)); err != nil {
		return nil, err
	}
	password, err := a.readPassword()
	if err != nil {
		return nil, err
	}
	if a.secret.IsZero() {
		return nil, a.unfit()
	}
	if !a.secret.matches(a.user, password) {
		return nil, errProof
	}
	return &ClientKeys{Password: password}, nil
}

func (a *authenticator) md5() (*ClientKeys, error) {
	var salt [4]byte
	_, _ = rand.Read(salt[:])
	if err := a.write(AppendAuthMD5(nil, salt)); err != nil {
		return nil, err
	}
	answer, err := a.readPassword()
	if err != nil {
		return nil, err
	}
	inner := a.secret.text
	switch a.secret.kind {
	case secretPlain:
		inner = md5Hex(a.secret.text, a.user)
	case secretMD5:
	default:
		return nil, a.unfit()
	}
	want := "md5" + md5Hex(inner, string(salt[:]))
	if subtle.ConstantTimeCompare([]byte(answer), []byte(want)) != 1 {
		return nil, errProof
	}
	if password, ok := a.secret.Plain(); ok {
		return &ClientKeys{Password: password}, nil
	}
	return &ClientKeys{MD5: inner}, nil
}

func (a *authenticator) scram() (*ClientKeys, error) {
	s := &scramServer{binding: serverEndpoint(a.conn)}
	var unfit error
	if a.secret.scram == nil {
		unfit = a.unfit()
		s.mock = true
		s.keys = scramKeys{iterations: scramIterations, salt: mockSalt()(a.user), stored: make([]byte, 32), server: make([]byte, 32)}
	} else {
		var err error
		if s.keys, err = a.secret.scram(); err != nil {
			return nil, err
		}
	}
	offer := []string{mechSCRAM}
	if s.binding != nil {
		offer = []string{mechSCRAMPlus, mechSCRAM}
	}
	if err := a.write(AppendAuthSASL(nil, offer...)); err != nil {
		return nil, err
	}
	msg, err := a.readSASLInitial(s)
	if err != nil {
		return nil, err
	}
	if msg, err = s.first(msg); err != nil {
		return nil, err
	}
	if err := a.write(AppendAuthSASLContinue(nil, msg)); err != nil {
		return nil, err
	}
	if msg, err = a.readResponse(); err != nil {
		return nil, err
	}
	answer, clientKey, err := s.final(msg)
	if err != nil {
		if unfit != nil && errors.Is(err, errProof) {
			return nil, unfit
		}
		return nil, err
	}
	a.final = AppendAuthSASLFinal(nil, answer)
	keys := &ClientKeys{ClientKey: clientKey, ServerKey: s.keys.server}
	if password, ok := a.secret.Plain(); ok {
		// The salt was weir's own, so the SCRAM keys open no server.
		keys = &ClientKeys{Password: password}
	}
	return keys, nil
}

// readSASLInitial reads the client's choice of mechanism and its first message.
// A client may send the choice alone; an empty challenge then asks for more.
func (a *authenticator) readSASLInitial(s *scramServer) ([]byte, error) {
	body, err := a.readResponse()
	if err != nil {
		return nil, err
	}
	mechanism, data, err := parseSASLInitial(body)
	if err != nil {
		return nil, err
	}
	switch {
	case mechanism == mechSCRAM:
	case mechanism == mechSCRAMPlus && s.binding != nil:
		s.plus = true
	default:
		return nil, NewFatal(CodeProtocolViolation, "client selected an invalid SASL authentication mechanism")
	}
	if data != nil {
		return data, nil
	}
	if err := a.write(AppendAuthSASLContinue(nil, nil)); err != nil {
		return nil, err
	}
	return a.readResponse()
}

func (a *authenticator) cert() error {
	c, ok := a.conn.(*tls.Conn)
	if !ok {
		return errCert
	}
	state := c.ConnectionState()
	if name := netwire.CertName(&state); name == "" || name != a.user {
		return errCert
	}
	return nil
}
