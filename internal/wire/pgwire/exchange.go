package pgwire

import (
	"crypto/rand"
	"crypto/subtle"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// An Exchange authenticates one client, message by message. It does no I/O, so that both a
// blocking connection and an event loop can drive it: send what Begin returns, then what Answer
// returns for each response, until that is nil. Authenticate describes its guarantees.
type Exchange struct {
	user   string
	method AuthMethod
	secret Secret
	conn   net.Conn // for its TLS state; nil without TLS

	// next processes the body of the client's next response.
	next func(body []byte) (out []byte, err error)
	// unfit is why the secret cannot authenticate the client, which learns it only after it has
	// sent its own proof.
	unfit error

	keys  *ClientKeys
	final []byte // message to send together with AuthenticationOk
}

// NewExchange begins an exchange with a client. Of conn it uses only the TLS state; nil means
// no TLS.
func NewExchange(user string, method AuthMethod, secret Secret, conn net.Conn) *Exchange {
	return &Exchange{user: user, method: method, secret: secret, conn: conn}
}

// Slow reports whether the exchange computes for milliseconds, as deriving keys from a password
// does.
func (x *Exchange) Slow() bool {
	switch x.method {
	case AuthPassword:
		return x.secret.kind == secretSCRAM
	case AuthSCRAM:
		return x.secret.kind == secretPlain && !x.secret.derived.Load()
	}
	return false
}

// Begin returns the first message to the client, or nil if the method requires none.
func (x *Exchange) Begin() ([]byte, error) {
	switch x.method {
	case AuthTrust:
		return nil, nil
	case AuthPassword:
		x.next = x.password
		return AppendAuthCleartext(nil), nil
	case AuthMD5:
		// As PostgreSQL: the method is md5 or better, by what is stored.
		if x.secret.kind == secretSCRAM {
			return x.beginSCRAM()
		}
		var salt [4]byte
		_, _ = rand.Read(salt[:])
		x.next = func(body []byte) ([]byte, error) { return nil, x.md5(salt, body) }
		return AppendAuthMD5(nil, salt), nil
	case AuthSCRAM:
		return x.beginSCRAM()
	case AuthCert:
		return nil, x.certificate()
	}
	_, err := ParseAuthMethod(string(x.method))
	return nil, err
}

// Answer processes the body of the client's response, a password or SASL message. It returns
// the next message to the client, or nil at the end of the exchange.
func (x *Exchange) Answer(body []byte) ([]byte, error) { return x.next(body) }

// AnswerIn looks for the client's response in p, the bytes received, and processes it. n is its
// length, or 0 if more bytes are needed. If the client sends Terminate instead, the error is
// io.EOF.
func (x *Exchange) AnswerIn(p []byte) (n int, out []byte, err error) {
	if len(p) < HeaderLen {
		return 0, nil, nil
	}
	typ, n, _ := Peek(p)
	switch {
	case n < HeaderLen:
		return 0, nil, ErrMalformed
	case n > maxAuthMessage:
		return 0, nil, fmt.Errorf("message %q of %d bytes during login: limit %d: %w", typ, n, maxAuthMessage, ErrMalformed)
	case len(p) < n:
		return 0, nil, nil
	}
	body, err := responseOf(typ, p[HeaderLen:n])
	if err != nil {
		return 0, nil, err
	}
	out, err = x.Answer(body)
	return n, out, err
}

// Proved returns, after the exchange, the keys that it revealed (or nil), and AuthenticationOk
// with the message that precedes it, if any.
func (x *Exchange) Proved() (keys *ClientKeys, ok []byte) { return x.keys, AppendAuthOK(x.final) }

// Refusal returns the error to send to the client after the exchange has failed with err (nil
// if there is none), and both as one error.
func (x *Exchange) Refusal(err error) (*Error, error) {
	e, err := refusalOf(x.user, err)
	return e, fmt.Errorf("authenticate %q by %s: %w", x.user, x.method, err)
}

// responseOf returns the body of the password or SASL message with which a client responds to
// an authentication request.
func responseOf(typ byte, body []byte) ([]byte, error) {
	switch typ {
	case ClientPassword:
		return body, nil
	case ClientTerminate:
		return nil, io.EOF
	}
	return nil, fmt.Errorf("expected an authentication response, got message %q: %w", typ, ErrMalformed)
}

var (
	errUnfit = errors.New("no secret that fits the method")
	errCert  = errors.New("no verified client certificate with the user's name")
)

// misfit returns why the secret cannot be used with the method, or nil.
func (x *Exchange) misfit() error {
	if x.secret.IsZero() {
		return fmt.Errorf("unknown user: %w", errUnfit)
	}
	return fmt.Errorf("%s: %w", x.secret, errUnfit)
}

// passwordIn returns the password in a response.
func passwordIn(body []byte) (string, error) {
	text, err := soleString(body)
	if err != nil {
		return "", err
	}
	if len(text) == 0 {
		return "", NewFatal(CodeInvalidPassword, "empty password returned by client")
	}
	return string(text), nil
}

func (x *Exchange) password(body []byte) ([]byte, error) {
	password, err := passwordIn(body)
	if err != nil {
		return nil, err
	}
	if x.secret.IsZero() {
		return nil, x.misfit()
	}
	if !x.secret.matches(x.user, password) {
		return nil, errProof
	}
	x.keys = &ClientKeys{Password: password}
	return nil, nil
}

func (x *Exchange) md5(salt [4]byte, body []byte) error {
	answer, err := passwordIn(body)
	if err != nil {
		return err
	}
	inner := x.secret.text
	switch x.secret.kind {
	case secretPlain:
		inner = md5Hex(x.secret.text, x.user)
	case secretMD5:
	default:
		return x.misfit()
	}
	want := "md5" + md5Hex(inner, string(salt[:]))
	if subtle.ConstantTimeCompare([]byte(answer), []byte(want)) != 1 {
		return errProof
	}
	x.keys = &ClientKeys{MD5: inner}
	if password, ok := x.secret.Plain(); ok {
		x.keys = &ClientKeys{Password: password}
	}
	return nil
}

func (x *Exchange) beginSCRAM() ([]byte, error) {
	s := new(scramServer)
	if x.conn != nil {
		s.binding = serverEndpoint(x.conn)
	}
	if x.secret.scram == nil {
		x.unfit = x.misfit()
		s.mock = true
		s.keys = scramKeys{iterations: scramIterations, salt: mockSalt()(x.user), stored: make([]byte, 32), server: make([]byte, 32)}
	} else {
		var err error
		if s.keys, err = x.secret.scram(); err != nil {
			return nil, err
		}
	}
	offer := []string{mechSCRAM}
	if s.binding != nil {
		offer = []string{mechSCRAMPlus, mechSCRAM}
	}
	x.next = func(body []byte) ([]byte, error) { return x.initial(s, body) }
	return AppendAuthSASL(nil, offer...), nil
}

// initial processes the client's choice of mechanism and its first message. If the client sends
// the choice alone, an empty challenge requests the message.
func (x *Exchange) initial(s *scramServer, body []byte) ([]byte, error) {
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
		return x.first(s, data)
	}
	x.next = func(body []byte) ([]byte, error) { return x.first(s, body) }
	return AppendAuthSASLContinue(nil, nil), nil
}

func (x *Exchange) first(s *scramServer, data []byte) ([]byte, error) {
	msg, err := s.first(data)
	if err != nil {
		return nil, err
	}
	x.next = func(body []byte) ([]byte, error) { return nil, x.last(s, body) }
	return AppendAuthSASLContinue(nil, msg), nil
}

func (x *Exchange) last(s *scramServer, data []byte) error {
	answer, clientKey, err := s.final(data)
	if err != nil {
		if x.unfit != nil && errors.Is(err, errProof) {
			return x.unfit
		}
		return err
	}
	x.final = AppendAuthSASLFinal(nil, answer)
	x.keys = &ClientKeys{ClientKey: clientKey, ServerKey: s.keys.server}
	if password, ok := x.secret.Plain(); ok {
		// The salt was generated by weir, so the SCRAM keys are of no use with a server.
		x.keys = &ClientKeys{Password: password}
	}
	return nil
}

func (x *Exchange) certificate() error {
	c, ok := x.conn.(*tls.Conn)
	if !ok {
		return errCert
	}
	state := c.ConnectionState()
	if name := netwire.CertName(&state); name == "" || name != x.user {
		return errCert
	}
	return nil
}
