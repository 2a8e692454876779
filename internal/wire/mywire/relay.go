package mywire

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// Relay logs a client in to a server with the client's own proof, for users whose secret weir
// does not have. The steps must have this order:
//
//	p := Dial(cfg)                      the server greets with its salt
//	c := Accept(conn, {Salt: p.Greeting.Salt, Plugin: p.Greeting.Plugin, ...})
//	s := Relay(c, p)                    TLS to the server, then the client's answer
//	c.Welcome(&s.OK)
//
// The server gets the client's user, database, attributes, character set and proof; the
// capabilities are those of cfg, so they may differ from the client's. The server's further
// requests go to the client, and the answers back, byte for byte. On error the server's
// connection is closed, and the client has got the error.
//
// A password in clear text must not pass from a connection that third parties cannot read to
// one that they can. caching_sha2_password works nevertheless with TLS on one side only: weir
// then receives the password on one side (with its own RSA key if necessary) and sends it on
// the other. All other plugins that send the password itself need TLS, or a Unix socket, on
// both sides or on none.
//
// If the password passed in clear text, Keys has it.
func Relay(ctx context.Context, client *Client, server *Pending) (*RelayResult, error) {
	releaseClient := netwire.Bound(ctx, client.Conn, 0)
	releaseServer := netwire.Bound(ctx, server.link.conn, server.left())
	r := &relay{client: client, server: server}
	result, err := r.run(ctx)
	if err != nil {
		err = r.refuse(err)
	}
	if err = releaseServer(releaseClient(err)); err != nil {
		server.GiveUp()
		return nil, fmt.Errorf("relay login of %q to %s: %w", client.Response.User, server.cfg.Address, err)
	}
	return result, nil
}

// RelayResult is the result of a relayed login.
type RelayResult struct {
	Server *Server
	// Keys has the password if weir has seen it; otherwise it is nil.
	Keys *ClientKeys
	// Proved reports that the client's answer to the last challenge was not empty. Otherwise
	// the server lets in anyone who comes from weir's host and gives that name. Over a Unix
	// socket Proved means little: the server may have checked weir's operating system user,
	// whatever the answer.
	Proved bool
}

type relay struct {
	client *Client
	server *Pending
	keys   *ClientKeys
	// told: the server's own ERR was sent to the client.
	told bool
	// proved: the client has answered the server's request.
	proved bool
}

// errTransport is why a password cannot be forwarded.
var errTransport = errors.New("the password travels in clear on one side: use TLS on both sides or none, or give weir the user's secret")

