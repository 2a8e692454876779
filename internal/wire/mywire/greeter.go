package mywire

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/weirdb/weir/internal/wire/netwire"
)

// A Greeter greets a client as Accept does, for callers that read and write by other means,
// over TCP. It never blocks. Clients that it does not handle are left to Accept.
type Greeter struct{ a *acceptor }

// NewGreeter begins the login of a client. The configuration must be valid.
func NewGreeter(cfg AcceptConfig) *Greeter {
	cfg = cfg.withDefaults()
	return &Greeter{a: &acceptor{cfg: cfg, client: &Client{
		Conn: nowhere{}, Salt: cfg.Salt, plugin: cfg.Plugin, rsaKey: cfg.rsaKey,
		link: link{max: maxClientPacket, seq: 1},
	}}}
}

// nowhere is the connection of a client that the package does not read or write itself.
type nowhere struct{ net.Conn }

func (nowhere) LocalAddr() net.Addr  { return nil }
func (nowhere) RemoteAddr() net.Addr { return nil }

// Greeting returns the first packet for the client.
func (g *Greeter) Greeting() []byte {
	cfg := g.a.cfg
	return AppendGreeting(nil, &Greeting{
		Version: cfg.Version, ConnectionID: cfg.ConnectionID, Salt: cfg.Salt, Caps: g.a.offered(),
		Charset: cfg.Charset, Status: cfg.Status, Plugin: cfg.Plugin,
	})
}

// ErrNotPlain is the error of Take if the client requests TLS, or sends an unusual answer:
// continue with Accept.
var ErrNotPlain = errors.New("the client does not answer the greeting in plain text, as it should")

// Take parses the client's answer to the greeting from p, the bytes that the client has sent. n
// is the answer's length, or 0 if more bytes are needed; then c is nil.
func (g *Greeter) Take(p []byte) (n int, c *Client, err error) {
	size, seq, ok := Peek(p)
	switch {
	case !ok:
		return 0, nil, nil
	case size > maxClientPacket || seq != 1:
		return 0, nil, ErrNotPlain
	case len(p) < HeaderLen+size:
		return 0, nil, nil
	}
	payload := bytes.Clone(p[HeaderLen : HeaderLen+size])
	c = g.a.client
	if IsSSLRequest(payload) || g.a.cfg.TLSMode.demanded() || g.a.answered(payload) != nil {
		return 0, nil, ErrNotPlain
	}
	c.link.seq, c.link.heard = 2, true
	return HeaderLen + size, c, nil
}

// Accept continues as the function Accept does after the greeting, on the connection to the
// client, none of whose answer has been consumed.
func (g *Greeter) Accept(ctx context.Context, conn net.Conn) (*Client, error) {
	g.a.client.Reached(conn)
	g.a.client.link.seq = 1
	release := netwire.Bound(ctx, conn, g.a.cfg.Timeout)
	err := g.a.readAnswer(ctx)
	if err != nil {
		g.a.refuse(err)
	}
	if err = release(err); err != nil {
		return nil, fmt.Errorf("accept client: %w", err)
	}
	return g.a.client, nil
}

// Reached sets the connection of a client that a Greeter has greeted.
func (c *Client) Reached(conn net.Conn) { c.Conn, c.link.conn = conn, conn }
