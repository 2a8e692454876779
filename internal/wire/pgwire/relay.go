package pgwire

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// RelayResult is the result of a relayed authentication.
type RelayResult struct {
	// Method is the method that the server requested: AuthTrust if none, otherwise
	// AuthPassword, AuthMD5 or AuthSCRAM.
	Method AuthMethod
	// Asked means that the server has chosen its Method; the login may have failed after that.
	Asked bool
	// Keys is the password if the client had to send it, or what the client proved against what
	// the server stores of it; otherwise nil.
	Keys *ClientKeys
	// Version is the lower protocol version that the server chose, or 0 if it accepted the
	// requested one.
	Version uint32
}

// RelayAuth relays the authentication between a client that Accept returned and a server
// connection that Open returned, for a user whose secret weir does not have. It ends with
// AuthenticationOk or ErrorResponse, which it has sent to the client in either case; it also
// returns an ErrorResponse, as *Error. FinishLogin continues from there. A server that accepts
// no logins now (CodeCannotConnectNow), is being shut down, or has no connection left
// (CodeTooManyConnections) says so before anything else; that error is only returned, as an
// ErrNoAnswer, so that the caller can try again.
//
// SCRAM-SHA-256-PLUS binds the exchange to its TLS connection, which proves that there is no
// third party in between; but weir is one. If both connections use TLS, a client that supports
// channel binding and the server would notice, whatever weir offers: a client says in its
// signed messages whether it could have bound. In that case weir requests the client's
// password, inside the TLS connection, and authenticates to the server with it, bound to the
// connection between weir and the server. A client that requires channel binding refuses that.
// Only if weir and the server present the same certificate does the binding hold through weir,
// and is relayed.
//
// stored, if not nil, is what the server stores of the user's password; the zero Secret if it
// stores nothing. If the server then requests SCRAM, weir itself authenticates the client
// against it, with channel binding on the client's connection if the client wants that, and
// authenticates to the server with what the client has proved.
func RelayAuth(ctx context.Context, client, server net.Conn, user string, stored *Secret) (RelayResult, error) {
	releaseClient := netwire.Bound(ctx, client, 0)
	releaseServer := netwire.Bound(ctx, server, 0)
	r := &relay{
		client: link{conn: client, max: maxAuthMessage},
		server: link{conn: server, max: maxServerMessage},
		result: RelayResult{Method: AuthTrust},
		user:   user, stored: stored,
	}
	err := releaseServer(releaseClient(r.run()))
	if err != nil {
		return r.result, fmt.Errorf("relay authentication: %w", err)
	}
	return r.result, nil
}

// ErrNoAnswer says that the server has not answered this login, and that nothing was sent to
// the client: the caller may try another server.
var ErrNoAnswer = errors.New("the server did not answer the login")

type relay struct {
	client, server link
	result         RelayResult
	offeredPlus    bool
	scram          *scramClient // set if weir authenticates to the server itself
	proved         bool         // the server has proved that it knows the password

	user   string
	stored *Secret
	final  []byte // the last message of the exchange with the client, sent with AuthenticationOk
}

func (r *relay) run() error {
	for first := true; ; first = false {
		typ, body, err := r.server.read()
		if err != nil {
			err = fmt.Errorf("read from server: %w", netwire.UnexpectedEOF(err))
			if first {
				return fmt.Errorf("%w: %w", ErrNoAnswer, err)
			}
			return r.refuse(NewFatal(CodeConnectionFailure, "server closed the connection during authentication"), err)
		}
		switch typ {
		case ServerAuth:
			done, err := r.forward(body)
			if done || err != nil {
				return err
			}
		case ServerError:
			if err := serverError(body); first && (Unavailable(err) || CodeOf(err) == CodeTooManyConnections) {
				return fmt.Errorf("%w: %w", ErrNoAnswer, err)
			}
			if err := r.toClient(AppendMessage(nil, typ, body)); err != nil {
				return err
			}
			return serverError(body)
		case ServerNotice:
			if err := r.toClient(AppendMessage(nil, typ, body)); err != nil {
				return err
			}
		case ServerNegotiateVersion:
			// For the connection to the server; the client has negotiated its own.
			if r.result.Version, _, err = ParseNegotiateVersion(body); err != nil {
				return err
			}
		default:
			return fmt.Errorf("message %q during authentication: %w", typ, ErrMalformed)
		}
	}
}

