package pgwire

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// login is the client's side of a login to a server, from the first message after the startup
// packet.
type login struct {
	link
	cfg     ConnectConfig
	version uint32
	method  AuthMethod
	scram   *scramClient // between AuthenticationSASL and AuthenticationSASLFinal
	bound   bool         // the exchange was bound to the TLS channel
	proved  bool         // the server proved that it knows the password
}

func (l *login) run() (*Backend, error) {
	l.version, l.method = l.cfg.ProtocolVersion, AuthTrust
	if err := l.authenticate(); err != nil {
		return nil, err
	}
	if l.cfg.ChannelBinding == "require" && !l.bound {
		return nil, errors.New("channel binding is required, and the server let us in without")
	}
	b := &Backend{Version: l.version, Method: l.method}
	if err := l.finish(b); err != nil {
		return nil, err
	}
	return b, nil
}

// authenticate answers the server's requests until AuthenticationOk.
func (l *login) authenticate() error {
	for {
		typ, body, err := l.read()
		if err != nil {
			return fmt.Errorf("wait for authentication: %w", netwire.UnexpectedEOF(err))
		}
		switch typ {
		case ServerAuth:
			done, err := l.answer(body)
			if done || err != nil {
				return err
			}
		case ServerError:
			return serverError(body)
		case ServerNotice:
		case ServerNegotiateVersion:
			if err := l.negotiate(body); err != nil {
				return err
			}
		default:
			return fmt.Errorf("message %q during authentication: %w", typ, ErrMalformed)
		}
	}
}

// serverError parses an ErrorResponse.
func serverError(body []byte) error {
	e, err := ParseError(body)
	if err != nil {
		return fmt.Errorf("read the server's error: %w", err)
	}
	return e
}

func (l *login) negotiate(body []byte) error {
	version, _, err := ParseNegotiateVersion(body)
	if err != nil {
		return err
	}
	if version>>16 != 3 || version > l.version {
		return fmt.Errorf("asked for protocol %d.%d, the server offers %d.%d", l.version>>16, l.version&0xffff, version>>16, version&0xffff)
	}
	l.version = version
	return nil
}

// answer answers one Authentication message; done is true for the last one.
func (l *login) answer(body []byte) (done bool, err error) {
	kind, data, err := parseAuth(body)
	if err != nil {
		return false, err
	}
	if l.cfg.ChannelBinding == "require" && (kind == authCleartext || kind == authMD5) {
		return false, errors.New("channel binding is required, and the server asks for a password without it")
	}
	switch kind {
	case authOK:
		// A server that starts SCRAM and skips its own proof may be an impostor.
		if l.scram != nil && !l.proved {
			return false, errors.New("the server ended the SCRAM exchange without proving that it knows the password")
		}
		return true, nil
	case authCleartext:
		l.method = AuthPassword
		if err := l.needPassword("the password"); err != nil {
			return false, err
		}
		return false, l.write(AppendPassword(nil, l.cfg.Password))
	case authMD5:
		l.method = AuthMD5
		inner := l.cfg.Keys.MD5
		if l.cfg.Password != "" || inner == "" {
			if err := l.needPassword("the password (md5)"); err != nil {
				return false, err
			}
			inner = md5Hex(l.cfg.Password, l.cfg.User)
		}
		return false, l.write(AppendPassword(nil, "md5"+md5Hex(inner, string(data))))
	case authSASL:
		l.method = AuthSCRAM
		return false, l.startSCRAM(data)
	case authSASLContinue:
		if l.scram == nil || l.scram.auth != "" {
			return false, fmt.Errorf("SASL message out of order: %w", ErrMalformed)
		}
		msg, err := l.scram.final(data)
		if err != nil {
			return false, err
		}
		return false, l.write(AppendSASLResponse(nil, msg))
	case authSASLFinal:
		if l.scram == nil || l.proved {
			return false, fmt.Errorf("SASL message out of order: %w", ErrMalformed)
		}
		l.proved = true
		return false, l.scram.verify(data)
	}
	return false, fmt.Errorf("the server asks for %s, which weir does not speak", authKindName(kind))
}