func (r *relay) run(ctx context.Context) (*RelayResult, error) {
	c, p := r.client, r.server
	said := *c.Response
	said.Caps = p.caps() &^ CapConnectWithDB
	if p.Greeting.Caps.Has(CapConnectWithDB) && said.Database != "" {
		said.Caps |= CapConnectWithDB
	}
	if !c.Caps.Has(CapConnectAttrs) {
		said.Attrs = p.cfg.Attrs
	}
	if err := p.begin(ctx, &said); err != nil {
		return nil, fmt.Errorf("to server: %w", err)
	}
	p.plugin = said.Plugin
	if err := r.carry(said.Auth); err != nil {
		return nil, err
	}
	if err := p.respond(&said); err != nil {
		return nil, fmt.Errorf("write to server: %w", err)
	}
	for range maxAuthRounds {
		payload, err := p.link.read()
		if err != nil {
			return nil, fmt.Errorf("read from server: %w", netwire.UnexpectedEOF(err))
		}
		done, ok, err := p.outcome(payload, said.Caps)
		if err != nil {
			return nil, r.tell(err)
		}
		if done {
			return &RelayResult{Server: p.server(said.Caps, ok), Keys: r.keys, Proved: r.proved || provesSomething(said.Auth)}, nil
		}
		if err := r.forward(payload); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("the server asks for more and more: %w", ErrMalformed)
}

// tell sends the client the ERR with which the server has ended the login.
func (r *relay) tell(err error) error {
	var e *Error
	if errors.As(err, &e) {
		r.told = true
		if werr := r.client.refuse(e); werr != nil {
			return fmt.Errorf("%w (and the client could not be told: %w)", err, werr)
		}
	}
	return err
}

// forward sends the server's request to the client, and the answer back.
func (r *relay) forward(payload []byte) error {
	c, p := r.client, r.server
	switch payload[0] {
	case headerEOF:
		plugin, salt, err := ParseAuthSwitch(payload)
		if err != nil {
			return err
		}
		if !c.Caps.Has(CapPluginAuth) || plugin == PluginOld {
			return NewError(ErrOldAuth, "Client does not support authentication protocol requested by server; consider upgrading MySQL client")
		}
		p.plugin, p.salt = plugin, bytes.Clone(salt)
	case headerAuthMore:
		if p.plugin == PluginSHA2 && len(payload) == 2 {
			switch payload[1] {
			case authFastDone:
				return r.toClient(payload)
			case authFull:
				return r.full(payload)
			}
		}
	default:
		return fmt.Errorf("packet %#02x during login: %w", payload[0], ErrMalformed)
	}
	if err := r.toClient(payload); err != nil {
		return err
	}
	answer, err := r.fromClient()
	if err != nil {
		return err
	}
	if payload[0] == headerEOF {
		if len(answer) > 1 && bytes.Equal(answer, c.said) && !bytes.Equal(p.salt, c.Salt) {
			return NewError(ErrAccessDenied, "Access denied for user '%s': the client's library answers the server's question by the challenge of the login before, as that of MariaDB does: connect anew, or give weir the user's password", c.Response.User)
		}
		c.Salt = p.salt
	}
	if err := r.carry(answer); err != nil {
		return err
	}
	r.proved = provesSomething(answer) // of the last challenge, which counts
	return r.toServer(answer)
}

// provesSomething distinguishes an answer from that of a user without a password, which some
// clients send as a NUL.
func provesSomething(answer []byte) bool {
	return len(answer) > 1 || (len(answer) == 1 && answer[0] != 0)
}

// full forwards the full login of caching_sha2_password, which sends the password itself.
func (r *relay) full(payload []byte) error {
	c, p := r.client, r.server
	if !c.Secure() && !p.Secure() {
		// Encrypted for the server: the client requests its key, or has it.
		if err := r.toClient(payload); err != nil {
			return err
		}
		answer, err := r.fromClient()
		if err != nil {
			return err
		}
		return r.toServer(answer)
	}
	password, err := c.askPassword(p.salt)
	if err != nil {
		return fmt.Errorf("read password from client: %w", err)
	}
	r.keys = PasswordKeys(password)
	p.cfg.Keys = r.keys
	if p.Secure() {
		return r.toServer(append([]byte(password), 0))
	}
	return r.encrypted(password)
}

// encrypted sends the password to a server without TLS, encrypted with the server's RSA key.
func (r *relay) encrypted(password string) error {
	p := r.server
	key := p.cfg.ServerKey
	if key == nil {
		if err := r.toServer([]byte{askKeySHA2}); err != nil {
			return err
		}
		payload, err := p.link.read()
		if err != nil {
			return fmt.Errorf("read from server: %w", netwire.UnexpectedEOF(err))
		}
		if len(payload) == 0 || payload[0] != headerAuthMore {
			return fmt.Errorf("no RSA key from the server: %w", ErrMalformed)
		}
		if key, err = parseRSAKey(payload[1:]); err != nil {
			return err
		}
	}
	cipher, err := encryptPassword(password, p.salt, key)
	if err != nil {
		return err
	}
	return r.toServer(cipher)
}

// carry checks an answer on its way to the server: whether it has the password, and whether it
// may be forwarded.
func (r *relay) carry(answer []byte) error {
	c, p := r.client, r.server
	switch p.plugin {
	case PluginClear, PluginSHA256, PluginDialog:
	default:
		return nil
	}
	from := c.Secure()
	if p.plugin == PluginSHA256 {
		from = c.TLS != nil
	}
	if from != p.inClear() || (p.plugin == PluginClear && !from) {
		return fmt.Errorf("%s: %w", p.plugin, errTransport)
	}
	if p.plugin != PluginDialog && from {
		if password, err := clearPassword(answer); err == nil {
			r.keys = PasswordKeys(password)
		}
	}
	return nil
}

func (r *relay) toClient(payload []byte) error {
	if err := r.client.link.send(payload); err != nil {
		return fmt.Errorf("write to client: %w", err)
	}
	return nil
}

func (r *relay) toServer(payload []byte) error {
	if err := r.server.link.send(payload); err != nil {
		return fmt.Errorf("write to server: %w", err)
	}
	return nil
}

func (r *relay) fromClient() ([]byte, error) {
	payload, err := r.client.link.read()
	if err != nil {
		return nil, fmt.Errorf("read from client: %w", netwire.UnexpectedEOF(err))
	}
	return payload, nil
}

// refuse sends the client the error of the login, unless it has got the server's.
func (r *relay) refuse(err error) error {
	if r.told {
		return err
	}
	var e *Error
	if !errors.As(err, &e) {
		e = NewError(ErrAccessDenied, "Access denied: the login cannot be relayed to the server")
		if errors.Is(err, errTransport) {
			e.Message += ": " + errTransport.Error()
		}
	}
	if werr := r.client.refuse(e); werr != nil {
		return fmt.Errorf("%w (and the client could not be told: %w)", err, werr)
	}
	return err
}