// forward relays one Authentication message to the client, and the client's response if the
// message needs one.
func (r *relay) forward(body []byte) (done bool, err error) {
	kind, data, err := parseAuth(body)
	if err != nil {
		return false, err
	}
	if r.scram != nil && kind != authOK {
		return false, r.prove(kind, data)
	}
	r.result.Asked = true
	switch kind {
	case authOK:
		if r.scram != nil && !r.proved {
			return false, r.refuse(NewFatal(CodeConnectionFailure, "the server ended the SCRAM exchange without proving that it knows the password"), nil)
		}
		if r.stored != nil && r.result.Method == AuthMD5 && r.stored.kind == secretMD5 {
			r.result.Keys = &ClientKeys{MD5: r.stored.text} // the client has proved that it is right
		}
		return true, r.toClient(AppendAuthOK(r.final))
	case authSASLFinal:
		return false, r.toClient(AppendMessage(nil, ServerAuth, body))
	case authCleartext:
		r.result.Method = AuthPassword
	case authMD5:
		r.result.Method = AuthMD5
	case authSASL:
		return false, r.forwardSASL(data)
	case authSASLContinue:
	default:
		e := NewFatal(CodeFeatureNotSupported, "the server asks for %s, which weir does not speak", authKindName(kind))
		e.Hint = "Have pg_hba.conf ask for scram-sha-256 where weir connects from, or connect to the server itself."
		return false, r.refuse(e, nil)
	}
	if err := r.toClient(AppendMessage(nil, ServerAuth, body)); err != nil {
		return false, err
	}
	answer, err := r.fromClient()
	if err != nil {
		return false, err
	}
	if kind == authCleartext {
		password, err := soleString(answer)
		if err != nil {
			return false, r.refuse(NewFatal(CodeProtocolViolation, "malformed password message"), err)
		}
		r.result.Keys = &ClientKeys{Password: string(password)}
	}
	return false, r.toServer(answer)
}

func (r *relay) forwardSASL(data []byte) error {
	offered, err := parseMechanisms(data)
	if err != nil {
		return err
	}
	scram := slices.Contains(offered, mechSCRAM) || slices.Contains(offered, mechSCRAMPlus)
	if r.result.Method = AuthSCRAM; !scram {
		r.result.Method = AuthPassword // OAUTHBEARER: as with LDAP, only the server can check it
	}
	near, far := serverEndpoint(r.client.conn), clientEndpoint(r.server.conn)
	if r.stored != nil && scram {
		return r.checkSCRAM(offered, far)
	}
	if near == nil || !bytes.Equal(near, far) {
		r.offeredPlus = slices.Contains(offered, mechSCRAMPlus)
		if _, overTLS := r.client.conn.(*tls.Conn); overTLS && r.offeredPlus {
			return r.askPassword(far)
		}
		offered = slices.DeleteFunc(offered, func(m string) bool { return m == mechSCRAMPlus })
	}
	if len(offered) == 0 {
		return r.refuse(NewFatal(CodeFeatureNotSupported, "the server demands channel binding, which cannot pass a proxy"), nil)
	}
	if err := r.toClient(AppendAuthSASL(nil, offered...)); err != nil {
		return err
	}
	answer, err := r.fromClient()
	if err != nil {
		return err
	}
	mechanism, first, err := parseSASLInitial(answer)
	if err != nil {
		return r.refuse(NewFatal(CodeProtocolViolation, "malformed SASL message"), err)
	}
	if !slices.Contains(offered, mechanism) || (r.offeredPlus && bytes.HasPrefix(first, []byte("y,"))) {
		e := NewFatal(CodeInvalidAuthorization, "channel binding cannot pass a proxy that does not know the user's secret")
		e.Hint = "Connect with channel_binding=disable, or give weir the user's SCRAM secret."
		return r.refuse(e, nil)
	}
	return r.toServer(answer)
}