func authKindName(kind uint32) string {
	switch kind {
	case authKerberosV5:
		return "Kerberos V5 authentication"
	case authGSS, authGSSContinue:
		return "GSSAPI authentication"
	case authSSPI:
		return "SSPI authentication"
	}
	return fmt.Sprintf("authentication of kind %d", kind)
}

func (l *login) needPassword(what string) error {
	if l.cfg.Password != "" {
		return nil
	}
	switch {
	case l.cfg.Keys.ClientKey != nil:
		return fmt.Errorf("the server asks for %s, and only SCRAM keys are known", what)
	case l.cfg.Keys.MD5 != "":
		return fmt.Errorf("the server asks for %s, and only its md5 hash is known", what)
	}
	return fmt.Errorf("the server asks for %s, and %w", what, ErrNoPassword)
}

// ErrNoPassword says that a login failed because the server requests a password and none is
// configured.
var ErrNoPassword = errors.New("none is configured")

func (l *login) startSCRAM(data []byte) error {
	offered, err := parseMechanisms(data)
	if err != nil {
		return err
	}
	if l.scram != nil {
		return fmt.Errorf("SASL message out of order: %w", ErrMalformed)
	}
	if l.cfg.Password == "" && (len(l.cfg.Keys.ClientKey) != 32 || len(l.cfg.Keys.ServerKey) != 32) {
		return fmt.Errorf("the server asks for the password (scram-sha-256), and %w", ErrNoPassword)
	}
	var binding []byte
	if l.cfg.ChannelBinding != "disable" {
		binding = clientEndpoint(l.conn)
	}
	plus := slices.Contains(offered, mechSCRAMPlus)
	s := &scramClient{password: l.cfg.Password, keys: l.cfg.Keys, gs2: "n,,"}
	mechanism := mechSCRAM
	switch {
	case plus && binding != nil:
		mechanism, s.gs2, s.binding = mechSCRAMPlus, "p="+bindingType+",,", binding
		l.bound = true
	case l.cfg.ChannelBinding == "require":
		return errors.New("channel binding is required, and the connection has none to offer")
	case !slices.Contains(offered, mechSCRAM):
		return fmt.Errorf("the server offers SASL mechanisms %q, and weir speaks %s", offered, mechSCRAM)
	case !plus && binding != nil:
		// This says "I would have bound": a server that offered binding then notices that an
		// attacker removed the offer.
		s.gs2 = "y,,"
	}
	l.scram = s
	return l.write(AppendSASLInitial(nil, mechanism, s.first()))
}

// FinishLogin reads what a server sends from AuthenticationOk to ReadyForQuery, and nothing
// after it. It does not set Method and Version. If the server rejects the login, the error
// wraps the server's *Error.
func FinishLogin(ctx context.Context, conn net.Conn) (*Backend, error) {
	release := netwire.Bound(ctx, conn, 0)
	l := &login{link: link{conn: conn, max: maxServerMessage}, version: Version30}
	b := &Backend{Version: Version30}
	if err := release(l.finish(b)); err != nil {
		return nil, fmt.Errorf("finish login: %w", err)
	}
	return b, nil
}

func (l *login) finish(b *Backend) error {
	b.Conn = l.conn
	_, b.TLS = l.conn.(*tls.Conn)
	for {
		typ, body, err := l.read()
		if err != nil {
			return fmt.Errorf("wait for the server to be ready: %w", netwire.UnexpectedEOF(err))
		}
		switch typ {
		case ServerParameterStatus:
			name, value, err := ParseParameterStatus(body)
			if err != nil {
				return err
			}
			b.Params = append(b.Params, Param{string(name), string(value)})
		case ServerBackendKeyData:
			pid, secret, err := ParseBackendKeyData(body)
			if err != nil {
				return err
			}
			b.PID, b.Secret = pid, append([]byte(nil), secret...)
		case ServerNotice:
			notice, err := ParseError(body)
			if err != nil {
				return err
			}
			b.Notices = append(b.Notices, notice)
		case ServerNegotiateVersion:
			if err := l.negotiate(body); err != nil {
				return err
			}
			b.Version = l.version
		case ServerError:
			return serverError(body)
		case ServerReady:
			_, err := ParseReadyForQuery(body)
			return err
		default:
			return fmt.Errorf("message %q before the server is ready: %w", typ, ErrMalformed)
		}
	}
}
