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

// An Exchange is how one client proves who it is, message by message. It reads and
// writes nothing, so that a blocking connection and an event loop can both carry it
// out: send what Begin returns, then what Answer makes of each answer, until there is
// nothing more to send. Authenticate says what it promises.
type Exchange struct {
	user   string
	method AuthMethod
	secret Secret
	conn   net.Conn // for what its TLS knows; nil without TLS

	// next takes the body of the client's next answer.
	next func(body []byte) (out []byte, err error)
	// unfit is why the secret can prove nothing, which the client hears when it has
	// shown its own proof.
	unfit error

	keys  *ClientKeys
	final []byte // message to send together with AuthenticationOk
}

// NewExchange begins an exchange with a client over conn, of which only the TLS is
// looked at; nil is a client without.
func NewExchange(user string, method AuthMethod, secret Secret, conn net.Conn) *Exchange {
	return &Exchange{user: user, method: method, secret: secret, conn: conn}
}

// Slow reports whether the exchange takes milliseconds of computing, as deriving keys
// from a password does.
func (x *Exchange) Slow() bool {
	switch x.method {
	case AuthPassword:
		return x.secret.kind == secretSCRAM
	case AuthSCRAM:
		return x.secret.kind == secretPlain && !x.secret.derived.Load()
	}
	return false
}

// Begin returns the first message to the client, nil if nothing is asked of it.
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

// Answer takes the body of what the client has answered, a password or SASL message. It
// returns the next message to it, nil if the exchange is over.
func (x *Exchange) Answer(body []byte) ([]byte, error) { return x.next(body) }

// AnswerIn finds the client's answer in p, the bytes that it has sent, and takes it. n
// is its length, 0 if more bytes are needed. A client that says farewell in its place
// gives an error that is io.EOF.
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

// Proved returns, after the exchange, the keys that it revealed, nil if it revealed
// none, and AuthenticationOk with what belongs before it.
func (x *Exchange) Proved() (keys *ClientKeys, ok []byte) { return x.keys, AppendAuthOK(x.final) }

// Refusal is what the client is told when the exchange has failed with err, nil if
// there is nothing to tell, and both as one error.
func (x *Exchange) Refusal(err error) (*Error, error) {
	e, err := refusalOf(x.user, err)
	return e, fmt.Errorf("authenticate %q by %s: %w", x.user, x.method, err)
}

// responseOf is the body of the password or SASL message that a client answers an
// authentication request with.
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

// misfit tells what is wrong with the secret when it cannot serve.
func (x *Exchange) misfit() error {
	if x.secret.IsZero() {
		return fmt.Errorf("unknown user: %w", errUnfit)
	}
	return fmt.Errorf("%s: %w", x.secret, errUnfit)
}

// passwordIn returns the answer to a request for a password.
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

// initial takes the client's choice of mechanism and its first message. A client may
// send the choice alone; an empty challenge then asks for more.
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
		// The salt was weir's own, so the SCRAM keys open no server.
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