// askPassword requests the client's password and begins to authenticate to the server with it.
// binding is the server connection's channel binding data, or nil.
func (r *relay) askPassword(binding []byte) error {
	if err := r.toClient(AppendAuthCleartext(nil)); err != nil {
		return err
	}
	answer, err := r.fromClient()
	if err != nil {
		return err
	}
	password, err := soleString(answer)
	if err != nil {
		return r.refuse(NewFatal(CodeProtocolViolation, "malformed password message"), err)
	}
	if len(password) == 0 {
		return r.refuse(NewFatal(CodeInvalidPassword, "empty password returned by client"), nil)
	}
	r.result.Keys = &ClientKeys{Password: string(password)}
	return r.beginSCRAM([]string{mechSCRAM, mechSCRAMPlus}, binding)
}

// checkSCRAM authenticates the client against what the server stores, and begins to
// authenticate to the server with the result.
func (r *relay) checkSCRAM(offered []string, binding []byte) error {
	a := &authenticator{link: r.client, user: r.user, secret: *r.stored}
	x := NewExchange(r.user, AuthSCRAM, a.secret, a.conn)
	if err := a.run(x); err != nil {
		return a.refuse(err)
	}
	r.result.Keys, r.final = x.keys, x.final
	return r.beginSCRAM(offered, binding)
}

// beginSCRAM begins to authenticate to the server with what is known of the password, with
// channel binding if both sides support it: binding is its data, or nil.
func (r *relay) beginSCRAM(offered []string, binding []byte) error {
	r.scram = &scramClient{password: r.result.Keys.Password, keys: r.result.Keys, gs2: "n,,"}
	mechanism := mechSCRAM
	switch {
	case binding != nil && slices.Contains(offered, mechSCRAMPlus):
		mechanism, r.scram.gs2, r.scram.binding = mechSCRAMPlus, "p="+bindingType+",,", binding
	case !slices.Contains(offered, mechSCRAM):
		return r.refuse(NewFatal(CodeFeatureNotSupported, "the server demands channel binding, and the connection to it has none to offer"), nil)
	case binding != nil:
		r.scram.gs2 = "y,,"
	}
	return r.toServer(bodyOf(AppendSASLInitial(nil, mechanism, r.scram.first())))
}

// prove answers the server in place of the client.
func (r *relay) prove(kind uint32, data []byte) error {
	switch {
	case kind == authSASLContinue && r.scram.auth == "":
		msg, err := r.scram.final(data)
		if err != nil {
			return r.refuse(NewFatal(CodeConnectionFailure, "weir and the server do not understand each other's authentication"), err)
		}
		return r.toServer(msg)
	case kind == authSASLFinal && !r.proved:
		if err := r.scram.verify(data); err != nil {
			return r.refuse(NewFatal(CodeConnectionFailure, "the server does not know the password of this user"), err)
		}
		r.proved = true
		return nil
	}
	return r.refuse(NewFatal(CodeConnectionFailure, "weir and the server do not understand each other's authentication"), fmt.Errorf("SASL message out of order: %w", ErrMalformed))
}

// bodyOf returns a message without its type and length.
func bodyOf(msg []byte) []byte { return msg[HeaderLen:] }

// refuse ends the exchange with an error from weir.
func (r *relay) refuse(e *Error, cause error) error {
	err := error(e)
	if cause != nil {
		err = fmt.Errorf("%w: %w", cause, e)
	}
	return errors.Join(err, r.toClient(AppendError(nil, e)))
}

func (r *relay) toClient(msg []byte) error {
	if err := r.client.write(msg); err != nil {
		return fmt.Errorf("write to client: %w", err)
	}
	return nil
}

func (r *relay) toServer(answer []byte) error {
	if err := r.server.write(AppendMessage(nil, ClientPassword, answer)); err != nil {
		return fmt.Errorf("write to server: %w", err)
	}
	return nil
}

func (r *relay) fromClient() ([]byte, error) {
	answer, err := r.client.readResponse()
	if err != nil {
		return nil, fmt.Errorf("read from client: %w", err)
	}
	return answer, nil
}
